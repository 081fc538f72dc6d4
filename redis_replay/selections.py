"""Selections for good: what a sampler without training claims takes out of the buffer (D51).

The groups end in the script that selects them, so nothing gives them back: not a failed step, not
the end of their session, which loses them as it does in the seed. What a caller never received,
being cancelled or without an answer, is handed out by the session's next selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from redis_replay._redis.records import SlotRecord
from redis_replay._redis.selecting_scripts import SelectForGood
from redis_replay.claims import distinct_ids
from redis_replay.damage import Damage
from redis_replay.errors import PayloadDamaged, StoreError
from redis_replay.groups import batch_meta
from redis_replay.meta import KVBatchMeta
from redis_replay.selected import read_selected
from redis_replay.selection import Selection
from redis_replay.session import Session

Taken = tuple[list[SlotRecord], KVBatchMeta | None]


@dataclass
class Selections:
    """The selections of one session; it takes the place of `Claims` where a sampler has none."""

    session: Session
    _may_hold_unseen: bool = False
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    def forget(self) -> None:
        """Know nothing of earlier selections."""
        self.session.selected.forget()
        self._may_hold_unseen = False

    async def claim(
        self, selection: Selection, *, policy: str = ""
    ) -> tuple[KVBatchMeta | None, int]:
        """Select what a policy's rule picks; ``(None, 0)`` when too few are eligible.

        Atomic: the chosen groups have ended, as trained, and can be read by this session.

        Raises:
            TooManyClaims: this session would read more groups than a step settles.
            PolicyMismatch: the run is bound to another policy than this, if one is given.
            PayloadDamaged: a group cannot be read back; the others come with the next call.
            StaleOwner: this session has ended (`ClaimLost` for a trainer's).
        """
        return await self._receive(SelectForGood(*selection.arguments, policy))

    async def claim_exactly(
        self, group_ids: Sequence[str], *, policy: str = ""
    ) -> tuple[KVBatchMeta | None, int]:
        """Select named ready groups, all or none, in the order given.

        Raises:
            ValueError: none, too many, or one twice.
            UnknownGroup, WrongState: a group is not ready; nothing was selected.
            PayloadDamaged, StaleOwner: as `claim`.
        """
        return await self._receive(SelectForGood("", 0, 0, 0, 0, policy, distinct_ids(group_ids)))

    async def waiting(self) -> list[SlotRecord]:
        """Return the groups that no caller has received yet, for the sampler to choose again."""
        async with self._turn:
            await self._find_unseen()
            return list(self.session.selected.undelivered)

    async def _receive(self, call: SelectForGood) -> tuple[KVBatchMeta | None, int]:
        await self.session.attach()
        work = partial(self._take, call)
        slots, meta = await self.session.link.tasks.finish(work, unclaimed=self._keep)
        return meta, len(slots)

    async def _take(self, call: SelectForGood) -> Taken:
        """Select and describe. Only groups whose metas were read count as received."""
        async with self._turn:
            await self._find_unseen()
            slots = await self._chosen(call)
            if not slots:
                return [], None
            link, selected, damage = self.session.link, self.session.selected, Damage()
            records = await damage.read_records(link, slots)
            if damage.found:
                lost = damage.found.keys()
                selected.undelivered = [s for s in selected.undelivered if s.group_id not in lost]
                await damage.raise_quarantined(link, self.session.attachment, ended=lost)
            meta = batch_meta(
                link.gateway.keyspace.partition,
                slots,
                records,
                current_train_weight=call.highest if call.rule else None,
            )
            selected.undelivered = [s for s in selected.undelivered if s not in slots]
            return slots, meta

    async def _chosen(self, call: SelectForGood) -> list[SlotRecord]:
        """Return the groups to hand out: those that wait, then what the script selects."""
        waiting = self.session.selected.undelivered
        if not call.rule:
            held = {s.group_id: s for s in waiting if s.group_id in call.group_ids}
            rest = tuple(name for name in call.group_ids if name not in held)
            found = await self._select(replace(call, group_ids=rest)) if rest else []
            held |= {slot.group_id: slot for slot in found}
            return [held[name] for name in call.group_ids]
        first = waiting[: call.maximum]
        least, most = max(1, call.minimum - len(first)), call.maximum - len(first)
        more = await self._select(replace(call, minimum=least, maximum=most)) if most else []
        return [*first, *more] if len(first) + len(more) >= call.minimum else []

    async def _select(self, call: SelectForGood) -> list[SlotRecord]:
        selected = self.session.selected
        try:
            found = await self.session.call_now(call)
        except StoreError:
            self._may_hold_unseen = True
            raise
        if found is None:
            return []
        selected.batches[found.number] = tuple(found.slots)
        selected.undelivered.extend(found.slots)
        with suppress(PayloadDamaged):  # read one by one then
            self.session.link.records.keep(found.slots, found.records)
        return found.slots

    async def _find_unseen(self) -> None:
        """Look for selections of this session whose answer never came."""
        if not self._may_hold_unseen:
            return
        await self.session.settle_doubts()
        selected = self.session.selected
        for number, slots in (await read_selected(self.session.reads, self.session.epoch)).items():
            if number not in selected.batches:
                selected.batches[number] = tuple(slots)
                selected.undelivered.extend(slots)
        self._may_hold_unseen = False

    async def _keep(self, taken: Taken) -> None:
        """Leave groups whose caller was cancelled for the next selection."""
        self.session.selected.undelivered[:0] = taken[0]
