"""Scripts of an attached session, as typed calls, and the table of all scripts.

Each is a mutation: its Lua header says what it does and why it is atomic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from redis_replay._redis.checkpoint_scripts import (
    SAVED_KEYS,
    AddToImport,
    BeginImport,
    Condemn,
    CreateCheckpoint,
    Discard,
    DropCheckpoint,
    MarkCheckpoint,
    Restore,
)
from redis_replay._redis.frames import (
    CLAIM_ENDING_KEYS,
    CLAIMED_KEYS,
    READY_KEYS,
    RESERVED_KEYS,
    RESERVING_KEYS,
    RETIRING_KEYS,
    SESSION_KEYS,
    SessionScript,
    Unanswered,
    UseUp,
)
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import ScriptCall
from redis_replay._redis.quarantine_scripts import Quarantine, Reinstate
from redis_replay._redis.records import ClaimedSlot, SlotRecord
from redis_replay._redis.run_scripts import (
    Acknowledge,
    Attach,
    BindPolicy,
    Bury,
    CatchUp,
    EndOthers,
    EndOwner,
    Heartbeat,
    MarkWritten,
    Migrate,
    OpenRun,
    Publish,
    ReadTogether,
    Resize,
    SetCursor,
    SetDataset,
    SetWindow,
)
from redis_replay._redis.selecting_scripts import LetGo, SelectForGood, Selecting


@dataclass(frozen=True)
class Admit(SessionScript[int]):
    seen_version: int

    SCRIPT = "admit"
    KEYS = (*SESSION_KEYS, Key.ADMISSIONS, Key.COUNTERS)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class Reserve(SessionScript[int]):
    """Replies the fence that the new slots share. ``targets`` are numbers or '' for none."""

    group_ids: tuple[str, ...]
    weights: tuple[int, ...]
    targets: tuple[str, ...]
    prompt_refs: tuple[bytes, ...]
    replacements: tuple[int, ...]

    SCRIPT = "reserve"
    KEYS = RESERVING_KEYS

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class ApplyCut(SessionScript[int | None]):
    """Replies the fence of the reservations, ``None`` when the cut reserved nothing.

    ``kept`` says that the index is an open admission of this session which no caller has received.
    """

    index: int | None
    kept: int
    seen_version: int
    loader_revision: int | None
    loader_state: bytes
    exhausted: int
    group_ids: tuple[str, ...]
    weights: tuple[int, ...]
    targets: tuple[str, ...]
    prompt_refs: tuple[bytes, ...]
    replacements: tuple[int, ...]

    SCRIPT = "apply_cut"
    KEYS = RESERVING_KEYS

    def parse(self, details: list[bytes]) -> int | None:
        return int(details[0]) if details[0] else None


@dataclass(frozen=True)
class Commit(Unanswered, SessionScript[None]):
    group_id: str
    fence: int
    start: int
    finish: int
    payload_bytes: int
    blob: bytes
    samples: int = 0
    reward_sum: str = "0"
    zero_variance: int = 0
    elsewhere: int = 0

    SCRIPT = "commit"
    KEYS = (
        *SESSION_KEYS,
        *RESERVED_KEYS,
        *READY_KEYS,
        *(Key.SLOTS, Key.GROUPS, Key.COUNTERS, Key.TALLY),
    )
    PAYLOAD_KEYS = True


class Claimed(NamedTuple):
    """What a claim took.

    Attributes:
        number: Of the claim.
        slots: The groups in selection order.
        records: Their immutable records, empty where one is gone; none when the call was repeated.
    """

    number: int
    slots: list[ClaimedSlot]
    records: list[bytes]


def _parse_claim(details: list[bytes]) -> Claimed | None:
    if not details:
        return None
    number, end = int(details[0]), 3 + int(details[1])
    slots = ClaimedSlot.parse_all(details[3:end], details[2])
    return Claimed(number, slots, details[end:])


@dataclass(frozen=True)
class Claim(Selecting[Claimed | None]):
    """Replies ``None`` when below minimum."""

    SCRIPT = "claim"
    KEYS = (
        *SESSION_KEYS,
        *READY_KEYS,
        *CLAIMED_KEYS,
        *(Key.SLOTS, Key.GROUPS, Key.RESERVED, Key.COUNTERS),
    )

    def parse(self, details: list[bytes]) -> Claimed | None:
        return _parse_claim(details)


@dataclass(frozen=True)
class ClaimExact(SessionScript[Claimed | None]):
    policy: str
    group_ids: tuple[str, ...]

    SCRIPT = "claim_exact"
    KEYS = (*SESSION_KEYS, *READY_KEYS, *CLAIMED_KEYS, Key.SLOTS, Key.GROUPS, Key.COUNTERS)

    def parse(self, details: list[bytes]) -> Claimed | None:
        return _parse_claim(details)


@dataclass(frozen=True)
class Settle(SessionScript[tuple[int, tuple[str, ...]]]):
    """Replies the number of aborted reservations and the ids of the trained groups."""

    step: int | None
    exact: int
    empty: int
    checkpoint: str = ""
    created_ms: int = 0
    extra: bytes = b""
    batches: tuple[int, ...] = ()
    group_ids: tuple[str, ...] = ()
    saved_ids: tuple[str, ...] = ()

    SCRIPT = "settle"
    KEYS = (
        *SESSION_KEYS,
        *RETIRING_KEYS,
        *RESERVED_KEYS,
        *CLAIM_ENDING_KEYS,
        *(Key.READY, Key.QUARANTINED, Key.ADMISSIONS, Key.TALLY, Key.CHECKPOINTS, Key.SELECTED),
    )
    SAVED = SAVED_KEYS

    def parse(self, details: list[bytes]) -> tuple[int, tuple[str, ...]]:
        return int(details[1]), tuple(item.decode() for item in details[2:])


@dataclass(frozen=True)
class Requeue(SessionScript[tuple[int, int]]):
    """Replies the groups requeued and, of these, quarantined."""

    all: int
    failed: int
    group_ids: tuple[str, ...]

    SCRIPT = "requeue"
    KEYS = (
        *SESSION_KEYS,
        *READY_KEYS,
        *CLAIM_ENDING_KEYS,
        *(Key.SLOTS, Key.QUARANTINED, Key.COUNTERS, Key.DEAD, Key.STEPS),
    )

    def parse(self, details: list[bytes]) -> tuple[int, int]:
        return int(details[0]), int(details[1])


@dataclass(frozen=True)
class Transfer(SessionScript[int]):
    """Replies the number of groups handed over."""

    receiver: str
    step: int

    SCRIPT = "transfer"
    KEYS = (*SESSION_KEYS, *CLAIM_ENDING_KEYS, Key.SLOTS)

    def parse(self, details: list[bytes]) -> int:
        return int(details[1]) if details else 0


@dataclass(frozen=True)
class Evict(SessionScript[int]):
    by_step: int
    below: int
    limit: int = 256
    policy: str = ""

    SCRIPT = "evict"
    KEYS = (*SESSION_KEYS, *RETIRING_KEYS, *READY_KEYS)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class Abort(Unanswered, SessionScript[None]):
    group_id: str
    fence: int
    reason: str

    SCRIPT = "abort"
    KEYS = (*SESSION_KEYS, *RETIRING_KEYS, *RESERVED_KEYS)


@dataclass(frozen=True)
class Drop(SessionScript[tuple[int, int, int | None] | None]):
    """Replies fence, number and target step of the replacement, ``None`` when there is none.

    ``group_ids``, ``weights`` and ``prompt_refs`` hold the replacement asked for, or nothing.
    """

    group_id: str
    fence: int
    ending: str
    reason: str
    samples: int
    reward_sum: str
    zero_variance: int
    budget: int
    group_ids: tuple[str, ...]
    weights: tuple[int, ...]
    prompt_refs: tuple[bytes, ...]

    SCRIPT = "drop"
    KEYS = (*SESSION_KEYS, *RESERVED_KEYS, *RETIRING_KEYS, Key.TALLY)

    def parse(self, details: list[bytes]) -> tuple[int, int, int | None] | None:
        if not details:
            return None
        return int(details[0]), int(details[1]), int(details[2]) if details[2] else None


@dataclass(frozen=True)
class Drain(SessionScript[str | None]):
    """Replies the packed statistics of a step, ``None`` when nothing was generated for it."""

    step: int

    SCRIPT = "drain"
    KEYS = (*SESSION_KEYS, Key.TALLY)

    def parse(self, details: list[bytes]) -> str | None:
        return details[0].decode() or None


@dataclass(frozen=True)
class Remove(SessionScript[int]):
    reason: str
    group_ids: tuple[str, ...]

    SCRIPT = "remove"
    KEYS = (*SESSION_KEYS, *RETIRING_KEYS, *RESERVED_KEYS, *READY_KEYS, Key.QUARANTINED)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class Promote(SessionScript[tuple[int, str] | None]):
    """Replies the step the group came from and the group, ``None`` when nobody can lend."""

    to_step: int

    SCRIPT = "promote"
    KEYS = (*SESSION_KEYS, *READY_KEYS, Key.SLOTS, Key.STEPS)

    def parse(self, details: list[bytes]) -> tuple[int, str] | None:
        return (int(details[0]), details[1].decode()) if details else None


@dataclass(frozen=True)
class TakeTickets(SessionScript[list[SlotRecord]]):
    maximum: int
    weight: int

    SCRIPT = "take_tickets"
    KEYS = (*SESSION_KEYS, *RESERVED_KEYS, Key.SLOTS)

    def parse(self, details: list[bytes]) -> list[SlotRecord]:
        return SlotRecord.parse_pairs(details)


ALL_SCRIPTS: tuple[type[ScriptCall[Any]], ...] = (
    *(OpenRun, Resize, Attach, Heartbeat, EndOwner, EndOthers, BindPolicy, SetCursor, SetWindow),
    *(Publish, Acknowledge, Bury, Admit, Reserve, ApplyCut, Commit, Claim, ClaimExact, Settle),
    *(Requeue, UseUp, SelectForGood, LetGo, Transfer, Evict, Abort, Drop, Drain, Remove),
    *(Reinstate, Promote, TakeTickets, MarkWritten, Quarantine, Migrate, CatchUp, SetDataset),
    *(CreateCheckpoint, BeginImport, AddToImport, MarkCheckpoint, DropCheckpoint, Condemn),
    *(Discard, Restore, ReadTogether),
)
