"""The trainer's session: it claims batches, commits steps, gives back what it did not train.

A trainer group (all ranks of a job) is one owner. Its leader claims; ranks join with the leader's
epoch, read their slice of the batch and acknowledge it; the step commits when all have (D25).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

import anyio

from redis_replay._redis.events import Topic
from redis_replay._redis.records import ControlRecord
from redis_replay.bookmark import Bookmark, read_bookmark
from redis_replay.checkpoint_info import require_name
from redis_replay.checkpoints import Checkpoints
from redis_replay.end_of_data import Tail, read_rest
from redis_replay.errors import DataExhausted, StepStarved
from redis_replay.meta import KVBatchMeta
from redis_replay.owned import OwnedSession
from redis_replay.protocols import PromptGroupSampler
from redis_replay.samplers.trust import require_keepable
from redis_replay.samplers.weight_fifo import WeightFifoSampler
from redis_replay.selection import validate_version
from redis_replay.session import Session
from redis_replay.step_target import (
    StepTarget,
    fewest_groups,
    read_rest_of_oldest,
    read_step_target,
)
from redis_replay.tally import drain_stored_metrics

_RECHECK_SECONDS: Final = 4.0

OnDropped = Literal["shrink", "replace"]
"""What a trainer does about a dropped group: train a smaller batch, or wait for its replacement."""


@dataclass(frozen=True, slots=True)
class StepCommit:
    """What closing a step did.

    Attributes:
        step: The step that was closed; the trainer version is now one more.
        trained: Ids of the groups consumed.
        aborted: Late reservations of passed steps that were aborted (``in_order`` only).
    """

    step: int
    trained: tuple[str, ...]
    aborted: int


class TrainerSession(OwnedSession):
    """``async with store.trainer(owner="job-7") as trainer``; its ``buffer`` acts under the owner.

    Attaching ends an older session of the same owner (with ``takeover`` every other trainer's) and
    gives back what it held. Leaving the block gives the unsettled claims back: ready again, at
    their old place, without a counted attempt. When the session was silent for its lease, or
    another took over, each call raises `ClaimLost` and changes nothing.

    Attributes:
        buffer: Slots and claims under the owner.
        samples: The data plane under the owner.
    """

    def __init__(
        self,
        session: Session,
        *,
        on_dropped: OnDropped = "shrink",
        min_batch_fraction: float = 1.0,
        tail: Tail = "train",
    ) -> None:
        if tail not in ("train", "drop"):
            raise ValueError(f"tail must be 'train' or 'drop', got {tail!r}")
        if on_dropped not in ("shrink", "replace"):
            raise ValueError(f"on_dropped must be 'shrink' or 'replace', got {on_dropped!r}")
        if not 0.0 <= min_batch_fraction <= 1.0:
            raise ValueError(f"min_batch_fraction must be 0 to 1, got {min_batch_fraction}")
        super().__init__(session)
        self._on_dropped = on_dropped
        self._min_batch_fraction = min_batch_fraction
        self._tail: Tail = tail

    @property
    def batches(self) -> tuple[int, ...]:
        """Numbers of the claims that this session holds, for ranks to read."""
        return tuple(self.buffer.claims.batches)

    @property
    def trainer_version(self) -> int:
        """The store's trainer version in the newest reply."""
        return self.buffer.admission.trainer_version

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.buffer.admission.refresh()
        return self

    async def select(
        self,
        sampler: PromptGroupSampler,
        *,
        min_prompt_groups: int,
        max_prompt_groups: int,
        current_train_weight: int | None = None,
        deadline_seconds: float | None = None,
    ) -> tuple[KVBatchMeta, int]:
        """Wait until a sampler on this session's buffer selects a batch, and claim it.

        Cancelled at any instant, it has claimed nothing. ``sampler.select`` is the form that does
        not wait.

        Args:
            sampler: A sampler created on this session's ``buffer``.
            min_prompt_groups: Fewest groups to take.
            max_prompt_groups: Most groups to take.
            current_train_weight: The store's trainer version by default.
            deadline_seconds: How long to wait; for ever by default.

        Raises:
            DataExhausted: the data has ended (`DataPlaneMutationCut.set_loader_state`) and there is
                no batch left; a last one that is not full is taken if the session says so.
            StepStarved: the step lost more groups than the fraction allows, or all of them (close
                it with `skip_step`), or the deadline has passed; the error has all numbers.
                Nothing was claimed.
            ValueError: bounds that select nothing; nothing was touched.
            StoreClosed: the store was closed while waiting.
        """
        wakeups = self._session.link.wakeups
        deadline = math.inf if deadline_seconds is None else anyio.current_time() + deadline_seconds
        known: int | None = None  # as of which ticket the trainer version is
        while True:
            ticket = await wakeups.ticket(Topic.READY)
            moved = await wakeups.ticket(Topic.ADMISSION)
            await self._session.attach()
            weight = current_train_weight
            if weight is None:
                if moved != known:
                    await self.buffer.admission.refresh()
                    known = moved
                weight = self.trainer_version
            minimum, control = min_prompt_groups, self._session.link.gateway.control
            while True:
                meta, groups = await sampler.select(
                    current_train_weight=weight,
                    min_prompt_groups=minimum,
                    max_prompt_groups=max_prompt_groups,
                )
                if meta is not None:
                    return meta, groups
                if await read_rest(self._session.reads, weight) is not None:
                    return await self._select_rest(sampler, weight, minimum, max_prompt_groups)
                lowered = await self._lowered(sampler, weight, min_prompt_groups)
                if lowered == minimum:
                    break
                minimum = lowered
            if anyio.current_time() >= deadline:
                await self._raise_starved(weight, deadline_seconds)
            if not await self._woken(ticket, control, deadline):
                known = None

    async def _woken(self, ticket: int, control: ControlRecord | None, deadline: float) -> bool:
        """Wait until there may be more to select; return whether an event has said so.

        Should one have been missed, the count of mutations tells: it is compared with that of
        ``control``, which was known before it was last tried.
        """
        link = self._session.link
        while True:
            patience = min(_RECHECK_SECONDS, max(0.0, deadline - anyio.current_time()))
            if await link.wakeups.wait(Topic.READY, ticket, at_most_seconds=patience):
                return True
            if anyio.current_time() >= deadline:
                return False
            self._session.require_live()
            await self.buffer.admission.refresh()
            if link.gateway.control != control:
                return False

    async def _select_rest(
        self, sampler: PromptGroupSampler, weight: int, minimum: int, most: int
    ) -> tuple[KVBatchMeta, int]:
        """Claim what is left when nothing more can come: a whole batch, or the tail if wanted."""
        for fewest in (minimum, 1) if self._tail == "train" else (minimum,):
            meta, groups = await sampler.select(
                current_train_weight=weight, min_prompt_groups=fewest, max_prompt_groups=most
            )
            if meta is not None:
                return meta, groups
        left = await read_rest(self._session.reads, weight)
        raise DataExhausted(
            f"the data has ended, nothing is in flight for step {weight}, and {left or 0} ready "
            f"groups are no batch of {minimum} for it",
            left_over=left or 0,
        )

    async def _lowered(self, sampler: PromptGroupSampler, step: int, min_prompt_groups: int) -> int:
        """Return the minimum that the step's losses leave; the same where it stays."""
        if self._on_dropped == "replace" or not self._counts_steps():
            return min_prompt_groups
        reads, fraction = self._session.reads, self._min_batch_fraction
        target, minimum = await read_step_target(reads, step), min_prompt_groups
        if target.shortfall:
            held = len(await self.buffer.claims.owned())
            minimum = target.lowered_minimum(minimum, min_batch_fraction=fraction, held=held)
        if isinstance(sampler, WeightFifoSampler):
            lowest = max(0, step - sampler.max_staleness_versions)
            left = await read_rest_of_oldest(reads, range(lowest, step + 1), at_most=minimum)
            minimum = left if left >= fewest_groups(min_prompt_groups, fraction) else minimum
        return minimum

    def _counts_steps(self) -> bool:
        admission = self.buffer.admission
        return admission.groups_per_step is not None and admission.gate_window is not None

    async def _raise_starved(self, step: int, deadline_seconds: float | None) -> None:
        target = None
        numbers = "the run has no groups_per_step, so what is missing is not known"
        if self.buffer.admission.groups_per_step is not None:
            target = await read_step_target(self._session.reads, step)
            have = target.ready + target.claimed
            numbers = f"it has {have} of {target.wanted} groups: {target.describe()}"
        raise StepStarved(
            f"step {step} had no batch within {deadline_seconds:g} s; {numbers}", target=target
        )

    async def commit_step(
        self, step: int, *, checkpoint: str | None = None, keep: int | None = None
    ) -> StepCommit:
        """Consume all claims of this session and raise the trainer version to ``step + 1``.

        One atomic script. May be repeated: for the same claims it gives the first answer. Make the
        model of step ``step + 1`` durable before this call (D28).

        Args:
            step: The step that was trained; the store's trainer version.
            checkpoint: If given, the same script keeps a checkpoint of this name, of step ``step +
                1``; `Checkpoints.create`.
            keep: If given, older checkpoints that are not pinned are dropped down to this many.

        Raises:
            CheckpointExists: the name is taken, or 128 checkpoints are kept; nothing was settled.
            ConfigurationError: a sampler of this store is not trusted with checkpoints
                (`Checkpoints.require_sampler` says so beforehand); nothing was settled.
            ValueError: a checkpoint's name or a number outside its limits.
            StepMismatch: the store's trainer version is another one.
            ClaimMismatch: there are no claims (`skip_step`), or some that this session has not
                seen.
            UnacknowledgedRanks: ranks are missing; the error lists them.
            ClaimLost: this session has ended; its groups were given back.
        """
        return await self._close_step(step, empty=False, checkpoint=checkpoint, keep=keep)

    async def skip_step(
        self, step: int, *, checkpoint: str | None = None, keep: int | None = None
    ) -> StepCommit:
        """Close a step that has nothing to train: raise the trainer version all the same.

        Arguments as `commit_step`.

        Raises:
            StepMismatch, ClaimLost: as `commit_step`.
        """
        return await self._close_step(step, empty=True, checkpoint=checkpoint, keep=keep)

    async def _close_step(
        self, step: int, *, empty: bool, checkpoint: str | None, keep: int | None
    ) -> StepCommit:
        validate_version("step", step)
        if keep is not None:
            validate_version("keep", keep, least=1)
        name = require_name(checkpoint) if checkpoint is not None else ""
        if name:
            require_keepable(self._session.link.samplers.values())
        aborted, trained = await self.buffer.claims.settle_step(step, empty=empty, checkpoint=name)
        if name:
            await Checkpoints(self._session.link).finish(name, keep=keep)
        return StepCommit(step, trained, aborted)

    async def bookmark(self) -> Bookmark:
        """Return where the store is, for the model of the step that was just trained. A pure read.

        Save it with that model, before `commit_step`. Where the process dies in between,
        `ReplayStore.resume` settles the groups it names.
        """
        found = await read_bookmark(self._session.link.gateway)
        owned = [slot.group_id for slot in await self.buffer.claims.owned()]
        trains = bool(owned or self._session.selected.received)
        return replace(found, step=found.step + trains, trained=tuple(owned))

    async def step_target(self, step: int) -> StepTarget:
        """Return what a step wanted, has and can still get; `read_step_target`."""
        return await read_step_target(self._session.reads, step)

    async def drain_step_reward_metrics(self, step: int) -> dict[str, float]:
        """Return the reward metrics of a step and forget it; `drain_stored_metrics`."""
        return await drain_stored_metrics(self._session, step)

    async def abort_step(self) -> int:
        """Give back all claims of a step that failed; an attempt is counted for each group.

        Atomic. Returns the number of groups. A group over the run's limit is quarantined.
        """
        return await self.buffer.claims.requeue_all(failed=True)

    async def requeue(self) -> int:
        """Give back all claims untrained, without a counted attempt. Atomic."""
        return await self.buffer.claims.requeue_all(failed=False)

    async def transfer_claims(self, *, to: str) -> int:
        """Hand all claims to another live session by its owner name; returns the number of groups.

        Atomic. The receiver takes them over with `adopt_claims`.

        Raises:
            ClaimError: no live session has the name; nothing was changed.
        """
        return await self.buffer.claims.transfer(to, step=self.trainer_version)

    async def adopt_claims(self) -> tuple[KVBatchMeta | None, int]:
        """Read the groups handed to this session, so that it may train and settle them."""
        return await self.buffer.claims.adopt()
