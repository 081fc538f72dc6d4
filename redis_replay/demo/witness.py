"""The independent record: what each process says it was about to do, and what came of it.

Every process appends to a log of its own, one JSON object a line, on disk before the next
instruction runs: an ``intent`` before each store call that changes state, an ``outcome`` after it,
and ``seen`` lines with what it read from the store. The verdict on a run is computed from these
logs alone (D38); `redis_replay.demo.verdict` reads them. A process that was killed leaves
an intent without an outcome at most, or a line without its end, which is no line.

Lines of all processes are put in order by the machine's monotonic clock, which they share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO, cast

import anyio

from redis_replay.errors import ReplayError, StoreUnavailable


class Kind(StrEnum):
    """What a line is."""

    INTENT = "intent"
    OUTCOME = "outcome"
    SEEN = "seen"


class Result(StrEnum):
    """How a call ended.

    ``REFUSED``: the store said that nothing was done. ``UNKNOWN``: it could not be asked.
    ``CANCELLED``: the caller stopped waiting; the store gives back what it may have taken.
    """

    OK = "ok"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, order=True)
class Line:
    """One line of a log.

    Attributes:
        at_ns: Monotonic time of the machine.
        who: Owner name of the process.
        life: Which process of that name.
        number: The call's number in its process; intent and outcome share it.
        call: Name of the call, or of what was seen.
    """

    at_ns: int
    who: str
    life: int
    number: int
    kind: Kind
    call: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)

    def to_json(self) -> str:
        """Return the line, without its end."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_json(cls, text: str) -> Line:
        """Read a line.

        Raises:
            ValueError: it is not one.
        """
        found: dict[str, Any] = json.loads(text)
        try:
            found["kind"] = Kind(found["kind"])
            return cls(**found)
        except (TypeError, KeyError) as error:
            raise ValueError(f"not a line of a log: {text[:80]!r}") from error

    @property
    def result(self) -> Result | None:
        """How the call ended, ``None`` for a line that is no outcome."""
        return Result(self.facts["result"]) if self.kind is Kind.OUTCOME else None


class Witness:
    """Writes the log of one process.

    Args:
        path: The log; appended to.
        who: Owner name.
        life: Which process of that name.
        echo: Where each line is repeated once it is on disk.
        go_on: Called after each line; the process goes on when it returns.
    """

    def __init__(
        self,
        path: Path,
        *,
        who: str,
        life: int = 0,
        echo: TextIO | None = None,
        go_on: Callable[[], object] | None = None,
    ) -> None:
        self._stream = path.open("a", encoding="utf-8")
        self._who, self._life, self._echo, self._go_on = who, life, echo, go_on
        self._number = 0

    def close(self) -> None:
        """Close the log."""
        self._stream.close()

    @contextmanager
    def calling(self, call: str, **facts: Any) -> Generator[dict[str, Any]]:
        """Write the intent, run the block, write the outcome.

        Yields a dictionary for the facts that the outcome is to state. An error of the block is
        written and goes on.
        """
        self._number += 1
        number = self._number
        self._write(number, Kind.INTENT, call, facts)
        found: dict[str, Any] = {}
        try:
            yield found
        except StoreUnavailable as error:
            self._write_failure(number, call, Result.UNKNOWN, error)
            raise
        except ReplayError as error:
            self._write_failure(number, call, Result.REFUSED, error)
            raise
        except anyio.get_cancelled_exc_class():
            self._write(number, Kind.OUTCOME, call, {"result": Result.CANCELLED})
            raise
        self._write(number, Kind.OUTCOME, call, {"result": Result.OK, **found})

    def saw(self, what: str, **facts: Any) -> None:
        """Write what was read."""
        self._number += 1
        self._write(self._number, Kind.SEEN, what, facts)

    def _write_failure(self, number: int, call: str, result: Result, error: ReplayError) -> None:
        facts = {"result": result, "error": type(error).__name__, "message": str(error)}
        self._write(number, Kind.OUTCOME, call, facts)

    def _write(self, number: int, kind: Kind, call: str, facts: Mapping[str, Any]) -> None:
        at_ns = time.monotonic_ns()
        line = Line(at_ns, self._who, self._life, number, kind, call, facts).to_json()
        self._stream.write(line + "\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        if self._echo is not None:
            self._echo.write(line + "\n")
            self._echo.flush()
        if self._go_on is not None:
            self._go_on()


def read_log(path: Path) -> list[Line]:
    """Read the log of one process; a last line without an end is left out.

    Raises:
        ValueError: another line is damaged; the message names file and line.
    """
    lines: list[Line] = []
    for place, text in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True)):
        if not text.endswith("\n"):
            break
        try:
            lines.append(Line.from_json(text))
        except ValueError as error:
            raise ValueError(f"{path}, line {place + 1}: {error}") from error
    return lines


def read_logs(folder: Path) -> list[Line]:
    """Read the logs of all processes, in the order of their clock."""
    return sorted(line for path in folder.glob("*.jsonl") for line in read_log(path))


def group_ids(facts: Mapping[str, Any], name: str = "groups") -> list[str]:
    """Return a list of group ids from the facts of a line, empty when it states none."""
    return cast(list[str], facts.get(name, []))
