"""Scripts about the run as a whole, as typed calls: its settings, its owners, its admission state.

They carry no call number: each says in its Lua header why it may be repeated. `OpenRun` carries no
frame either, since it reads what the frame is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

from redis_replay._redis.frames import (
    ENDING_KEYS,
    META_KEYS,
    READY_KEYS,
    RESERVED_KEYS,
    RETIRING_KEYS,
    StoreScript,
    Unanswered,
)
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import ScriptCall
from redis_replay.types import MAX_GROUPS_PER_CALL


@dataclass(frozen=True)
class OpenRun(ScriptCall[tuple[bool, dict[str, bytes]]]):
    create: int
    settings: tuple[str, ...]

    SCRIPT = "open_run"
    KEYS = META_KEYS

    def parse(self, details: list[bytes]) -> tuple[bool, dict[str, bytes]]:
        names = [name.decode() for name in details[1::2]]
        return details[0] == b"1", dict(zip(names, details[2::2], strict=True))


@dataclass(frozen=True)
class ReadTogether(ScriptCall[None]):
    """Reads of control keys in one instant; the keys travel as payload keys do."""

    words: tuple[bytes, ...]

    SCRIPT = "read"
    PAYLOAD_KEYS = True


@dataclass(frozen=True)
class Resize(Unanswered, StoreScript[None]):
    capacity: int
    max_payload_bytes: int | None

    SCRIPT = "resize"
    KEYS = (*META_KEYS, Key.RESERVED, Key.READY, Key.CLAIMED, Key.EVENTS)


@dataclass(frozen=True, slots=True)
class EndedSession:
    """A session that another has replaced, and whether it still holds groups."""

    epoch: int
    owner: str
    holds_more: bool


@dataclass(frozen=True)
class Attach(StoreScript[tuple[int, list[EndedSession]]]):
    """Replies the new epoch and the sessions that it ended."""

    owner: str
    role: str
    world: int
    lease_ms: int
    host: str
    takeover: int
    limit: int = MAX_GROUPS_PER_CALL

    SCRIPT = "attach"
    KEYS = ENDING_KEYS

    def parse(self, details: list[bytes]) -> tuple[int, list[EndedSession]]:
        ended = zip(details[1::3], details[2::3], details[3::3], strict=True)
        return int(details[0]), [EndedSession(int(e), n.decode(), m == b"1") for e, n, m in ended]


@dataclass(frozen=True)
class Heartbeat(StoreScript[tuple[dict[str, bytes], dict[int, bytes]]]):
    """Replies the records of all owners by name, and of all lost epochs that hold groups."""

    owner: str
    epoch: int

    SCRIPT = "heartbeat"
    KEYS = (*META_KEYS, Key.OWNERS, Key.LOST)

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
    KEYS = ENDING_KEYS

    def parse(self, details: list[bytes]) -> tuple[int, int, int, bool]:
        return int(details[0]), int(details[1]), int(details[2]), details[3] == b"1"


@dataclass(frozen=True)
class EndOthers(StoreScript[tuple[int, int, bool]]):
    """Replies sessions ended, groups requeued, whether more remain; ``own`` are not ended."""

    limit: int
    own: tuple[int, ...]

    SCRIPT = "end_others"
    KEYS = ENDING_KEYS

    def parse(self, details: list[bytes]) -> tuple[int, int, bool]:
        return int(details[0]), int(details[1]), details[2] == b"1"


@dataclass(frozen=True)
class BindPolicy(StoreScript[tuple[str, str, str]]):
    """Replies the outcome (bound, same, windows, switched) and the policy and windows before."""

    owner: str
    epoch: int
    policy: str
    windows: str
    gate_window: int | None
    required_capacity: int | None
    switch: int

    SCRIPT = "bind_policy"
    KEYS = (*META_KEYS, Key.SLOTS, Key.OWNERS, Key.EVENTS)

    def parse(self, details: list[bytes]) -> tuple[str, str, str]:
        return details[0].decode(), details[1].decode(), details[2].decode()


@dataclass(frozen=True)
class SetCursor(StoreScript[bool]):
    owner: str
    epoch: int
    cursor: int
    exact: int

    SCRIPT = "set_cursor"
    KEYS = (*META_KEYS, Key.OWNERS, Key.EVENTS)

    def parse(self, details: list[bytes]) -> bool:
        return details[0] == b"1"


@dataclass(frozen=True)
class SetWindow(Unanswered, StoreScript[None]):
    owner: str
    epoch: int
    gate_window: int

    SCRIPT = "set_window"
    KEYS = (*META_KEYS, Key.OWNERS, Key.EVENTS)


@dataclass(frozen=True)
class Publish(Unanswered, StoreScript[None]):
    trainer_version: int

    SCRIPT = "publish"
    KEYS = (*META_KEYS, Key.STEPS, Key.EVENTS)


@dataclass(frozen=True)
class Acknowledge(Unanswered, StoreScript[None]):
    owner: str
    epoch: int
    batch: int
    rank: int

    SCRIPT = "acknowledge"
    KEYS = (*META_KEYS, Key.OWNERS, Key.BATCHES, Key.ACKS, Key.EVENTS)


@dataclass(frozen=True)
class MarkWritten(StoreScript[list[tuple[int, int]]]):
    """Replies each group's payload fence and the number its columns are kept under."""

    owner: str
    epoch: int
    group_ids: tuple[str, ...]

    SCRIPT = "mark_written"
    KEYS = (*META_KEYS, Key.SLOTS, Key.OWNERS, Key.EVENTS)

    def parse(self, details: list[bytes]) -> list[tuple[int, int]]:
        numbers = [int(item) for item in details]
        return list(zip(numbers[::2], numbers[1::2], strict=True))


@dataclass(frozen=True)
class Bury(StoreScript[int]):
    entries: tuple[str, ...]

    SCRIPT = "bury"
    KEYS = (*META_KEYS, Key.CONDEMNED)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])


@dataclass(frozen=True)
class CatchUp(StoreScript[tuple[int, int, bool]]):
    """Replies groups aborted, groups evicted, whether more may remain."""

    step: int
    limit: int = 256

    SCRIPT = "catch_up"
    KEYS = (
        *META_KEYS,
        *RETIRING_KEYS,
        *RESERVED_KEYS,
        *READY_KEYS,
        *(Key.ADMISSIONS, Key.EVENTS),
    )

    def parse(self, details: list[bytes]) -> tuple[int, int, bool]:
        return int(details[0]), int(details[1]), details[2] == b"1"


@dataclass(frozen=True)
class SetDataset(Unanswered, StoreScript[None]):
    dataset: str
    older: str

    SCRIPT = "set_dataset"
    KEYS = (*META_KEYS, Key.EVENTS)


@dataclass(frozen=True)
class Migrate(Unanswered, StoreScript[None]):
    from_schema: int

    SCRIPT = "migrate"
    KEYS = (*META_KEYS, Key.EVENTS)
