"""Groups whose rows cannot be read back: taken out of training at once, and named in the error.

Whoever finds a damaged group (a trainer or one of its ranks that reads its batch, a claim that
needs its record) has it quarantined in the same call, under the holder's epoch and the payload it
has read, so that a healthy group is never taken for it (D62). The step learns of the loss.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from redis_replay._redis.quarantine_scripts import Quarantine
from redis_replay._redis.records import CommittedSlot
from redis_replay.attachment import Attachment
from redis_replay.errors import PayloadDamaged, ReplayError, StaleAttempt, UnknownGroup
from redis_replay.group_record import GroupRecord
from redis_replay.session import Link

_LOG = logging.getLogger(__name__)

DAMAGED: Final = "damaged"
"""The reason under which such groups are quarantined."""


async def quarantine(
    link: Link, holder: Attachment, payloads: Mapping[str, int | None], *, reason: str
) -> tuple[str, ...]:
    """Quarantine groups, all or none. Atomic; may be repeated.

    Args:
        link: Of the store.
        holder: Whose claimed groups may be among them.
        payloads: Group id to the payload fence that its slot was read with.
        reason: Kept in the journal.

    Returns:
        Ids of those that were not quarantined before.

    Raises:
        UnknownGroup, WrongState: a group is not live, or is only reserved; nothing was changed.
        StaleAttempt: a group was committed anew since; nothing was changed.
        ClaimMismatch: a group is claimed by somebody else; nothing was changed.
        StaleOwner: the holder's session has ended; nothing was changed.
    """
    fences = tuple("" if fence is None else str(fence) for fence in payloads.values())
    call = Quarantine(holder.owner, holder.epoch, reason, tuple(payloads), fences)
    reply = await link.ask(call)
    return holder.accept(reply)


@dataclass(slots=True)
class Damage:
    """The damaged groups that one call came across, with the first error of each."""

    found: dict[str, tuple[CommittedSlot, PayloadDamaged]] = field(default_factory=dict)

    @contextmanager
    def noted(self, slot: CommittedSlot) -> Generator[None]:
        """Note the group where the block finds it damaged, and go on after the block."""
        try:
            yield
        except PayloadDamaged as error:
            self.found.setdefault(slot.group_id, (slot, error))

    async def read_records(self, link: Link, slots: Sequence[CommittedSlot]) -> list[GroupRecord]:
        """Return the records of the groups whose record can be read; the others are noted."""
        try:
            return await link.records.read(slots)
        except PayloadDamaged:
            return [record for slot in slots for record in await self._read_record(link, slot)]

    async def _read_record(self, link: Link, slot: CommittedSlot) -> list[GroupRecord]:
        with self.noted(slot):
            return await link.records.read([slot])
        return []

    async def raise_quarantined(
        self, link: Link, holder: Attachment, *, ended: Container[str] = ()
    ) -> None:
        """Quarantine the groups that were noted, and raise; return if there are none.

        A group that ended while it was read is not damaged, but for those that had ``ended`` before
        and have nothing left to quarantine. One that cannot be quarantined, being somebody else's
        or the server being away, is reported all the same.

        Raises:
            PayloadDamaged: the error of the first group; ``quarantined`` names all.
            UnknownGroup: the groups have ended meanwhile.
        """
        quarantined: list[str] = []
        damaged: list[PayloadDamaged] = []
        gone: ReplayError | None = None
        for group_id, (slot, error) in self.found.items():
            try:
                payload = {group_id: slot.payload_fence}
                if group_id not in ended:
                    quarantined += await quarantine(link, holder, payload, reason=DAMAGED)
            except (UnknownGroup, StaleAttempt) as refused:
                gone = gone or refused
                continue
            except ReplayError as refused:
                _LOG.warning("damaged group %r is not quarantined: %s", group_id, refused)
            damaged.append(error)
        if damaged:
            first = damaged[0]
            named = f"; quarantined: {', '.join(quarantined)}" if quarantined else ""
            _LOG.error("%s%s", first, named)
            raise type(first)(
                f"{first}{named}",
                group_id=first.group_id,
                field=first.field,
                row=first.row,
                quarantined=quarantined,
            ) from first
        if gone is not None:
            raise gone
