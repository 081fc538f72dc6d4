"""Groups that a session has selected for good: they have ended, and their rows are still read.

A sampler without training claims selects so (D51). The store keeps the rows until the session lets
the groups go or ends; this is what its process knows of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from redis_replay._redis.gateway import Reads
from redis_replay._redis.keys import Key
from redis_replay._redis.records import SlotRecord, unpack_items
from redis_replay.errors import ClaimMismatch


@dataclass
class Selected:
    """What one session has selected for good and not let go.

    Attributes:
        batches: Number of a selection to its groups, as they were when they were ready.
        undelivered: Groups that no caller has received: of a cancelled call, or one without an
            answer. The next selection hands them out first.
    """

    batches: dict[int, tuple[SlotRecord, ...]] = field(
        default_factory=dict[int, tuple[SlotRecord, ...]]
    )
    undelivered: list[SlotRecord] = field(default_factory=list[SlotRecord])

    def forget(self) -> None:
        """Know nothing of earlier selections, which a restore has ended."""
        self.batches.clear()
        self.undelivered.clear()

    @property
    def slots(self) -> dict[str, SlotRecord]:
        """The groups by id, the newest of an id."""
        return {slot.group_id: slot for batch in self.batches.values() for slot in batch}

    @property
    def received(self) -> tuple[int, ...]:
        """Numbers of the selections that callers have received wholly."""
        waiting = set(self.undelivered)
        return tuple(number for number, batch in self.batches.items() if waiting.isdisjoint(batch))

    def settled(self, numbers: Iterable[int]) -> None:
        """Forget selections that a step has let go."""
        for number in numbers:
            self.batches.pop(number, None)

    def let_go(self, group_ids: Iterable[str]) -> None:
        """Forget groups that were let go."""
        gone = set(group_ids)
        for number, batch in list(self.batches.items()):
            left = tuple(slot for slot in batch if slot.group_id not in gone)
            self.batches[number] = left
            if not left:
                del self.batches[number]
        self.undelivered = [slot for slot in self.undelivered if slot.group_id not in gone]

    def require_none(self, doing: str, group_ids: Iterable[str] | None = None) -> None:
        """Return if none of the named groups, or none at all, was selected for good.

        Raises:
            ClaimMismatch: some were, so there is no claim on them; nothing was changed.
        """
        held = self.slots
        named = [name for name in (held if group_ids is None else group_ids) if name in held]
        if named:
            raise ClaimMismatch(
                f"groups {named[:8]} were selected for good by a sampler without training claims, "
                f"so they cannot be {doing}; nothing was changed. Commit the step, or declare "
                "supports_training_claims = True in the sampler's class.",
                unknown=named,
            )


async def read_selected(reads: Reads, epoch: int | None = None) -> dict[int, list[SlotRecord]]:
    """Return the groups selected for good and not let go, by selection. A pure read.

    Args:
        reads: Of the run, or of the session.
        epoch: Of one session; all sessions by default.
    """
    [stored] = await reads.pipeline([("HGETALL", reads.keyspace.control(Key.SELECTED))])
    return parse_selected(stored, epoch)


def parse_selected(
    stored: Mapping[bytes, bytes], epoch: int | None = None
) -> dict[int, list[SlotRecord]]:
    """Read the hash as ``selected.lua`` writes it.

    Raises:
        StoreCorrupted: a record in it is not readable.
    """
    found: dict[int, list[SlotRecord]] = {}
    for number, packed in stored.items():
        holder, *items = unpack_items(packed)
        if epoch is None or int(holder) == epoch:
            found[int(number)] = SlotRecord.parse_pairs(items)
    return found
