"""Records that scripts write and Python reads: slots, owners, packed lists, reply heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final, NamedTuple, Protocol, cast

from redis_replay.errors import StoreCorrupted
from redis_replay.types import GroupState, SlotView


def unpack_items(packed: bytes) -> list[bytes]:
    """Undo ``text.pack`` of the Lua library: each item as its length, a colon and its bytes."""
    items: list[bytes] = []
    at = 0
    while at < len(packed):
        colon = packed.index(b":", at)
        at = colon + 1 + int(packed[at:colon])
        items.append(packed[colon + 1 : at])
    return items


_STATES: Final = {state.value: state for state in GroupState}
_NEVER_ABSENT: Final = itemgetter(0, 1, 2, 7, 9, 13)
"""Order, fence, start, attempt, requeues and replacement among the numbers of a slot's record."""


class SlotRecord(NamedTuple):
    """A slot as the scripts write it: fifteen words, ``-`` for none (``record.lua``).

    A tuple, because a claim makes one for each of its groups.
    """

    group_id: str
    state: GroupState
    order: int
    fence: int
    start: int
    finish: int | None
    target: int | None
    payload_fence: int | None
    epoch: int | None
    attempt: int
    batch: int | None
    requeues: int
    written: int | None
    payload_bytes: int | None
    dispatch: int | None
    replacement: int

    @classmethod
    def parse(cls, group_id: bytes, record: bytes) -> SlotRecord:
        """Read one record.

        Raises:
            StoreCorrupted: it does not have the fifteen words it must have.
        """
        try:
            name, *words = record.decode("ascii").split(" ")
            numbers = [None if word == "-" else int(word) for word in words]
            if None in _NEVER_ABSENT(numbers):
                raise ValueError("a number that is never absent is")
            return cls(group_id.decode(), _STATES[name], *cast(list[Any], numbers))
        except (ValueError, LookupError, TypeError) as broken:
            raise StoreCorrupted(
                f"slot {group_id!r} has the record {record!r}, which is not readable ({broken})"
            ) from broken

    @classmethod
    def parse_pairs(cls, items: list[bytes]) -> list[SlotRecord]:
        """Read a flat list of ids and records."""
        return [cls.parse(i, r) for i, r in zip(items[::2], items[1::2], strict=True)]

    @property
    def packed(self) -> bytes:
        """The record as the scripts write it."""
        texts = ("-" if word is None else str(word) for word in self[2:])
        return f"{self.state.value} {' '.join(texts)}".encode("ascii")

    @property
    def member(self) -> str:
        """The slot's member in every sorted set that lists it."""
        return f"{self.order:016d}:{self.group_id}"

    def view(self, owner_names: dict[int, str]) -> SlotView:
        """Return the public view; an epoch that is nobody's any more shows no owner."""
        return SlotView(
            group_id=self.group_id,
            state=self.state,
            order=self.order,
            start_weight_version=self.start,
            end_weight_version=self.finish,
            target_step=self.target,
            fence=self.fence,
            payload_fence=self.payload_fence,
            owner=owner_names.get(self.epoch) if self.epoch is not None else None,
            attempt=self.attempt,
            batch=self.batch,
            training_requeues=self.requeues,
            replacement_index=self.replacement,
        )


class CommittedSlot(Protocol):
    """What is needed of a slot to find and describe a group's rows."""

    @property
    def group_id(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def finish(self) -> int | None: ...

    @property
    def target(self) -> int | None: ...

    @property
    def payload_fence(self) -> int | None: ...


class ClaimedSlot(NamedTuple):
    """What a claim says of each of its groups, which is no more than its caller needs."""

    group_id: str
    start: int
    finish: int
    target: int | None
    payload_fence: int

    @classmethod
    def parse_all(cls, group_ids: list[bytes], facts: bytes) -> list[ClaimedSlot]:
        """Read the ids of groups, and the words of all of them, ``-`` for no target step."""
        numbers: list[Any] = [None if word == b"-" else int(word) for word in facts.split()]
        columns = (numbers[at::4] for at in range(4))
        return [
            cls(group_id.decode(), *words)
            for group_id, *words in zip(group_ids, *columns, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    """An attached session: ``<epoch> <heartbeat> <role> <world> <lease ms> <host>``."""

    epoch: int
    heartbeat: int
    role: str
    world: int
    lease_seconds: float
    host: str

    @classmethod
    def parse(cls, record: bytes) -> OwnerRecord:
        """Read one record.

        Raises:
            StoreCorrupted: it does not have the six words it must have.
        """
        try:
            epoch, heartbeat, role, world, lease_ms, host = record.decode().split(" ", 5)
            return cls(int(epoch), int(heartbeat), role, int(world), int(lease_ms) / 1000, host)
        except ValueError as broken:
            raise StoreCorrupted(
                f"an owner has the record {record!r}, which is not readable ({broken})"
            ) from broken


CONTROL_FIELDS: Final = ("seq", "dispatch_index", "trainer_version", "gate_window")
"""Fields of ``meta`` that make a `ControlRecord`, in the order of every reply's head."""


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """What every reply says of the run: the mirror that synchronous readers answer from."""

    seq: int
    dispatch_index: int
    trainer_version: int
    gate_window: int | None

    @classmethod
    def parse(cls, head: list[bytes]) -> ControlRecord | None:
        """Read the head of a reply after its code; ``None`` where the run could not be read."""
        seq, cursor, version, window = head
        if not seq or not cursor:
            return None
        return cls(int(seq), int(cursor), int(version), int(window) if window else None)


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint as the scripts record it (``checkpoint.lua``)."""

    name: str
    state: str
    saved_id: str
    seq: int
    store_epoch: int
    lineage: str
    schema: int
    trainer_version: int
    dispatch_index: int
    reserved: int
    ready: int
    claimed: int
    quarantined: int
    payload_bytes: int
    created_ms: int
    pinned: bool
    digest: str
    extra: bytes

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there; an import that was cut short leaves one that is not."""
        return self.state == "complete"

    def with_digest(self, digest: str) -> CheckpointRecord:
        """Return the record with the digest of its copies."""
        return replace(self, digest=digest)

    @classmethod
    def parse(cls, name: str, record: bytes) -> CheckpointRecord:
        """Read one record.

        Raises:
            StoreCorrupted: it does not have the items it must have.
        """
        try:
            state, saved_id, seq, epoch, lineage, *numbers, pinned, digest, extra = unpack_items(
                record
            )
            schema, version, cursor, reserved, ready, claimed, bad, size, created = map(
                int, numbers
            )
            return cls(
                *(name, state.decode(), saved_id.decode(), int(seq), int(epoch), lineage.decode()),
                *(schema, version, cursor, reserved, ready, claimed, bad, size, created),
                *(pinned == b"1", digest.decode(), extra),
            )
        except ValueError as broken:
            raise StoreCorrupted(
                f"checkpoint {name!r} has the record {record!r}, which is not readable ({broken})"
            ) from broken
