"""The two frames of script calls, and the keys that scripts of one kind declare together.

A call about the run (`StoreScript`) is refused when the run was restored or lost meanwhile. A
session's call (`SessionScript`) is numbered besides, so that a repetition gets the first answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Generic, TypeVar

from redis_replay._redis.keys import Key
from redis_replay._redis.lua import ScriptCall

R = TypeVar("R")

META_KEYS: Final = (Key.META,)
SESSION_KEYS: Final = (Key.META, Key.SESSIONS, Key.OWNERS, Key.EVENTS)
RETIRING_KEYS: Final = (Key.SLOTS, Key.PROMPTS, Key.COUNTERS, Key.ENDS, Key.DEAD, Key.STEPS)
RESERVED_KEYS: Final = (Key.RESERVED, Key.RESERVED_BY_STEP, Key.RESERVED_BY_OWNER, Key.TICKETS)
READY_KEYS: Final = (Key.READY, Key.READY_BY_STEP, Key.READY_BY_ORDER)
CLAIMED_KEYS: Final = (Key.CLAIMED, Key.CLAIMED_BY_STEP, Key.CLAIMED_BY_OWNER, Key.BATCHES)
CLAIM_ENDING_KEYS: Final = (*CLAIMED_KEYS, Key.ACKS)
ENDING_KEYS: Final = (
    *SESSION_KEYS,
    *RESERVED_KEYS,
    *READY_KEYS,
    *CLAIM_ENDING_KEYS,
    *(Key.SLOTS, Key.QUARANTINED, Key.LOST, Key.COUNTERS, Key.DEAD, Key.STEPS, Key.SELECTED),
)
RESERVING_KEYS: Final = (
    *SESSION_KEYS,
    *RESERVED_KEYS,
    *(Key.SLOTS, Key.PROMPTS, Key.READY, Key.CLAIMED, Key.COUNTERS, Key.ADMISSIONS, Key.STEPS),
)


@dataclass(frozen=True)
class StoreScript(ScriptCall[R], Generic[R]):
    """A call about the run as a whole, refused when the run was restored or lost meanwhile.

    The gateway puts the ``floor`` first: the newest mutation it knows of, which must not be gone.
    """

    FRAME: ClassVar[tuple[tuple[str, str], ...]] = (
        ("floor", "number"),
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


class Unanswered:
    """A call whose reply says nothing but that it was applied."""

    def parse(self, details: list[bytes]) -> None:
        """Return nothing."""
        del details


@dataclass(frozen=True)
class UseUp(Unanswered, SessionScript[None]):
    SCRIPT = "use_up"
    KEYS = (*META_KEYS, Key.SESSIONS, Key.OWNERS)
