"""Training claims of a session: taken, read, settled, given back, handed over.

A claim belongs to the session that took it. A claim whose caller was cancelled before it saw the
groups is given back at once; one whose outcome is unknown is found and given back before the next
one, so a step never settles groups that nobody trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.lowlevel

from redis_replay._redis.frames import SessionScript
from redis_replay._redis.keys import Key
from redis_replay._redis.quarantine_scripts import Reinstate
from redis_replay._redis.records import CommittedSlot, SlotRecord
from redis_replay._redis.scripts import Claim, Claimed, ClaimExact, Requeue, Settle, Transfer
from redis_replay.checkpoint_info import new_saved_id, now_ms
from redis_replay.damage import Damage, quarantine
from redis_replay.errors import PayloadDamaged, StoreError
from redis_replay.group_record import GroupRecord
from redis_replay.groups import batch_meta
from redis_replay.meta import KVBatchMeta
from redis_replay.selection import Selection
from redis_replay.session import Session
from redis_replay.stats import read_held, read_named
from redis_replay.types import MAX_GROUPS_PER_CALL

Taken = tuple[Claimed, KVBatchMeta] | None


@dataclass
class Claims:
    """The claims of one session.

    Attributes:
        batches: Claim numbers that this session has seen and not settled, in order.
    """

    session: Session
    batches: list[int] = field(default_factory=list)
    _may_hold_unseen: bool = False
    _turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))

    def forget(self) -> None:
        """Know nothing of earlier claims."""
        self.batches.clear()
        self._may_hold_unseen = False

    async def claim(
        self, selection: Selection, *, policy: str = ""
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim what a policy's rule picks; ``(None, 0)`` when too few are eligible.

        Atomic: the chosen groups become this session's together, and no other session's.

        Raises:
            PolicyMismatch: the run is bound to another policy than this, if one is given.
            TooManyClaims: this session would hold more groups than a step settles.
            StaleOwner: this session has ended (`ClaimLost` for a trainer's).
        """
        call = Claim(*selection.arguments, policy)
        return await self._receive(call, current_train_weight=selection.highest)

    async def claim_exactly(
        self, group_ids: Sequence[str], *, policy: str = ""
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim named ready groups, all or none, in the order given.

        Raises:
            ValueError: none, too many, or one twice.
            UnknownGroup, WrongState: a group is not ready; nothing was claimed.
        """
        return await self._receive(ClaimExact(policy, group_ids=distinct_ids(group_ids)))

    async def _receive(
        self, call: SessionScript[Claimed | None], *, current_train_weight: int | None = None
    ) -> tuple[KVBatchMeta | None, int]:
        await self.session.attach()
        work = partial(self._take, call, current_train_weight)
        taken = await self.session.link.tasks.finish(work, unclaimed=self._give_back_unread)
        return (None, 0) if taken is None else (taken[1], len(taken[0].slots))

    async def _take(self, call: SessionScript[Claimed | None], weight: int | None) -> Taken:
        """Claim and describe. Only groups whose metas were read count as seen."""
        async with self._turn:
            await self._requeue_unseen()
            try:
                found = await self.session.call_now(call)
            except StoreError:
                self._may_hold_unseen = True
                raise
            if found is None:
                return None
            self._may_hold_unseen = True
            damage = Damage()
            with suppress(PayloadDamaged):  # read one by one then
                self.session.link.records.keep(found.slots, found.records)
            records = await damage.read_records(self.session.link, found.slots)
            await damage.raise_quarantined(self.session.link, self.session.attachment)
            meta = self._described(found.slots, records, weight)
            self.batches.append(found.number)
            self._may_hold_unseen = False
            return found, meta

    async def _give_back_unread(self, taken: Taken) -> None:
        """Requeue groups whose claimer was cancelled before it could know them."""
        if taken is not None and taken[0].number in self.batches:
            self.batches.remove(taken[0].number)
            self._may_hold_unseen = True
        await self.give_back_unseen()

    async def _describe(
        self, slots: Sequence[SlotRecord], current_train_weight: int | None
    ) -> KVBatchMeta:
        records = await self.session.link.records.read(slots)
        return self._described(slots, records, current_train_weight)

    def _described(
        self,
        slots: Sequence[CommittedSlot],
        records: Sequence[GroupRecord],
        current_train_weight: int | None,
    ) -> KVBatchMeta:
        partition = self.session.link.gateway.keyspace.partition
        return batch_meta(partition, slots, records, current_train_weight=current_train_weight)

    async def waiting(self) -> list[SlotRecord]:
        """Return nothing: what no caller has received is given back, not kept."""
        return []

    async def give_back_unseen(self) -> None:
        """Requeue claims that no caller has seen, because their reply or metas never came."""
        async with self._turn:
            await self._requeue_unseen()

    async def _requeue_unseen(self) -> None:
        if not self._may_hold_unseen:
            return
        await self.session.settle_doubts()
        unseen = [slot.group_id for slot in await self.owned() if slot.batch not in self.batches]
        if unseen:
            await self.requeue(unseen)
        self._may_hold_unseen = False

    async def owned(self) -> list[SlotRecord]:
        """Return the claimed slots of this session in buffer order. A pure read."""
        session = self.session
        held = await read_held(session.reads, Key.CLAIMED_BY_OWNER, session.epoch)
        return [slot for slot in held if slot.batch is not None]

    async def adopt(self) -> tuple[KVBatchMeta | None, int]:
        """Take over responsibility for all groups this session owns, after a transfer to it."""
        slots = await self.owned()
        if not slots:
            return None, 0
        self.batches = sorted({slot.batch for slot in slots if slot.batch is not None})
        return await self._describe(slots, None), len(slots)

    async def settle_step(
        self, step: int, *, empty: bool, checkpoint: str = ""
    ) -> tuple[int, tuple[str, ...]]:
        """Consume the claims and raise the trainer version to ``step + 1``, in one script.

        With a checkpoint's name, the script keeps one too.

        Returns:
            The number of late reservations aborted, and the ids of the trained groups.
        """
        await anyio.lowlevel.checkpoint()  # what a cancelled caller left is put back first
        await self.give_back_unseen()
        call = Settle(
            step=step,
            exact=0,
            empty=int(empty),
            checkpoint=checkpoint,
            created_ms=now_ms() if checkpoint else 0,
            batches=(*self.batches, *self.session.selected.received),
            saved_ids=(new_saved_id(),) if checkpoint else (),
        )
        return await self._settle(call)

    async def settle_exactly(self, group_ids: Sequence[str]) -> tuple[str, ...]:
        """Consume exactly the named claims, which must be all of this session's.

        Raises:
            ValueError: one id twice, or too many.
            ClaimMismatch: unknown or missing ids, both named; nothing was released.
        """
        named = distinct_ids(group_ids)
        self.session.selected.require_none("released", named)
        batches = tuple(self.batches)
        call = Settle(step=None, exact=1, empty=0, batches=batches, group_ids=named)
        return (await self._settle(call))[1]

    async def _settle(self, call: Settle) -> tuple[int, tuple[str, ...]]:
        aborted, trained = await self.session.call(call)
        self.batches = [number for number in self.batches if number not in call.batches]
        self.session.selected.settled(call.batches)
        self.session.link.tasks.start(self.session.link.collect)
        return aborted, trained

    async def requeue(self, group_ids: Sequence[str], *, failed: bool = False) -> int:
        """Give named claims back: ready again, at their old place. Atomic; returns the number.

        Raises:
            ValueError: one id twice, or too many.
            ClaimMismatch: a group is claimed by somebody else; nothing was changed.
            UnknownGroup, WrongState: a group is not claimed; nothing was changed.
        """
        call = Requeue(all=0, failed=int(failed), group_ids=distinct_ids(group_ids))
        self.session.selected.require_none("given back", call.group_ids)
        return await self._requeue(call)

    async def requeue_all(self, *, failed: bool) -> int:
        """Give all claims of this session back. Atomic; returns the number.

        Raises:
            ClaimMismatch: there are groups selected for good, which cannot be; nothing was changed.
        """
        self.session.selected.require_none("given back")
        return await self._requeue(Requeue(all=1, failed=int(failed), group_ids=()))

    async def _requeue(self, call: Requeue) -> int:
        count, _ = await self.session.call(call)
        self._forget_batches(() if call.all else await self.owned())
        return count

    async def quarantine(self, group_ids: Sequence[str], *, reason: str) -> int:
        """Take named groups out of training: ready ones, and those this session has claimed.

        Atomic; may be repeated. They keep their rows, hold no place, and can be read and removed.

        Returns:
            How many were not quarantined before.

        Raises:
            ValueError: one id twice, none, or too many.
            ClaimMismatch: a group is claimed by somebody else; nothing was changed.
            UnknownGroup, WrongState: a group is not live or is reserved; nothing was changed.
        """
        named = distinct_ids(group_ids)
        await self.session.attach()
        slots = await read_named(self.session.reads, named)
        fences = [None if slot is None else slot.payload_fence for slot in slots]
        payloads = dict(zip(named, fences, strict=True))
        taken = await quarantine(
            self.session.link, self.session.attachment, payloads, reason=reason
        )
        self._forget_batches(await self.owned())
        return len(taken)

    async def reinstate(self, group_ids: Sequence[str]) -> int:
        """Bring quarantined groups back: finished ones ready, others as redispatch tickets.

        Atomic. They keep their place in buffer order; attempts and requeues count from the
        beginning. A damaged group is quarantined again by who reads it.

        Returns:
            How many.

        Raises:
            BufferFull: there are no places for them; nothing was changed.
            UnknownGroup, WrongState: one is not live, or not quarantined; nothing was changed.
            ValueError: one id twice, none, or too many.
        """
        named = distinct_ids(group_ids)
        ready, tickets = await self.session.call(Reinstate(named))
        return ready + tickets

    def _forget_batches(self, owned: Iterable[SlotRecord]) -> None:
        """Forget the claims of which this session holds no group any more."""
        kept = {slot.batch for slot in owned}
        self.batches = [number for number in self.batches if number in kept]
        self.session.link.tasks.start(self.session.link.collect)

    async def transfer(self, receiver: str, *, step: int) -> int:
        """Hand all claims to another live session. Atomic; returns the number of groups.

        Raises:
            ClaimMismatch: there are groups selected for good, which cannot be handed over.
        """
        self.session.selected.require_none("handed over")
        groups = await self.session.call(Transfer(receiver=receiver, step=step))
        self.batches.clear()
        return groups


def distinct_ids(group_ids: Iterable[str]) -> tuple[str, ...]:
    """Return ids as a tuple; one that stands twice, none at all or too many is a ``ValueError``."""
    named = tuple(group_ids)
    repeated = sorted(name for name, count in Counter(named).items() if count > 1)
    if repeated:
        raise ValueError(f"groups are named more than once: {repeated}; nothing was changed")
    if not 1 <= len(named) <= MAX_GROUPS_PER_CALL:
        raise ValueError(
            f"{len(named)} groups were named; one call takes 1 to {MAX_GROUPS_PER_CALL}"
        )
    return named
