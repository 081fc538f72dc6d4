"""The store: one run and partition on one server, and the sessions that work on it.

Everything that must survive a process lives in Redis; the objects here are views. Restart = attach.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final

import anyio
from anyio.abc import TaskGroup

from redis_replay._redis.events import Wakeups
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.run_scripts import Publish
from redis_replay.attachment import TRAINER
from redis_replay.audit import AuditReport, audit_run
from redis_replay.bookmark import Bookmark, read_bookmark
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.checkpoint_info import Incomplete, RestoreMode
from redis_replay.checkpoints import Checkpoints
from redis_replay.collector import Collector
from redis_replay.cut import DataPlaneMutationCut
from redis_replay.end_of_data import Tail
from redis_replay.ending import discard_run, forget_session, say_what_is_left
from redis_replay.errors import RunInUse, StoreClosed
from redis_replay.filtering import DynamicSampling, GroupFilter
from redis_replay.group_record import CHUNK_BYTES
from redis_replay.groups import GroupRecords
from redis_replay.heart import Heart
from redis_replay.preview import PolicyPreview
from redis_replay.processes import OfOneProcess
from redis_replay.rank import TrainerRank
from redis_replay.recovery import Recovery, ResumeReport
from redis_replay.rollout import RolloutSession
from redis_replay.run import OpenedRun, open_run
from redis_replay.samplers.config import SamplerConfig
from redis_replay.samples import SamplePlane
from redis_replay.selection import validate_version
from redis_replay.server_checks import check_server, read_server_facts
from redis_replay.session import (
    ANONYMOUS_ROLE,
    LONGEST_STRING_BYTES,
    ROLLOUT_LEASE_SECONDS,
    TRAINER_LEASE_SECONDS,
    Link,
    Session,
    anonymous_owner,
)
from redis_replay.stats import read_stats
from redis_replay.step_target import StepTarget, read_step_target
from redis_replay.store_options import StoreOptions, find_server
from redis_replay.tally import drain_stored_metrics
from redis_replay.tasks import FinishingTasks, QuietTaskGroup, shielded
from redis_replay.trainer import OnDropped, TrainerSession
from redis_replay.types import BufferStats

DEFAULT_PARTITION: Final = "rollout_data"
_CLOSE_SECONDS: Final = 5.0
_LOG = logging.getLogger(__name__)


class ReplayStore(OfOneProcess):
    """An opened run. Use it as an async context manager, in one task; its objects may be shared
    between tasks, not between processes: a fork's copy raises `ForkedStore`. Stores that one task
    opens are closed in the reverse order, as nested ``async with`` blocks do.

    Attributes:
        buffer: Slots and claims under the store's implicit session.
        samples: The data plane under the implicit session.
        checkpoints: The run's checkpoints.
    """

    buffer: RedisReplayBuffer
    samples: SamplePlane
    checkpoints: Checkpoints

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._group: TaskGroup | None = None
        self._link: Link | None = None

    async def __aenter__(self) -> ReplayStore:
        if self._link is not None:
            raise StoreClosed("a store is opened once; call open_store again")
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _open(self) -> None:
        options = self._options
        target = await find_server(options, self._stack)
        gateway = Gateway(
            target,
            Keyspace(options.run, options.partition),
            deadline_seconds=options.deadline_seconds,
            way=options.transfer,
        )
        self._stack.push_async_callback(shielded, gateway.close)
        facts = await read_server_facts(gateway)
        check_server(facts, address=target.address, allow_unsafe=options.allow_unsafe_server)
        opened = await open_run(
            gateway,
            options.settings,
            create=options.create,
            dataset=options.dataset,
            new_dataset=options.new_dataset,
        )
        wakeups = Wakeups(target, gateway.keyspace)
        group = await self._stack.enter_async_context(QuietTaskGroup())
        self._link = Link(
            gateway=gateway,
            run=opened,
            tasks=FinishingTasks(group),
            wakeups=wakeups,
            heart=Heart(target, gateway.keyspace, opened.frame),
            collector=Collector(gateway, opened.frame),
            records=GroupRecords(gateway),
            chunk_bytes=min(CHUNK_BYTES, facts.largest_string or CHUNK_BYTES),
            longest_string_bytes=facts.largest_string or LONGEST_STRING_BYTES,
            fields=options.fields,
            switch_policy=options.switch_policy,
        )
        self._stack.push_async_callback(shielded, self._link.heart.stop)
        group.start_soon(wakeups.read_forever)
        implicit = self._session(anonymous_owner(), ANONYMOUS_ROLE, ROLLOUT_LEASE_SECONDS)
        self.buffer, self.samples = RedisReplayBuffer(implicit), SamplePlane(implicit)
        self.checkpoints = Checkpoints(self._link)
        self._link.renewals.append(partial(forget_session, self.buffer))

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        link = self._link
        is_ours = link is not None and not link.closed and link.opener == os.getpid()
        if self._options.discard_on_exit and kind is None and is_ours:
            try:
                await self.discard()
            except RunInUse as others:
                _LOG.warning("%s", others)
        await self.close()

    async def discard(self, *, force: bool = False) -> None:
        """Delete the run with its checkpoints and payload, and close the store. Not to be undone.

        The control keys go in one script. Cut short after it, payload is left, which `find_orphans`
        of a run of the same name would free.

        Args:
            force: Whether sessions of other processes are ignored, whose calls then raise
                `StoreMissing`.

        Raises:
            RunInUse: there are such sessions; nothing was changed.
        """
        await discard_run(self._opened(), force=force)
        await self.close()

    async def close(self) -> None:
        """Wake waiters, give back what the sessions hold, finish calls under way. Repeatable.

        What the run is left with is logged. In a forked process it does nothing: the
        store is its parent's.
        """
        link = self._link
        if link is None or link.closed or link.opener != os.getpid():
            return
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            for session in link.sessions:
                await session.detach()
            if any(session.epoch for session in link.sessions):
                await say_what_is_left(link)
        link.closed = True
        link.wakeups.stop()
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await link.tasks.idle()
        link.tasks.cancel()
        await self._stack.aclose()

    def trainer(
        self,
        *,
        owner: str,
        world: int = 1,
        lease_seconds: float = TRAINER_LEASE_SECONDS,
        takeover: bool = False,
        on_dropped: OnDropped = "shrink",
        min_batch_fraction: float = 1.0,
        tail: Tail = "train",
    ) -> TrainerSession:
        """Return a trainer session: ``async with store.trainer(owner="job-7") as trainer``.

        Args:
            owner: Stable name of the job; attaching ends an older session of the name at once, and
                counts an attempt for each group that it held.
            world: Ranks that must acknowledge a batch before its step commits.
            lease_seconds: Silence after which others end this session. Its heartbeat needs the GIL
                a few times in a quarter of this; a call that keeps the GIL for longer loses it.
            takeover: Whether attaching ends every other trainer session of the run, whatever its
                name. What they held is given back in the same script and no attempt is counted.
            tail: Whether a last batch that is not full, when the data has ended, is trained or
                left.

        Raises:
            ValueError: an empty or overlong name, a lease or world that is not positive.
        """
        if world < 1:
            raise ValueError(f"world must be at least 1, got {world}")
        session = self._session(owner, TRAINER, lease_seconds)
        session.world, session.takeover = world, takeover
        return TrainerSession(
            session, on_dropped=on_dropped, min_batch_fraction=min_batch_fraction, tail=tail
        )

    def trainer_rank(self, *, owner: str, epoch: int, rank: int) -> TrainerRank:
        """Return a rank of a trainer group, joined with the owner and epoch that its leader
        broadcast.

        Raises:
            ValueError: a negative rank.
        """
        validate_version("rank", rank)
        link = self._opened()
        return TrainerRank(link, owner=owner, epoch=epoch, rank=rank, session=self.buffer.session)

    def rollout(
        self,
        *,
        owner: str,
        lease_seconds: float = ROLLOUT_LEASE_SECONDS,
        takeover: bool = False,
    ) -> RolloutSession:
        """Return a rollout session: ``async with store.rollout(owner="host-3") as rollout``.

        Args:
            owner: Stable name of the host; attaching ends an older session of the name at once.
            lease_seconds: Silence after which others end this session.
            takeover: Whether that older session is replaced on purpose, so that no attempt is
                counted. Hosts of other names work on: a run has one trainer and many hosts.

        Raises:
            ValueError: an empty or overlong name, a lease that is not positive.
        """
        session = self._session(owner, "rollout", lease_seconds)
        session.takeover = takeover
        return RolloutSession(session)

    def mutation(self) -> DataPlaneMutationCut:
        """Return a mutation cut of the implicit session; sessions have their own ``mutation()``."""
        self._opened()
        return DataPlaneMutationCut(self.buffer)

    @property
    def run(self) -> OpenedRun:
        """The run as it is in force."""
        return self._opened().run

    @property
    def trainer_version(self) -> int:
        """The store's trainer version in the newest reply."""
        return self.buffer.admission.trainer_version

    async def publish_trainer_version(self, trainer_version: int) -> None:
        """Raise the trainer version; a smaller one changes nothing. Atomic; may be repeated.

        Raises:
            ValueError: negative, or 2**53 and more.
        """
        validate_version("trainer_version", trainer_version)
        await self._opened().call(Publish(trainer_version))

    async def bookmark(self) -> Bookmark:
        """Return where the store is, to be saved with a model. A pure read.

        Beside a trainer, use `TrainerSession.bookmark`.
        """
        return await read_bookmark(self._opened().gateway)

    async def resume(
        self,
        *,
        model_step: int | None = None,
        bookmark: Bookmark | None = None,
        take_over: bool = False,
        mode: RestoreMode = "all",
        incomplete: Incomplete = "keep",
        regenerate_damaged: bool = False,
        dry_run: bool = False,
    ) -> ResumeReport:
        """Bring the store and a model together and say where to go on; `redis_replay.recovery`.

        Call it once, from the trainer, before its session attaches. Each part is atomic; after a
        crash in between, call it again.

        Args:
            model_step: Step of the model that was loaded: it has been trained on all steps below.
                By default the store's trainer version.
            bookmark: What was saved with the model.
            take_over: Whether every session of other processes is ended at once, for a job that
                restarts as a whole. Else their groups come back when their leases end. Restoring
                ends them in any case.
            mode, incomplete, regenerate_damaged: As in `Checkpoints.restore`, if it comes to that.
            dry_run: Whether nothing is changed and the report says what would be done.

        Raises:
            ResumeRefused: the store is newer than the model and there is no checkpoint of the
                model's step, or the bookmark's groups are not to be had; nothing was changed.
            CheckpointError: the checkpoint of the model's step cannot be restored.
            ConfigurationError: it would be, under a sampler that is not trusted with it.
            ValueError: a step that is none.
        """
        link = self._opened()
        return await Recovery(link, self.buffer, self.checkpoints).resume(
            model_step=model_step,
            bookmark=bookmark,
            take_over=take_over,
            mode=mode,
            incomplete=incomplete,
            regenerate_damaged=regenerate_damaged,
            dry_run=dry_run,
        )

    async def preview(
        self,
        cfg: SamplerConfig,
        *,
        step: int,
        checkpoint: str | None = None,
        mode: RestoreMode = "all",
    ) -> PolicyPreview:
        """Return what a policy would take at a step, were all claims given back. A pure read.

        Args:
            cfg: The policy with its windows.
            step: The trainer version.
            checkpoint: If given, of its groups instead of the live ones, as a restore in this
                ``mode`` would bring them back.

        Raises:
            CheckpointMissing: there is none of this name.
        """
        recovery = Recovery(self._opened(), self.buffer, self.checkpoints)
        return await recovery.preview(cfg, step=step, checkpoint=checkpoint, mode=mode)

    async def stats(self) -> BufferStats:
        """Return live counts and totals, read in one instant."""
        return await read_stats(self._opened().gateway)

    def filter(self, settings: DynamicSampling | None = None) -> GroupFilter:
        """Return commits of the implicit session under dynamic sampling; `GroupFilter`."""
        self._opened()
        return GroupFilter(self.buffer, settings or DynamicSampling())

    async def step_target(self, step: int) -> StepTarget:
        """Return what a step wanted, has and can still get; `read_step_target`."""
        return await read_step_target(self._opened().gateway, step)

    async def drain_step_reward_metrics(self, step: int) -> dict[str, float]:
        """Return the reward metrics of a step and forget it; `drain_stored_metrics`."""
        self._opened()
        return await drain_stored_metrics(self.buffer.session, step)

    async def audit(self) -> AuditReport:
        """Check every invariant of the keyspace; a pure read. `redis_replay.audit`."""
        return await audit_run(self._opened().gateway)

    async def collect_garbage(self) -> int:
        """Free the payload of groups that are gone and return the number of entries. Repeatable."""
        collector = self._opened().collector
        collector.look_for_left()
        return await collector.collect()

    async def find_orphans(self) -> list[str]:
        """Free payload that nothing refers to; `Collector.find_orphans`."""
        return await self._opened().collector.find_orphans()

    def _opened(self) -> Link:
        if self._link is None:
            raise StoreClosed("the store is not open; use 'async with open_store(...) as store'")
        self._link.require_open()
        return self._link

    def _session(self, owner: str, role: str, lease_seconds: float) -> Session:
        link = self._opened()
        session = Session(link, owner, role, lease_seconds)
        link.sessions.append(session)
        return session
