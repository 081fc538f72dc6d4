"""What is killed when: points drawn by seed, each struck while its victim holds something."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from redis_replay.demo.settings import GROUPS_PER_STEP, TRAINER
from redis_replay.demo.witness import Kind, Line, Result, group_ids


class Victim(StrEnum):
    """What can be killed."""

    TRAINER = "trainer"
    ROLLOUT = "rollout"
    SERVER = "server"


_PLACES: Final = {
    Victim.TRAINER: (0.2, 0.35),
    Victim.ROLLOUT: (0.4, 0.55),
    Victim.SERVER: (0.6, 0.8),
}
"""Between which shares of the steps each victim's point is drawn."""


_LEAST_LEFT: Final = GROUPS_PER_STEP // 4
"""A rollout process with fewer groups left may have none by the time the signal arrives."""


@dataclass(frozen=True, slots=True)
class KillPoint:
    """A kill that is due from a step on.

    Attributes:
        passed_over: So many chances are let pass, so that a batch may be half done.
    """

    victim: Victim
    step: int
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class Kill:
    """A kill that was made.

    Attributes:
        what: ``server``, or the owner name of the process.
        at_step: The step that was being trained.
        held: Groups that the victim held claimed or reserved; for the server, that anybody held.
    """

    what: str
    at_step: int
    held: int


@dataclass(frozen=True, slots=True)
class Strike:
    """What is to be killed now.

    Attributes:
        owners: Processes, by owner name.
        server: Whether the server is.
        delay_seconds: So long after the process that wrote the line may go on; 0 is before that.
    """

    owners: frozenset[str] = frozenset()
    server: bool = False
    delay_seconds: float = 0.0


def draw_kill_points(*, seed: int, steps: int, server: bool) -> list[KillPoint]:
    """Return the kill points of a run in order, no two at one step."""
    rng = random.Random(seed)
    points: list[KillPoint] = []
    for victim, (lowest, highest) in _PLACES.items():
        if victim is Victim.SERVER and not server:
            continue
        earliest = points[-1].step + 1 if points else 1
        first = max(earliest, round(steps * lowest))
        step = rng.randint(first, max(first, round(steps * highest)))
        passed_over = rng.randrange(GROUPS_PER_STEP // 2) if victim is Victim.ROLLOUT else 0
        points.append(KillPoint(victim, step, passed_over))
    return points


@dataclass
class KillPlan:
    """Which point is next, told line by line what the processes do."""

    points: list[KillPoint]

    def strike(self, line: Line, *, step: int, held: int) -> Victim | None:
        """Return what to kill now that a process wrote this line, and take it off the plan.

        The trainer and the server die when the trainer has just claimed a batch, a rollout process
        when it is about to commit one of its groups and has some left.

        Args:
            line: What a process wrote.
            step: The step being trained.
            held: Groups that this process holds beside that of the line.
        """
        if not self.points or step < self.points[0].step:
            return None
        if not _is_chance(line, self.points[0], held):
            return None
        point = self.points.pop(0)
        if point.passed_over:
            self.points.insert(0, replace(point, passed_over=point.passed_over - 1))
            return None
        return point.victim

    def aim(self, line: Line, *, step: int, held: int) -> Strike | None:
        """Return the same as processes and server; `strike`."""
        victim = self.strike(line, step=step, held=held)
        if victim is None:
            return None
        if victim is Victim.SERVER:
            return Strike(server=True)
        return Strike(owners=frozenset({line.who}))

    def note_death(self, owner: str, *, step: int, held: int) -> None:
        """Put the kill back if its victim held nothing any more when it died."""
        if not held:
            self.miss(Victim.TRAINER if owner == TRAINER else Victim.ROLLOUT, step=step)

    def miss(self, victim: Victim, *, step: int) -> None:
        """Put a kill back that came too late: its victim held nothing any more."""
        self.points = [replace(point, step=max(point.step, step + 1)) for point in self.points]
        self.points.insert(0, KillPoint(victim, step + 1))


def _is_chance(line: Line, point: KillPoint, held: int) -> bool:
    if point.victim is Victim.ROLLOUT:
        return line.call == "commit" and line.kind is Kind.INTENT and held >= _LEAST_LEFT
    return line.call == "select" and line.result is Result.OK


def held_groups(lines: Iterable[Line]) -> set[str]:
    """Return the groups that a process holds after what its log says, as far as it could know."""
    held: set[str] = set()
    for line in lines:
        note_held(held, line)
    return held


def note_held(held: set[str], line: Line) -> None:
    """Change the set of groups that a process holds by the next line of its log.

    A process that was about to settle or commit is taken not to hold the groups of that call.
    """
    if line.kind is Kind.INTENT and line.call == "commit_step":
        held.clear()
    elif line.kind is Kind.INTENT and line.call in ("commit", "abort"):
        held.discard(line.facts["group"])
    elif line.result is Result.OK and line.call in ("cut", "tickets", "select"):
        held.update(group_ids(line.facts))
