"""The replay buffer: slots of prompt groups, from reservation to training, under one session.

Every mutating call is one atomic script, finishes although its caller is cancelled, and may be
repeated after a lost reply. Names follow the seed's replay buffer; groups are named by id, never by
position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final

from redis_replay._redis.events import Topic
from redis_replay._redis.keys import Key
from redis_replay._redis.scripts import Abort, Evict, Promote, Remove
from redis_replay.admission import Admission
from redis_replay.claims import Claims, distinct_ids
from redis_replay.codec import Value
from redis_replay.commits import Commits, require_group_size
from redis_replay.dynamic_sampling import PromptGroupRecord
from redis_replay.errors import BufferFull, UnknownGroup
from redis_replay.groups import as_rows, batch_meta
from redis_replay.holdings import Holdings
from redis_replay.meta import KVBatchMeta
from redis_replay.reservations import draft_reservation, draft_reservations, validate_group_id
from redis_replay.samplers.trust import Trust
from redis_replay.selection import Eviction, Selection, validate_version
from redis_replay.selections import Selections
from redis_replay.session import Session
from redis_replay.stats import read_rewards, read_slots, read_stats
from redis_replay.types import MAX_GROUPS_PER_CALL, BufferStats, Reservation, SlotView

_RECHECK_SECONDS: Final = 4.0
_EVICT_SLICE: Final = 256

Rows = Sequence[Mapping[str, Value]]


@dataclass
class RedisReplayBuffer:
    """The slots of one run and partition as a session sees and changes them.

    Attributes:
        session: Whose calls these are.
        claims: The session's training claims.
        admission: The admission that samplers on this buffer use.
        holdings: The session's reservations.
    """

    session: Session
    claims: Claims = field(init=False)
    admission: Admission = field(init=False)
    holdings: Holdings = field(init=False)
    commits: Commits = field(init=False)
    selections: Selections = field(init=False)
    _takes: Claims | Selections = field(init=False)

    def __post_init__(self) -> None:
        self.claims = Claims(self.session)
        self.admission = Admission(self.session)
        self.holdings = Holdings(self.session)
        self.commits = Commits(self.session, self.holdings.reservations)
        self.selections = Selections(self.session)
        self._takes = self.claims

    @property
    def partition_id(self) -> str:
        """The partition of all its groups."""
        return self.session.link.gateway.keyspace.partition

    def remember_sampler(self, trust: Trust) -> None:
        """Know a sampler that works on this buffer, for what it must be trusted with."""
        self.session.link.samplers[trust.name] = trust

    def selecting_for_good(self) -> RedisReplayBuffer:
        """Return this buffer for a sampler without training claims; `Selections`.

        What it takes has ended, and is read until the session commits, clears it or ends (D51).
        """
        view = copy(self)
        view._takes = self.selections
        return view

    async def reserve(
        self,
        weight_version: int,
        *,
        target_step: int | None = None,
        group_id: str | None = None,
        prompt_ref: bytes | None = None,
        replacement_index: int = 0,
    ) -> Reservation:
        """Give a new group a place in the buffer.

        Atomic. A live group of the same id is never touched. Cancelled after it was sent, the place
        is given back in the background.

        Args:
            weight_version: Version of the weights that the rollout begins with.
            target_step: Trainer step the group is meant for.
            group_id: Non-empty id of at most 1,024 UTF-8 bytes; a fresh one by default.
            prompt_ref: Opaque reference from which the prompt can be dispatched again, at most 64
                KiB.
            replacement_index: 0 for a first attempt; 1 and more for the replacement of a dropped
                group or the repayment of a borrowed one, which its step is credited with.

        Raises:
            BufferFull: no place, by groups or by bytes; the error names both numbers.
            DuplicateGroup: a live slot has this id.
            ValueError: a version, step or id outside its limits.
        """
        draft = draft_reservation(
            weight_version,
            target_step=target_step,
            group_id=group_id,
            prompt_ref=prompt_ref,
            replacement_index=replacement_index,
        )
        [reservation] = await self.holdings.reserve([draft])
        return reservation

    async def reserve_many(
        self,
        weight_version: int,
        *,
        count: int,
        target_step: int | None = None,
        group_ids: Sequence[str] | None = None,
        prompt_refs: Sequence[bytes | None] | None = None,
    ) -> list[Reservation]:
        """Give a batch of new groups places in the buffer, all or none, in one script.

        Atomic; arguments and errors as `reserve`. One to 1,024 groups, with one id and one
        reference for each where they are given, else a ``ValueError``.
        """
        drafts = draft_reservations(
            weight_version,
            count=count,
            target_step=target_step,
            group_ids=group_ids,
            prompt_refs=prompt_refs,
        )
        return await self.holdings.reserve(drafts)

    async def reserve_when_free(
        self,
        weight_version: int,
        *,
        target_step: int | None = None,
        group_id: str | None = None,
        prompt_ref: bytes | None = None,
        replacement_index: int = 0,
    ) -> Reservation:
        """Wait until there is a place, then `reserve`. Cancelled, it holds nothing.

        Raises:
            StoreClosed: the store was closed while waiting.
            DuplicateGroup, ValueError: as `reserve`.
        """
        draft = draft_reservation(
            weight_version,
            target_step=target_step,
            group_id=group_id,
            prompt_ref=prompt_ref,
            replacement_index=replacement_index,
        )
        wakeups = self.session.link.wakeups
        while True:
            ticket = await wakeups.ticket(Topic.SPACE)
            try:
                [reservation] = await self.holdings.reserve([draft])
                return reservation
            except BufferFull:
                await wakeups.wait(Topic.SPACE, ticket, at_most_seconds=_RECHECK_SECONDS)

    async def take_tickets(self, *, max_tickets: int, weight_version: int) -> list[Reservation]:
        """Take redispatch tickets: reserved groups whose holder is gone, in buffer order.

        Atomic: a ticket goes to exactly one session. It keeps its id, order, target step and prompt
        reference and gets a new fence and start weight. Reservations of this session whose caller
        never learned of them, as of a cut that was cancelled when it had been applied, are returned
        first; so a host that dispatches calls this before it dispatches anew.

        Args:
            max_tickets: At most this many, 1 to 1,024 (else a ``ValueError``).
            weight_version: Version of the weights that the new attempts begin with.
        """
        validate_version("weight_version", weight_version)
        if not 1 <= max_tickets <= MAX_GROUPS_PER_CALL:
            raise ValueError(f"max_tickets must be 1 to {MAX_GROUPS_PER_CALL}, got {max_tickets}")
        return await self.holdings.take_tickets(max_tickets, weight_version)

    async def commit(
        self,
        group_id: str,
        record_or_rows: Rows | PromptGroupRecord,
        *,
        start_weight_version: int,
        end_weight_version: int,
        fence: int | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
        rollout_metrics: Mapping[str, Any] | None = None,
        zero_variance: bool | None = None,
    ) -> None:
        """Store a finished group and make it ready. Never waits for a place: it has one.

        The payload is written first, then one script makes the group visible: wholly or not at all.
        Repeating it with the same attempt is one commit. Refused or failed, the group stays
        reserved. Of many at once a few are written at a time, so that no more groups than those
        are held in memory twice; the rows must not change before it returns.

        Args:
            group_id: A group that this session reserved (or took as a ticket).
            record_or_rows: One mapping of field to value per sample, as many as the run's group
                size; or the record of a group (`rows_of_record`).
            start_weight_version: Version the rollout began with: the reserved one, or for a
                redispatched group a larger one.
            end_weight_version: Version it ended with.
            fence: The reservation's fence, when it was made through another object.
            tags: One dictionary of small facts per sample.
            rollout_metrics: Metrics of the rollout, kept with the group.
            zero_variance: Whether the tally counts the group as one without signal; by default as
                `rewards_carry_no_signal` says of all its rewards.

        Raises:
            UnknownGroup: no live slot; nothing is left behind.
            StaleAttempt: another attempt owns the slot now.
            ValueError: a wrong number of rows, a version below the reserved one, a reward that is
                not finite.
            TypeError: a value cannot be stored; the message names field and type.
            StoreOutOfMemory: the server is full; the group stays reserved and the commit may be
                repeated.
        """
        validate_group_id(group_id)
        validate_version("start_weight_version", start_weight_version)
        validate_version("end_weight_version", end_weight_version, least=start_weight_version)
        rows, metrics = as_rows(record_or_rows)
        require_group_size(self.session, group_id, len(rows))
        if tags is not None and len(tags) != len(rows):
            raise ValueError(f"group {group_id!r}: {len(tags)} tags for {len(rows)} rows")
        await self.session.attach()
        await self.commits.commit(
            group_id,
            rows,
            start=start_weight_version,
            finish=end_weight_version,
            fence=fence,
            tags=() if tags is None else tags,
            rollout_metrics=metrics if rollout_metrics is None else rollout_metrics,
            zero_variance=zero_variance,
        )

    async def abort(
        self, group_id: str, *, fence: int | None = None, reason: str = "aborted"
    ) -> None:
        """End a reserved group whose rollout will not finish; its place is free at once.

        Atomic. A group that was committed or redispatched meanwhile is left alone.

        Raises:
            UnknownGroup: no live slot.
            WrongState: it is ready or claimed.
            StaleAttempt: another attempt owns it.
        """
        await self.session.attach()
        known = fence if fence is not None else await self.commits.fence_of(group_id)
        await self.session.call(Abort(group_id, known, reason))
        self.holdings.reservations.pop(group_id, None)
        await self.session.link.collect()

    async def remove(self, group_ids: Sequence[str], *, reason: str = "removed") -> int:
        """Take reserved, ready or quarantined groups out of the buffer, all or none.

        Atomic; their payload is freed afterwards. Returns the number.

        Raises:
            UnknownGroup: one is not live; nothing was removed.
            WrongState: one is claimed; nothing was removed.
            ValueError: none, too many, or one twice.
        """
        named = distinct_ids(group_ids)
        count = await self.session.call(Remove(reason=reason, group_ids=named))
        for group_id in named:
            self.holdings.reservations.pop(group_id, None)
        await self.session.link.collect()
        return count

    async def remove_group(self, group_id: str, *, reason: str = "removed") -> None:
        """`remove` for one group."""
        await self.remove([group_id], reason=reason)

    async def evict(self, eviction: Eviction) -> int:
        """Drop the ready groups an eviction names and free their payload; return how many.

        Atomic in slices of 256, so that no call holds the server. May be repeated.
        """
        by_step, below = int(eviction.by_target_step), max(0, eviction.below)
        call = Evict(by_step, below, limit=_EVICT_SLICE, policy=self.admission.policy)
        total = dropped = await self.session.call(call)
        while dropped == _EVICT_SLICE:
            dropped = await self.session.call(call)
            total += dropped
        if total:
            await self.session.link.collect()
        return total

    async def claim(self, selection: Selection) -> tuple[KVBatchMeta | None, int]:
        """Claim what a policy's rule picks; `Claims.claim`."""
        return await self._takes.claim(selection, policy=self.admission.policy)

    async def claim_for_training(self, group_ids: Sequence[str]) -> KVBatchMeta:
        """Claim named ready groups, all or none, in the order given; `Claims.claim_exactly`."""
        meta, _ = await self._takes.claim_exactly(group_ids, policy=self.admission.policy)
        if meta is None:
            raise UnknownGroup(f"none of the groups {list(group_ids)} could be claimed")
        return meta

    async def training_owned_group_ids(self) -> list[str]:
        """Return the groups this session has claimed and not settled, in buffer order."""
        return [slot.group_id for slot in await self.claims.owned()]

    async def training_owned_replay_groups(self) -> list[KVBatchMeta]:
        """Return the metas of the groups this session has claimed, one each, in buffer order."""
        slots = await self.claims.owned()
        records = await self.session.link.records.read(slots)
        return [
            batch_meta(self.partition_id, [slot], [record], current_train_weight=None)
            for slot, record in zip(slots, records, strict=True)
        ]

    async def release_training_claims(self, group_ids: Sequence[str]) -> None:
        """Consume exactly the named claims, which must be all that this session owns.

        Atomic. To give groups back untrained use `requeue`.

        Raises:
            ClaimMismatch: unknown and missing ids, both named; nothing was released.
            ValueError: an id stands twice; nothing was released.
        """
        await self.claims.settle_exactly(group_ids)

    async def requeue(self, group_ids: Sequence[str]) -> int:
        """Give claimed groups back untrained; `Claims.requeue`. No attempt is counted."""
        return await self.claims.requeue(group_ids)

    async def quarantine(self, group_ids: Sequence[str], *, reason: str = "quarantined") -> int:
        """Take ready or own claimed groups out of training; `Claims.quarantine`."""
        return await self.claims.quarantine(group_ids, reason=reason)

    async def reinstate(self, group_ids: Sequence[str]) -> int:
        """Bring quarantined groups back to be trained or generated; `Claims.reinstate`."""
        return await self.claims.reinstate(group_ids)

    async def promote_ready_group(self, *, to_target_step: int) -> int | None:
        """Lend a ready group of the furthest later step to a step; return the step it came from.

        Atomic. ``None`` when no later step has a ready group; reserved groups never lend.

        Raises:
            ValueError: the step is below the trainer version.
        """
        validate_version("to_target_step", to_target_step)
        lent = await self.session.call(Promote(to_step=to_target_step))
        return None if lent is None else lent[0]

    async def count_for_target_step(self, step: int) -> int:
        """Return how many groups are reserved, ready or claimed for a target step. A pure read."""
        reads = self.session.reads
        keys = (Key.RESERVED_BY_STEP, Key.READY_BY_STEP, Key.CLAIMED_BY_STEP)
        counts = await reads.pipeline(
            [("ZCOUNT", reads.keyspace.control(key), step, step) for key in keys], atomic=True
        )
        return sum(counts)

    async def size(self) -> int:
        """Return how many groups hold a place: reserved, ready and claimed. A pure read."""
        return (await self.stats()).occupancy

    async def stats(self) -> BufferStats:
        """Return live counts and totals, read in one instant."""
        return await read_stats(self.session.reads)

    async def rewards(self, group_ids: Sequence[str]) -> list[tuple[float, ...] | None]:
        """Return the rewards of groups in the order given, one per sample. A pure read.

        ``None`` stands for a group without rewards, and for one that is not committed (any more).
        """
        waiting = await self._takes.waiting()
        return await read_rewards(self.session.reads, group_ids, waiting=waiting)

    async def slots(self) -> list[SlotView]:
        """Return a view of every live slot in buffer order, read in one instant."""
        waiting = [slot.view({}) for slot in await self._takes.waiting()]
        slots = await read_slots(self.session.reads)
        return sorted([*waiting, *slots], key=lambda slot: slot.order) if waiting else slots
