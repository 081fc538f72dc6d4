"""The figures as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.results import Outcome
from benchmarks.targets import WHOLE


def number(value: float | None) -> str:
    """Return a number with three digits that matter."""
    if value is None:
        return "-"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def verdict(holds: bool | None) -> str:
    """Return whether a limit is kept, in a word."""
    return {True: "yes", False: "no", None: "not measured"}[holds]


def table_of(outcomes: Iterable[Outcome]) -> Table:
    """Return a table of what was measured, a line for each part."""
    table = Table(box=None, pad_edge=False)
    for heading in ("", "part", "must", "ambition", "value", "spread", "holds"):
        table.add_column(heading, justify="left" if heading in ("", "part") else "right")
    for outcome in outcomes:
        for name, figure in outcome.figures.items():
            part = outcome.target.parts[name]
            sign = "≥" if part.direction.value == "at least" else "≤"
            holds = outcome.holds_part(name)
            table.add_row(
                outcome.target.id,
                outcome.target.what if name == WHOLE else name,
                f"{sign} {number(part.must)} {part.unit}".strip(),
                number(part.ambition),
                number(figure.value),
                f"{number(figure.low)} - {number(figure.high)}",
                verdict(holds),
                style="" if holds else "red",
            )
    return table


def show(console: Console, outcomes: list[Outcome], document: Mapping[str, Any]) -> None:
    """Print machine, versions, the table, and what was not measured."""
    for title in ("machine", "versions"):
        console.print(f"{title}: {', '.join(f'{k} {v}' for k, v in document[title].items())}")
    console.print(f"medians of {document['rounds']} rounds, lowest and highest beside them")
    console.print(table_of(outcomes))
    for name, why in document["skipped"].items():
        console.print(f"not measured: {name}: {why}", markup=False)
