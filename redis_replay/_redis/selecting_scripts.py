"""Scripts that select for good, as typed calls, and what all that select have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from redis_replay._redis.frames import READY_KEYS, RETIRING_KEYS, SESSION_KEYS, SessionScript
from redis_replay._redis.keys import Key
from redis_replay._redis.records import SlotRecord

R = TypeVar("R")


@dataclass(frozen=True)
class Selecting(SessionScript[R], Generic[R]):
    """Takes what a policy's rule picks. A ``policy`` must be the one that the run has."""

    rule: str
    lowest: int
    highest: int
    minimum: int
    maximum: int
    policy: str = ""


class SelectedForGood(NamedTuple):
    """What a selection took.

    Attributes:
        number: Of the selection.
        slots: The groups in selection order, as they were.
        records: Their immutable records, empty where one is gone; none when the call was repeated.
    """

    number: int
    slots: list[SlotRecord]
    records: list[bytes]


@dataclass(frozen=True)
class SelectForGood(Selecting[SelectedForGood | None]):
    """Replies ``None`` when below minimum. A rule of ``""`` takes the named groups, all or none."""

    group_ids: tuple[str, ...] = ()

    SCRIPT = "select_for_good"
    KEYS = (
        *SESSION_KEYS,
        *RETIRING_KEYS,
        *READY_KEYS,
        *(Key.GROUPS, Key.RESERVED, Key.SELECTED),
    )

    def parse(self, details: list[bytes]) -> SelectedForGood | None:
        if not details:
            return None
        end = 2 + 2 * int(details[1])
        slots = SlotRecord.parse_pairs(details[2:end])
        return SelectedForGood(int(details[0]), slots, details[end:])


@dataclass(frozen=True)
class LetGo(SessionScript[int]):
    group_ids: tuple[str, ...]

    SCRIPT = "let_go"
    KEYS = (*SESSION_KEYS, Key.DEAD, Key.SELECTED)

    def parse(self, details: list[bytes]) -> int:
        return int(details[0])
