"""Where a resume run is killed: places between and within store calls, drawn by seed.

A place is a line of a process's log. Every store call is an intent and an outcome, so a process
that is killed at an intent dies before the call, at an outcome after it, and with a delay after the
intent somewhere in it. In lockstep the process waits at its line until it is dead.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from redis_replay.demo.kills import Strike, note_held
from redis_replay.demo.resume.settings import GROUPS_PER_STEP, SAVE_EVERY_STEPS, STEPS, role_of
from redis_replay.demo.witness import Kind, Line, Result


class Victim(StrEnum):
    """What is killed."""

    TRAINER = "trainer"
    ROLLOUT = "rollout host"
    RANK = "rank"
    SERVER = "server"
    ALL = "all at once"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a log.

    Attributes:
        role: Whose log: ``trainer``, ``rank`` or ``rollout``.
        is_within: Whether the call of an intent is under way when the kill comes.
        holds: Whether that process then holds groups, claimed or reserved.
    """

    role: str
    call: str
    kind: Kind
    is_within: bool = False
    holds: bool = True

    def describe(self) -> str:
        """Name the place for a reader."""
        if self.kind is Kind.SEEN:
            return f"after {self.call}"
        if self.kind is Kind.OUTCOME:
            return f"after {self.call}"
        return f"{'in' if self.is_within else 'before'} {self.call}"


def _around(role: str, call: str, *, before: bool = True, after: bool = True) -> list[Place]:
    """Return the places before, within and after a call, with what is held on both sides."""
    return [
        Place(role, call, Kind.INTENT, holds=before),
        Place(role, call, Kind.INTENT, is_within=True, holds=before),
        Place(role, call, Kind.OUTCOME, holds=after),
    ]


MODEL_SAVED: Final = Place("trainer", "model", Kind.SEEN)
STEP_COMMITTED: Final = Place("trainer", "commit_step", Kind.OUTCOME, holds=False)

_TRAINER: Final = [
    MODEL_SAVED,
    STEP_COMMITTED,
    *_around("trainer", "select", before=False),
    *_around("trainer", "slice"),
    *_around("trainer", "read"),
    *_around("trainer", "acknowledge"),
    Place("trainer", "train", Kind.SEEN),
    Place("trainer", "weights", Kind.SEEN),
    *_around("trainer", "commit_step")[:2],
]
_ROLLOUT: Final = [
    *_around("rollout", "cut", before=False),
    Place("rollout", "generate", Kind.SEEN),
    *_around("rollout", "commit", after=False),
]
_RANK: Final = [
    *_around("rank", "slice"),
    *_around("rank", "read"),
    *_around("rank", "acknowledge"),
]
_RESUMING: Final = [
    *_around("trainer", "resume", before=False, after=False),
    Place("trainer", "read", Kind.OUTCOME),
    STEP_COMMITTED,
]

_LONGEST_DELAY_SECONDS: Final = 0.004
_SHARE_KILLED_AGAIN: Final = 1 / 3
_SHARE_SAVED: Final = 1 / 2
"""How many of the kills around ``commit_step`` fall at a step whose model is saved."""


@dataclass(frozen=True, slots=True)
class KillPoint:
    """A kill that is due from a step on.

    Attributes:
        step: The step that is being trained then.
        passed_over: So many chances are let pass.
        delay_seconds: For a place within a call: how long after its intent.
        again: Where the trainer that resumes is killed once more, at once or in its first step.
    """

    victim: Victim
    step: int
    place: Place
    passed_over: int = 0
    delay_seconds: float = 0.0
    again: Place | None = None

    def describe(self) -> str:
        """Name the point for a reader."""
        whose = "" if self.victim.value == self.place.role else f"{self.place.role} "
        again = f", then {self.again.describe()}" if self.again else ""
        return f"{whose}{self.place.describe()}{again}"


def draw_kill_points(*, seed: int, count: int, lookahead: int, ranks: int) -> list[KillPoint]:
    """Return the kill points of as many runs, the same for the same arguments.

    Every other victim is the trainer, first after the save of a model and the commit of a step.
    Places are drawn without repetition while there are others; at half of them or more the
    process holds groups.
    """
    rng = random.Random(f"{seed}/{lookahead}/{ranks}")
    others = [Victim.ALL, Victim.ROLLOUT, Victim.SERVER, *([Victim.RANK] if ranks > 1 else [])]
    decks: dict[Victim, list[Place]] = {}
    points: list[KillPoint] = []
    for number in range(count):
        victim = Victim.TRAINER if number % 2 == 0 else others[number // 2 % len(others)]
        if not decks.get(victim):
            decks[victim] = _shuffled(victim, rng)
        deck = decks[victim]
        must_hold = 2 * sum(point.place.holds for point in points) < number + 1
        place = next((p for p in deck if p.holds or not must_hold), deck[0])
        deck.remove(place)
        points.append(_draw(victim, place, lookahead, rng))
    return points


def _shuffled(victim: Victim, rng: random.Random) -> list[Place]:
    places = {
        Victim.TRAINER: _TRAINER[2:],
        Victim.ROLLOUT: _ROLLOUT,
        Victim.RANK: _RANK,
        Victim.SERVER: [*_TRAINER, *_ROLLOUT],
        Victim.ALL: [*_TRAINER, *_ROLLOUT],
    }[victim]
    drawn = rng.sample(places, len(places))
    return [*_TRAINER[:2], *drawn] if victim is Victim.TRAINER else drawn


def _draw(victim: Victim, place: Place, lookahead: int, rng: random.Random) -> KillPoint:
    last = STEPS - 2
    if place.role == "rollout":
        last -= lookahead  # later, all batches are dispatched
    step = rng.randint(1, last)
    if place is MODEL_SAVED or (place.call == "commit_step" and rng.random() < _SHARE_SAVED):
        step = SAVE_EVERY_STEPS * rng.randint(1, last // SAVE_EVERY_STEPS) - 1
    in_batch = place.role == "rollout" and place.call != "cut"
    again: Place | None = None
    if victim in (Victim.TRAINER, Victim.ALL) and rng.random() < _SHARE_KILLED_AGAIN:
        again = rng.choice(_RESUMING)
    return KillPoint(
        victim,
        step,
        place,
        passed_over=rng.randrange(GROUPS_PER_STEP) if in_batch else 0,
        delay_seconds=rng.uniform(0.0, _LONGEST_DELAY_SECONDS),
        again=again,
    )


@dataclass(frozen=True, slots=True)
class Struck:
    """A kill as it was ordered.

    Attributes:
        step: The step that was being trained.
        held: Groups that the process at its line held, or for the server and for all that any did.
        in_flight: Groups that any process held, claimed or reserved.
    """

    step: int
    held: int
    in_flight: int


@dataclass
class ResumePlan:
    """The kills of one run, told line by line what its processes do.

    Attributes:
        struck: Kills that were ordered.
    """

    point: KillPoint | None
    owners: Sequence[str]
    struck: list[Struck] = field(default_factory=list[Struck])
    _passed_over: int = 0
    _held: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set[str]))

    @property
    def is_done(self) -> bool:
        """Whether every kill was ordered."""
        point = self.point
        return point is None or len(self.struck) == 1 + (point.again is not None)

    def aim(self, line: Line, *, step: int, held: int) -> Strike | None:
        """Return what to kill now that a process wrote this line."""
        own, in_flight = self._holdings(line)
        point = self.point
        if point is None or self.is_done:
            return None
        victim, place = point.victim, point.place
        if self.struck:
            assert point.again is not None
            victim, place = Victim.TRAINER, point.again
        if step < point.step or not _is_at(line, place):
            return None
        if not self.struck and self._passed_over < point.passed_over:
            self._passed_over += 1
            return None
        everybodys = victim in (Victim.SERVER, Victim.ALL)
        self.struck.append(Struck(step, in_flight if everybodys else own, in_flight))
        owners = {Victim.SERVER: (), Victim.ALL: self.owners}.get(victim, (line.who,))
        return Strike(
            owners=frozenset(owners),
            server=everybodys,
            delay_seconds=point.delay_seconds if place.is_within else 0.0,
        )

    def _holdings(self, line: Line) -> tuple[int, int]:
        """Return how many groups the process and all hold; before a call, those of the call too."""
        held = self._held[line.who]
        before, others = len(held), sum(map(len, self._held.values())) - len(held)
        if line.call == "attach" and line.result is Result.OK:
            held.clear()  # a new session holds nothing
        note_held(held, line)
        own = max(before, len(held)) if line.kind is Kind.INTENT else len(held)
        return own, own + others

    def note_death(self, owner: str, *, step: int, held: int) -> None:
        """Take note that a process is gone."""
        self._held[owner].clear()


def _is_at(line: Line, place: Place) -> bool:
    return (role_of(line.who), line.call, line.kind) == (place.role, place.call, place.kind)
