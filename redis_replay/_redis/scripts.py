"""Every script as a typed call: its keys, its arguments and what its reply means.

The Lua bodies say why each is atomic. Three frames: none (`OpenRun`), the run's (`StoreScript`) and
a session's (`SessionScript`), whose calls are numbered so that a repetition gets the first answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from redis_replay._redis.keys import Key
from redis_replay._redis.lua import ScriptCall
from redis_replay._redis.records import SlotRecord

R = TypeVar("R")

_META = (Key.META,)
_SESSION = (Key.META, Key.SESSIONS, Key.OWNERS, Key.EVENTS)
_RETIRE = (Key.SLOTS, Key.PROMPTS, Key.COUNTERS, Key.ENDS, Key.DEAD)
_RESERVED = (Key.RESERVED, Key.RESERVED_BY_STEP, Key.RESERVED_BY_OWNER, Key.TICKETS)
_READY = (Key.READY, Key.READY_BY_STEP, Key.READY_BY_ORDER)
_CLAIMED = (Key.CLAIMED, Key.CLAIMED_BY_STEP, Key.CLAIMED_BY_OWNER, Key.BATCHES, Key.ACKS)
_RESERVING = (
    *_SESSION,
    *_RESERVED,
    *(Key.SLOTS, Key.PROMPTS, Key.READY, Key.CLAIMED, Key.COUNTERS, Key.ADMISSIONS),
)


@dataclass(frozen=True)
class StoreScript(ScriptCall[R], Generic[R]):
    """A call about the run as a whole, refused when the run was restored or lost meanwhile."""

    FRAME: ClassVar[tuple[tuple[str, str], ...]] = (
        ("schema", "number"),
        ("lineage", "string"),
        ("store_epoch", "number"),
    )


@dataclass(frozen=True)
class SessionScript(ScriptCall[R], Generic[R]):
    """A numbered call of an attached session, refused when that session has ended."""

    FRAME: ClassVar[tuple[tuple[str, str], ...]] = (
        *StoreScript.FRAME,
        ("owner", "string"),
        ("epoch", "number"),
        ("call", "number"),
        ("digest", "string"),
    )


@dataclass(frozen=True)
class OpenRun(ScriptCall[tuple[bool, dict[str, bytes]]]):
    create: int
    settings: tuple[str, ...]

    SCRIPT = "open_run"
    KEYS = _META

    def parse(self, details: list[bytes]) -> tuple[bool, dict[str, bytes]]:
        names = [name.decode() for name in details[1::2]]
        return details[0] == b"1", dict(zip(names, details[2::2], strict=True))


@dataclass(frozen=True)
class Resize(StoreScript[None]):
    capacity: int
    max_payload_bytes: int | None

    SCRIPT = "resize"
    KEYS = (*_META, Key.RESERVED, Key.READY, Key.CLAIMED, Key.EVENTS)

    def parse(self, details: list[bytes]) -> None:
        return None


@dataclass(frozen=True)
class Attach(StoreScript[tuple[int, int | None]]):
    owner: str
    role: str
    world: int
    lease_ms: int
    host: str
    planned: int

    SCRIPT = "attach"
    KEYS = (*_META, Key.OWNERS, Key.LOST, Key.EVENTS)

    def parse(self, details: list[bytes]) -> tuple[int, int | None]:
        return int(details[0]), int(details[1]) if details[1] else None


@dataclass(frozen=True)
class Heartbeat(StoreScript[tuple[dict[str, bytes], dict[int, bytes]]]):
    """Replies the records of all owners by name, and of all lost epochs that hold groups."""

    owner: str
    epoch: int

    SCRIPT = "heartbeat"
    KEYS = (*_META, Key.OWNERS, Key.LOST)

    def parse(self, details: list[bytes]) -> tuple[dict[str, bytes], dict[int, bytes]]:
        after = 1 + 2 * int(details[0])
        owners, lost = details[1:after], details[after:]
        return (
            {n.decode(): r for n, r in zip(owners[::2], owners[1::2], strict=True)},
            {int(e): r for e, r in zip(lost[::2], lost[1::2], strict=True)},
        )


@dataclass(frozen=True)
class EndOwner(StoreScript[tuple[int, int, int, bool]]):
    """Replies tickets made, groups requeued, groups quarantined, whether more remain."""

    owner: str
    epoch: int
    heartbeat: int | None
    planned: int
    limit: int = 256

    SCRIPT = "end_owner"
    KEYS = (
        *_SESSION,
        *_RESERVED,
        *_READY,
        *_CLAIMED,
        *(Key.SLOTS, Key.QUARANTINED, Key.LOST, Key.COUNTERS, Key.DEAD),
    )

    def parse(self, details: list[bytes]) -> tuple[int, int, int, bool]:
        return int(details[0]), int(details[1]), int(details[2]), details[3] == b"1"


@dataclass(frozen=True)
class BindPolicy(StoreScript[tuple[str, str, str]]):
    """Replies the outcome (bound, same, windows, switched) and the policy and windows before."""

    policy: str
    windows: str
    gate_window: int | None
    required_capacity: int | None
    switch: int

    SCRIPT = "bind_policy"
    KEYS = (*_META, Key.SLOTS, Key.EVENTS)

    def parse(self, details: list[bytes]) -> tuple[str, str, str]:
        return details[0].decode(), details[1].decode(), details[2].decode()


@dataclass(frozen=True)
class SetCursor(StoreScript[bool]):
    cursor: int
    exact: int

    SCRIPT = "set_cursor"
    KEYS = (*_META, Key.EVENTS)

    def parse(self, details: list[bytes]) -> bool:
        return details[0] == b"1"


@dataclass(frozen=True)
class SetWindow(StoreScript[None]):
    gate_window: int

    SCRIPT = "set_window"
    KEYS = (*_META, Key.EVENTS)

    def parse(self, details: list[bytes]) -> None:
        return None


@dataclass(frozen=True)
class Publish(StoreScript[None]):
    trainer_version: int

    SCRIPT = "publish"
    KEYS = (*_META, Key.EVENTS)

    def parse(self, details: list[bytes]) -> None:
        return None


@dataclass(frozen=True)
class Acknowledge(StoreScript[None]):
    owner: str
    epoch: int
    batch: int
    rank: int

    SCRIPT = "acknowledge"
    KEYS = (*_META, Key.OWNERS, Key.BATCHES, Key.ACKS, Key.EVENTS)

    def parse(self, details: list[bytes]) -> None:
        return None


@dataclass(frozen=True)
class Bury(StoreScript[int]):
    entries: tuple[str, ...]

    SCRIPT = "bury"
    KEYS = (*_META, Key.GROUPS, Key.DEAD)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class Admit(SessionScript[int]):
    seen_version: int

    SCRIPT = "admit"
    KEYS = (*_SESSION, Key.ADMISSIONS)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class Reserve(SessionScript[int]):
    """Replies the fence that the new slots share. ``targets`` are numbers or '' for none."""

    group_ids: tuple[str, ...]
    weights: tuple[int, ...]
    targets: tuple[str, ...]
    prompt_refs: tuple[bytes, ...]

    SCRIPT = "reserve"
    KEYS = _RESERVING

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class ApplyCut(SessionScript[int | None]):
    """Replies the fence of the reservations, ``None`` when the cut reserved nothing."""

    index: int | None
    seen_version: int
    loader_revision: int | None
    loader_state: bytes
    group_ids: tuple[str, ...]
    weights: tuple[int, ...]
    targets: tuple[str, ...]
    prompt_refs: tuple[bytes, ...]

    SCRIPT = "apply_cut"
    KEYS = _RESERVING

    def parse(self, details: list[bytes]) -> int | None:
        return int(details[0]) if details[0] else None


@dataclass(frozen=True)
class Commit(SessionScript[None]):
    group_id: str
    fence: int
    start: int
    finish: int
    payload_bytes: int
    blob: bytes

    SCRIPT = "commit"
    KEYS = (*_SESSION, *_RESERVED, *_READY, Key.SLOTS, Key.GROUPS, Key.COUNTERS)
    PAYLOAD_KEYS = True

    def parse(self, details: list[bytes]) -> None:
        return None


ClaimReply = tuple[int, list[SlotRecord]] | None


def _parse_claim(details: list[bytes]) -> ClaimReply:
    return (int(details[0]), SlotRecord.parse_pairs(details[1:])) if details else None


@dataclass(frozen=True)
class Claim(SessionScript[ClaimReply]):
    """Replies the claim number and the groups in selection order, ``None`` when below minimum."""

    rule: str
    lowest: int
    highest: int
    minimum: int
    maximum: int

    SCRIPT = "claim"
    KEYS = (*_SESSION, *_READY, *_CLAIMED, Key.SLOTS, Key.RESERVED, Key.COUNTERS)

    def parse(self, details: list[bytes]) -> ClaimReply:
        return _parse_claim(details)


@dataclass(frozen=True)
class ClaimExact(SessionScript[ClaimReply]):
    group_ids: tuple[str, ...]

    SCRIPT = "claim_exact"
    KEYS = (*_SESSION, *_READY, *_CLAIMED, Key.SLOTS, Key.COUNTERS)

    def parse(self, details: list[bytes]) -> ClaimReply:
        return _parse_claim(details)


@dataclass(frozen=True)
class Settle(SessionScript[tuple[int, tuple[str, ...]]]):
    """Replies the number of aborted reservations and the ids of the trained groups."""

    step: int | None
    exact: int
    empty: int
    batches: tuple[int, ...]
    group_ids: tuple[str, ...]

    SCRIPT = "settle"
    KEYS = (*_SESSION, *_RETIRE, *_RESERVED, *_CLAIMED)

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
        *_SESSION,
        *_READY,
        *_CLAIMED,
        *(Key.SLOTS, Key.QUARANTINED, Key.COUNTERS, Key.DEAD),
    )

    def parse(self, details: list[bytes]) -> tuple[int, int]:
        return int(details[0]), int(details[1])


@dataclass(frozen=True)
class Transfer(SessionScript[ClaimReply]):
    receiver: str
    step: int

    SCRIPT = "transfer"
    KEYS = (*_SESSION, *_CLAIMED, Key.SLOTS, Key.COUNTERS)

    def parse(self, details: list[bytes]) -> ClaimReply:
        return _parse_claim(details)


@dataclass(frozen=True)
class Evict(SessionScript[int]):
    by_step: int
    below: int
    limit: int = 256

    SCRIPT = "evict"
    KEYS = (*_SESSION, *_RETIRE, *_READY)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class Abort(SessionScript[None]):
    group_id: str
    fence: int
    reason: str

    SCRIPT = "abort"
    KEYS = (*_SESSION, *_RETIRE, *_RESERVED)

    def parse(self, details: list[bytes]) -> None:
        return None


@dataclass(frozen=True)
class Remove(SessionScript[int]):
    reason: str
    group_ids: tuple[str, ...]

    SCRIPT = "remove"
    KEYS = (*_SESSION, *_RETIRE, *_RESERVED, *_READY, Key.QUARANTINED)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class Promote(SessionScript[tuple[int, str] | None]):
    """Replies the step the group came from and the group, ``None`` when nobody can lend."""

    to_step: int

    SCRIPT = "promote"
    KEYS = (*_SESSION, *_READY, Key.SLOTS)

    def parse(self, details: list[bytes]) -> tuple[int, str] | None:
        return (int(details[0]), details[1].decode()) if details else None


@dataclass(frozen=True)
class TakeTickets(SessionScript[list[SlotRecord]]):
    maximum: int
    weight: int

    SCRIPT = "take_tickets"
    KEYS = (*_SESSION, *_RESERVED, Key.SLOTS)

    def parse(self, details: list[bytes]) -> list[SlotRecord]:
        return SlotRecord.parse_pairs(details)


@dataclass(frozen=True)
class MarkWritten(SessionScript[list[tuple[int, int]]]):
    """Replies each group's payload fence and the number its columns are kept under."""

    group_ids: tuple[str, ...]

    SCRIPT = "mark_written"
    KEYS = (*_SESSION, Key.SLOTS)

    def parse(self, details: list[bytes]) -> list[tuple[int, int]]:
        numbers = [int(item) for item in details]
        return list(zip(numbers[::2], numbers[1::2], strict=True))


ALL_SCRIPTS: tuple[type[ScriptCall[Any]], ...] = (
    *(OpenRun, Resize, Attach, Heartbeat, EndOwner, BindPolicy, SetCursor, SetWindow, Publish),
    *(Acknowledge, Bury, Admit, Reserve, ApplyCut, Commit, Claim, ClaimExact, Settle, Requeue),
    *(Transfer, Evict, Abort, Remove, Promote, TakeTickets, MarkWritten),
)
