"""What every measurement is given: how much to do, and where."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmarks.results import Found

FULL_ROUNDS = 9
QUICK_ROUNDS = 3


@dataclass(frozen=True)
class Bench:
    """One run of the benchmark.

    Attributes:
        rounds: Measured rounds of each comparison.
        peers: Whether peers are measured too.
        quick: Whether less is measured, to show that everything runs.
        wanted: Ids of the targets that are asked for.
        folder: For files; empty at first, removed afterwards.
        limit: The compiled C program, ``None`` where it cannot be compiled.
        say: Tells the reader what is being done.
    """

    rounds: int
    quick: bool
    peers: bool
    wanted: frozenset[str]
    folder: Path
    limit: Path | None
    say: Callable[[str], None]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Groups in the buffers whose costs are compared."""
        return (1_000, 10_000) if self.quick else (1_000, 10_000, 100_000)


Measure: TypeAlias = Callable[[Bench], Awaitable[Found]]
