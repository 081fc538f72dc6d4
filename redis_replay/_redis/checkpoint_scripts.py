"""Scripts about checkpoints, as typed calls. None carries a call number: each may be repeated.

A checkpoint's copies are keys of their own, named by its id: ``saved_ids`` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from redis_replay._redis.frames import (
    CLAIM_ENDING_KEYS,
    META_KEYS,
    READY_KEYS,
    RESERVED_KEYS,
    RETIRING_KEYS,
    SESSION_KEYS,
    StoreScript,
    Unanswered,
)
from redis_replay._redis.keys import Key
from redis_replay._redis.records import CheckpointRecord

SAVED_KEYS: Final = (
    *(Key.META, Key.SLOTS, Key.PROMPTS, Key.ADMISSIONS, Key.STEPS, Key.TALLY),
    *(Key.COUNTERS, Key.ENDS),
)
"""What a checkpoint copies. The sorted sets are made anew from the slots."""


@dataclass(frozen=True)
class CreateCheckpoint(StoreScript[CheckpointRecord]):
    name: str
    step: int | None
    replace: int
    pinned: int
    created_ms: int
    extra: bytes
    saved_ids: tuple[str, ...]

    SCRIPT = "create_checkpoint"
    KEYS = (
        *SAVED_KEYS,
        *(Key.RESERVED, Key.READY, Key.CLAIMED, Key.QUARANTINED, Key.CHECKPOINTS, Key.EVENTS),
        Key.SELECTED,
    )
    SAVED = SAVED_KEYS

    def parse(self, details: list[bytes]) -> CheckpointRecord:
        return CheckpointRecord.parse(self.name, details[0])


@dataclass(frozen=True)
class MarkCheckpoint(StoreScript[CheckpointRecord]):
    name: str
    pinned: int | None
    state: str
    digest: str
    saved_ids: tuple[str, ...]

    SCRIPT = "mark_checkpoint"
    KEYS = (*META_KEYS, Key.CHECKPOINTS)

    def parse(self, details: list[bytes]) -> CheckpointRecord:
        return CheckpointRecord.parse(self.name, details[0])


@dataclass(frozen=True)
class DropCheckpoint(StoreScript[tuple[int, bool]]):
    """Replies entries given back to the collector, whether more remain."""

    name: str
    limit: int
    saved_ids: tuple[str, ...]

    SCRIPT = "drop_checkpoint"
    KEYS = (*META_KEYS, Key.DEAD, Key.PINNED, Key.CHECKPOINTS)
    SAVED = SAVED_KEYS

    def parse(self, details: list[bytes]) -> tuple[int, bool]:
        return int(details[0]), details[1] == b"1"


@dataclass(frozen=True)
class BeginImport(StoreScript[tuple[int, CheckpointRecord]]):
    """``counts`` are groups that are reserved, ready, claimed and quarantined."""

    name: str
    fences: int
    origin: str
    step: int
    cursor: int
    payload_bytes: int
    created_ms: int
    extra: bytes
    counts: tuple[int, ...]
    saved_ids: tuple[str, ...]

    SCRIPT = "begin_import"
    KEYS = (*META_KEYS, Key.CHECKPOINTS, Key.EVENTS)

    def parse(self, details: list[bytes]) -> tuple[int, CheckpointRecord]:
        return int(details[0]), CheckpointRecord.parse(self.name, details[1])


@dataclass(frozen=True)
class AddToImport(Unanswered, StoreScript[None]):
    """``items`` are fields and values of one copy, ``records`` entries and records of groups."""

    name: str
    noun: str
    items: tuple[bytes, ...]
    records: tuple[bytes, ...]
    saved_ids: tuple[str, ...]

    SCRIPT = "add_to_import"
    KEYS = (*META_KEYS, Key.GROUPS, Key.PINNED, Key.CHECKPOINTS)
    SAVED = SAVED_KEYS


@dataclass(frozen=True)
class Condemn(StoreScript[tuple[int, list[str]]]):
    """Replies how many entries are dead afterwards, and those that the caller is to free.

    ``entries`` are the first ones if none are named; ``saved_ids`` are those of all checkpoints.
    """

    entries: tuple[str, ...]
    saved_ids: tuple[str, ...]

    SCRIPT = "condemn"
    KEYS = (*META_KEYS, Key.GROUPS, Key.DEAD, Key.PINNED, Key.CONDEMNED, Key.CHECKPOINTS)
    SAVED = (Key.SLOTS,)

    def parse(self, details: list[bytes]) -> tuple[int, list[str]]:
        return int(details[0]), [entry.decode() for entry in details[1:]]


@dataclass(frozen=True)
class Restored:
    """What a restore did, as its script replies."""

    ready: int
    tickets: int
    quarantined: int
    reopened: int
    left_out: int
    store_epoch: int


@dataclass(frozen=True)
class Restore(StoreScript[Restored]):
    name: str
    mode: str
    incomplete: str
    token: str
    saved_ids: tuple[str, ...]
    damaged: tuple[str, ...]

    SCRIPT = "restore"
    KEYS = (
        *SESSION_KEYS,
        *RETIRING_KEYS,
        *RESERVED_KEYS,
        *READY_KEYS,
        *CLAIM_ENDING_KEYS,
        *(Key.QUARANTINED, Key.LOST, Key.ADMISSIONS, Key.TALLY, Key.PINNED, Key.CHECKPOINTS),
        Key.SELECTED,
    )
    SAVED = SAVED_KEYS

    def parse(self, details: list[bytes]) -> Restored:
        return Restored(*map(int, details))


@dataclass(frozen=True)
class Discard(StoreScript[int]):
    """Replies live groups that were deleted; ``own`` are epochs of the caller's own sessions."""

    force: int
    saved_ids: tuple[str, ...]
    own: tuple[int, ...]

    SCRIPT = "discard"
    KEYS = tuple(Key)
    SAVED = SAVED_KEYS

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])
