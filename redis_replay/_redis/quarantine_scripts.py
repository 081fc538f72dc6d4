"""Scripts that take groups out of training and bring them back, as typed calls."""

from __future__ import annotations

from dataclasses import dataclass

from redis_replay._redis.frames import (
    CLAIM_ENDING_KEYS,
    META_KEYS,
    READY_KEYS,
    RESERVED_KEYS,
    SESSION_KEYS,
    SessionScript,
    StoreScript,
)
from redis_replay._redis.keys import Key


@dataclass(frozen=True)
class Quarantine(StoreScript[tuple[str, ...]]):
    """Replies the groups that were not quarantined before.

    ``fences`` are the payload fences of the groups as the caller knows them, '' for none.
    """

    owner: str
    epoch: int
    reason: str
    group_ids: tuple[str, ...]
    fences: tuple[str, ...]

    SCRIPT = "quarantine"
    KEYS = (
        *META_KEYS,
        *READY_KEYS,
        *CLAIM_ENDING_KEYS,
        *(Key.SLOTS, Key.QUARANTINED, Key.DEAD, Key.STEPS, Key.OWNERS, Key.EVENTS),
    )

    def parse(self, details: list[bytes]) -> tuple[str, ...]:
        return tuple(item.decode() for item in details)


@dataclass(frozen=True)
class Reinstate(SessionScript[tuple[int, int]]):
    """Replies groups that are ready again, redispatch tickets."""

    group_ids: tuple[str, ...]

    SCRIPT = "reinstate"
    KEYS = (
        *SESSION_KEYS,
        *RESERVED_KEYS,
        *READY_KEYS,
        *(Key.SLOTS, Key.CLAIMED, Key.QUARANTINED, Key.STEPS),
    )

    def parse(self, details: list[bytes]) -> tuple[int, int]:
        return int(details[0]), int(details[1])
