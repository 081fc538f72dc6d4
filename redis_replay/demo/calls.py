"""The calls of a run as its logs tell them: each intent, its outcome, and who could see later."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redis_replay.demo.observation import SEEN_STORE
from redis_replay.demo.settings import SUPERVISOR
from redis_replay.demo.witness import Kind, Line, Result, group_ids


@dataclass(frozen=True, slots=True)
class Call:
    """An intent, and its outcome unless the process died before it could say so."""

    intent: Line
    outcome: Line | None

    @property
    def is_open(self) -> bool:
        """Whether the process could not say what came of it."""
        return self.outcome is None or self.outcome.result is Result.UNKNOWN

    @property
    def is_done(self) -> bool:
        """Whether the process said that it succeeded."""
        return self.outcome is not None and self.outcome.result is Result.OK

    @property
    def groups(self) -> list[str]:
        """The groups it is about."""
        return group_ids(self.intent.facts)

    def found(self, name: str) -> Any:
        """Return a fact of the outcome, ``None`` without one."""
        return None if self.outcome is None else self.outcome.facts.get(name)

    def describe(self) -> str:
        """Name the call for a reader of the logs."""
        intent = self.intent
        return f"{intent.call} (call {intent.number} of {intent.who}, life {intent.life})"


@dataclass(frozen=True, slots=True)
class Observation:
    """The store as a process found it when it attached, or as the supervisor found it at the end.

    Attributes:
        prompts: How many prompts were dispatched by then.
        states: Live groups and their states.
    """

    line: Line
    trainer_version: int
    prompts: int
    states: dict[str, str]


@dataclass(frozen=True)
class History:
    """All logs of a run."""

    lines: Sequence[Line]
    calls: Sequence[Call]
    observations: Sequence[Observation]

    @classmethod
    def from_lines(cls, lines: Sequence[Line]) -> History:
        """Pair intents with outcomes."""
        ordered = sorted(lines)
        outcomes = {
            (line.who, line.life, line.number): line
            for line in ordered
            if line.kind is Kind.OUTCOME
        }
        calls = [
            Call(line, outcomes.get((line.who, line.life, line.number)))
            for line in ordered
            if line.kind is Kind.INTENT
        ]
        seen = [
            Observation(
                line,
                int(line.facts["trainer_version"]),
                int(line.facts["prompts"]),
                dict(line.facts["slots"]),
            )
            for line in ordered
            if line.kind is Kind.SEEN and line.call == SEEN_STORE
        ]
        return cls(ordered, calls, seen)

    def named(self, call: str) -> Iterator[Call]:
        """Return the calls of a name."""
        return (found for found in self.calls if found.intent.call == call)

    @property
    def final(self) -> Observation | None:
        """What the supervisor found after all others had ended."""
        found = [seen for seen in self.observations if seen.line.who == SUPERVISOR]
        return found[-1] if found else None

    def witness_of(self, call: Call) -> Observation | None:
        """Return the first observation that settles a call whose process could not say.

        It is that of a later process of the same owner, whose attachment fenced the older one, or
        the supervisor's at the end.
        """
        intent = call.intent
        for seen in self.observations:
            later_life = seen.line.who == intent.who and seen.line.life > intent.life
            if seen.line > intent and (later_life or seen.line.who == SUPERVISOR):
                return seen
        return None
