"""From samples to figures: median, spread, whether a target holds, and the JSON document."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmarks.targets import TARGETS, WHOLE, Target

Samples: TypeAlias = Mapping[str, Sequence[float]]
"""One sample a round, by part of a target."""


@dataclass
class Found:
    """What one measurement found.

    Attributes:
        samples: By target id, then by part.
        details: Further figures, which have no target, for the JSON document and the page.
        skipped: Why a target, or the part ``"P13 ray"`` of one, was not measured.
    """

    samples: dict[str, Samples] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, other: Found) -> None:
        """Take over what another measurement found."""
        for target_id, samples in other.samples.items():
            self.samples[target_id] = {**self.samples.get(target_id, {}), **samples}
        self.details.update(other.details)
        self.skipped.update(other.skipped)


@dataclass(frozen=True)
class Figure:
    """One part's value: the median of its rounds, with the lowest and the highest."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Figure:
        """Return the figure of samples, at least one."""
        return cls(statistics.median(samples), min(samples), max(samples))


@dataclass(frozen=True)
class Outcome:
    """A target and what was measured of it.

    Attributes:
        figures: By part, in the target's order; parts that were not measured are missing.
    """

    target: Target
    figures: Mapping[str, Figure]

    @property
    def holds(self) -> bool | None:
        """Whether all measured parts keep their limits, ``None`` where none was measured."""
        if not self.figures:
            return None
        return all(self.holds_part(name) for name in self.figures)

    @property
    def is_whole(self) -> bool:
        """Whether every part was measured."""
        return self.figures.keys() == self.target.parts.keys()

    def holds_part(self, name: str) -> bool:
        """Return whether one measured part keeps its limit."""
        return self.target.parts[name].holds(self.figures[name].value)

    def as_document(self) -> dict[str, Any]:
        """Return value, limits and spread, each by part; plain where the target has one part."""
        parts, figures = self.target.parts, self.figures
        return {
            "what": self.target.what,
            "value": _flat({name: figure.value for name, figure in figures.items()}),
            "must": _flat({name: part.must for name, part in parts.items()}),
            "ambition": _flat({name: part.ambition for name, part in parts.items()}),
            "direction": _flat({name: part.direction.value for name, part in parts.items()}),
            "unit": _flat({name: part.unit for name, part in parts.items()}),
            "spread": _flat({name: [figure.low, figure.high] for name, figure in figures.items()}),
            "holds": self.holds,
            "holds_parts": _flat({name: self.holds_part(name) for name in figures}),
            "whole": self.is_whole,
        }


def _flat(by_part: Mapping[str, Any]) -> Any:
    """Return the value alone where there is only the whole, ``None`` where there is nothing."""
    return by_part.get(WHOLE) if by_part.keys() <= {WHOLE} else dict(by_part)


def outcomes_of(found: Found) -> list[Outcome]:
    """Return the outcome of every target, measured or not, in order.

    Raises:
        ValueError: samples of a part that no target has.
    """
    known = {target.id: target.parts.keys() for target in TARGETS}
    for target_id, samples in found.samples.items():
        if strange := samples.keys() - known.get(target_id, set()):
            raise ValueError(f"{target_id} has no parts {sorted(strange)}")
    outcomes: list[Outcome] = []
    for target in TARGETS:
        samples = found.samples.get(target.id, {})
        figures = {name: Figure.of(samples[name]) for name in target.parts if name in samples}
        outcomes.append(Outcome(target, figures))
    return outcomes


def document_of(found: Found, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON document: the machine's facts, every target, further figures."""
    return {
        **facts,
        "targets": {one.target.id: one.as_document() for one in outcomes_of(found)},
        "skipped": found.skipped,
        "details": found.details,
    }
