"""Resuming: bring a store and a model that were stopped together again.

========================  ==========================================================================
the store's version is    what is done
========================  ==========================================================================
the model's step          go on
one less                  if the bookmark names the groups that the model was trained on, their step
                          is settled; else as for any older store
older, or it is empty     version and cursor rise to the model's step; groups of steps that the
                          model has behind it end (``in_order``)
newer                     the newest checkpoint of the model's step is restored: what was trained
                          since comes back; without one, `ResumeRefused`
========================  ==========================================================================
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from redis_replay._redis.keys import Key
from redis_replay._redis.run_scripts import CatchUp, EndOthers
from redis_replay.bookmark import Bookmark, read_bookmark
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.checkpoint_info import Incomplete, RestoreMode
from redis_replay.checkpoints import Checkpoints
from redis_replay.errors import ResumeRefused
from redis_replay.preview import PolicyPreview, preview_policy
from redis_replay.restoring import require_trusted
from redis_replay.samplers.config import SamplerConfig
from redis_replay.saved_state import read_saved
from redis_replay.selection import validate_version
from redis_replay.session import Link
from redis_replay.stats import read_slots, read_stats
from redis_replay.types import MAX_GROUPS_PER_CALL, BufferStats, GroupState, SlotView

_LOG = logging.getLogger(__name__)
_SLICE: Final = MAX_GROUPS_PER_CALL

ResumeAction = Literal["continue", "settle", "catch_up", "restore"]
"""What a resume does; the table in `redis_replay.recovery`."""


@dataclass(frozen=True, slots=True)
class ResumeReport:
    """What a resume found and did, or would do.

    Attributes:
        action: By the table of `redis_replay.recovery`.
        step: The trainer step to continue with.
        found: Live groups by state before.
        checkpoint: The checkpoint that was restored.
        settled: Ids of groups that the model had been trained on and that are settled now.
        requeued: Claimed groups that are ready again.
        redispatched: Redispatch tickets that wait for a rollout host.
        evicted: Groups of passed steps that were ended.
        held: Groups that living sessions hold, by owner; ``take_over`` gives them back.
        dispatch_index: The dispatch cursor.
        loader_state: Where the data loader stands, as the last cut left it.
        exhausted: Whether the data ends there: what is left in the buffer is all there is to train.
        warnings: What differs from what a plain continuation would find, as sentences.
        blocked: Why no progress is possible, or ``None``.
    """

    action: ResumeAction
    step: int
    found: Mapping[str, int]
    dispatch_index: int
    loader_state: bytes | None
    checkpoint: str | None = None
    settled: tuple[str, ...] = ()
    requeued: int = 0
    redispatched: int = 0
    evicted: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    blocked: str | None = None
    exhausted: bool = False


@dataclass(frozen=True)
class _Plan:
    """What will be done, from what was found."""

    action: ResumeAction
    step: int
    checkpoint: str | None = None
    warnings: tuple[str, ...] = ()
    is_done: bool = False


class Recovery:
    """Resuming one opened run. `ReplayStore.resume` is its door."""

    def __init__(self, link: Link, buffer: RedisReplayBuffer, checkpoints: Checkpoints) -> None:
        self._link = link
        self._buffer = buffer
        self._checkpoints = checkpoints

    async def resume(
        self,
        *,
        model_step: int | None,
        bookmark: Bookmark | None,
        take_over: bool,
        mode: RestoreMode,
        incomplete: Incomplete,
        regenerate_damaged: bool,
        dry_run: bool,
    ) -> ResumeReport:
        """Do what `ReplayStore.resume` says."""
        if model_step is not None:
            validate_version("model_step", model_step)
        reopened = await self._checkpoints.reopen()
        before = await read_stats(self._link.gateway)
        plan = await self._plan(before, model_step, bookmark, reopened)
        for warning in plan.warnings:
            _LOG.warning("run %r: %s", self._link.gateway.keyspace.run, warning)
        if plan.action == "restore" and not plan.is_done:
            await require_trusted(self._link, mode)
        if dry_run or plan.is_done:
            return await self._report(plan, before)
        requeued = 0
        if take_over and plan.action != "restore":
            requeued = await self._end_others()
        settled: tuple[str, ...] = ()
        evicted = 0
        if plan.action == "restore" and plan.checkpoint is not None:
            await self._checkpoints.restore(
                plan.checkpoint,
                mode=mode,
                incomplete=incomplete,
                regenerate_damaged=regenerate_damaged,
            )
            requeued = before.claimed
        if plan.action == "settle" and bookmark is not None:
            settled = await self._settle(plan.step - 1, bookmark.trained)
        if plan.action == "catch_up":
            evicted = await self._catch_up(plan.step)
        await self._buffer.admission.refresh()
        return await self._report(plan, before, settled=settled, requeued=requeued, evicted=evicted)

    async def _plan(
        self,
        found: BufferStats,
        model_step: int | None,
        bookmark: Bookmark | None,
        reopened: str | None,
    ) -> _Plan:
        version = found.trainer_version
        step = version if model_step is None else model_step
        warnings = [*self._link.run.changes, *await self._compared(bookmark)]
        if step == version and reopened is not None:
            warnings.append(f"an earlier call without an answer has restored {reopened!r}")
            return _Plan("restore", step, reopened, tuple(warnings), is_done=True)
        if step == version:
            return _Plan("continue", step, warnings=tuple(warnings))
        if step < version:
            name = await self._checkpoint_of(step, version)
            warnings.append(f"the store is {version - step} steps ahead of the model")
            return _Plan("restore", step, name, tuple(warnings))
        if bookmark is not None and bookmark.step == step == version + 1 and bookmark.trained:
            warnings.append(f"step {version} was trained and never committed; it is settled now")
            return _Plan("settle", step, warnings=tuple(warnings))
        warnings.append(
            f"the store is {step - version} steps behind the model: it is empty, or has lost them"
        )
        return _Plan("catch_up", step, warnings=tuple(warnings))

    async def _compared(self, bookmark: Bookmark | None) -> list[str]:
        if bookmark is None:
            return []
        now = await read_bookmark(self._link.gateway)
        if now.lineage != bookmark.lineage:
            return [
                f"the model was saved with the history {bookmark.lineage}, this store has "
                f"{now.lineage}: it is another run, an imported one, or was created anew"
            ]
        if now.seq < bookmark.seq:
            return [
                f"the store is at mutation {now.seq}, the model was saved at {bookmark.seq}: the "
                "server has lost what came between"
            ]
        return []

    async def _checkpoint_of(self, step: int, version: int) -> str:
        known = [info for info in await self._checkpoints.list() if info.is_complete]
        fitting = [info.name for info in known if info.step == step]
        if fitting:
            return fitting[-1]
        listed = sorted({info.step for info in known})
        raise ResumeRefused(
            f"the model is of step {step}, the store of step {version}, and there is no checkpoint "
            f"of step {step} (there are {listed or 'none'}). Load a model of one of these steps or "
            f"of step {version}, or import a checkpoint of step {step}."
        )

    async def _end_others(self) -> int:
        """End every session that is not of this store; return how many claims that gave back.

        All are ended in one script; what they held in great numbers comes back in further ones.
        """
        link, requeued, more = self._link, 0, True
        while more:
            own = tuple(session.epoch for session in link.sessions if session.epoch)
            ended, claimed, more = await link.call(EndOthers(_SLICE, own))
            requeued += claimed
            if ended:
                _LOG.warning("run %r: %d sessions were ended", link.gateway.keyspace.run, ended)
        return requeued

    async def _settle(self, step: int, trained: Sequence[str]) -> tuple[str, ...]:
        slots = {slot.group_id: slot for slot in await read_slots(self._link.gateway)}
        absent = [name for name in trained if name not in slots]
        taken = [
            name for name in trained if name in slots and slots[name].state is not GroupState.READY
        ]
        if absent or taken:
            raise ResumeRefused(
                f"step {step} cannot be settled as the bookmark says: groups {absent} are gone, "
                f"groups {taken} are not ready (take_over=True ends the session that holds them). "
                f"Load the model of step {step} and train it again."
            )
        await self._buffer.claims.claim_exactly(trained)
        _, settled = await self._buffer.claims.settle_step(step, empty=False)
        return settled

    async def _catch_up(self, step: int) -> int:
        ended, more = 0, True
        while more:
            aborted, evicted, more = await self._link.call(CatchUp(step))
            ended += aborted + evicted
        self._link.tasks.start(self._link.collect)
        return ended

    async def _report(
        self,
        plan: _Plan,
        before: BufferStats,
        *,
        settled: tuple[str, ...] = (),
        requeued: int = 0,
        evicted: int = 0,
    ) -> ResumeReport:
        gateway = self._link.gateway
        slots, now = await read_slots(gateway), await read_stats(gateway)
        meta = gateway.keyspace.control(Key.META)
        admissions = gateway.keyspace.control(Key.ADMISSIONS)
        (loader_state, policy, exhausted), is_open = await gateway.pipeline(
            [
                ("HMGET", meta, "loader_state", "policy", "exhausted"),
                ("HEXISTS", admissions, now.trainer_version),
            ]
        )
        held: dict[str, int] = {}
        for slot in slots:
            if slot.owner is not None:
                held[slot.owner] = held.get(slot.owner, 0) + 1
        stamped = policy == b"in_order" and not is_open
        return ResumeReport(
            action=plan.action,
            step=plan.step,
            found={state.value: getattr(before, state.value) for state in GroupState},
            dispatch_index=now.dispatch_index,
            loader_state=loader_state,
            checkpoint=plan.checkpoint,
            settled=settled,
            requeued=requeued,
            redispatched=sum(_is_ticket(slot) for slot in slots),
            evicted=evicted,
            held=held,
            warnings=plan.warnings,
            exhausted=exhausted == b"1",
            blocked=progress_problem(slots, now, step_is_closed=stamped),
        )

    async def preview(
        self, cfg: SamplerConfig, *, step: int, checkpoint: str | None, mode: RestoreMode
    ) -> PolicyPreview:
        """Do what `ReplayStore.preview` says."""
        if checkpoint is None:
            slots = await read_slots(self._link.gateway)
        else:
            record = await self._checkpoints.record(checkpoint)
            saved = await read_saved(self._link.gateway, record)
            slots = [slot.view({}) for slot in saved.slots] if mode == "all" else []
        found = [
            replace(slot, state=GroupState.READY) if slot.state is GroupState.CLAIMED else slot
            for slot in slots
        ]
        return await preview_policy(found, cfg, step=step)


def _is_ticket(slot: SlotView) -> bool:
    return slot.state is GroupState.RESERVED and slot.owner is None


def progress_problem(
    slots: Sequence[SlotView], stats: BufferStats, *, step_is_closed: bool
) -> str | None:
    """Return why trainer and dispatcher would both wait for ever, or ``None``. Pure.

    Args:
        slots: Live groups.
        stats: The run's counts.
        step_is_closed: Whether groups are stamped and nobody may dispatch the current step's batch
            again.
    """
    version = stats.trainer_version
    live = [slot for slot in slots if slot.state is not GroupState.QUARANTINED]
    own = [slot for slot in live if slot.target_step == version]
    if step_is_closed and stats.dispatch_index >= version and not own:
        return (
            f"step {version} was dispatched and has no group left: close it with "
            f"skip_step({version}), or restore a checkpoint with incomplete='fill'"
        )
    future = [slot for slot in live if slot.start_weight_version > version]
    if stats.occupancy >= stats.capacity and len(future) == len(live):
        return (
            f"all {stats.capacity} places are taken by groups of weight versions above {version}: "
            "publish the trainer version that generated them, or remove groups"
        )
    return None
