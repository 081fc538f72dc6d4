"""The page of figures, written from one run's document and the hand-written notes beside it.

Nothing on the page is edited by hand; what is to be said in words stands in ``notes.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.results import Outcome
from benchmarks.screen import number, verdict
from benchmarks.targets import PROFILE_NAMES, WHOLE

NOTES: Final = Path(__file__).with_name("notes.toml")

_HEAD: Final = """\
# Performance

Written by `scripts/bench --peers --write-docs` from one run; do not edit it. The notes come from
`scripts/benchmarks/notes.toml`, the targets from `scripts/benchmarks/targets.py`.

Every ratio is of two sides that took turns within each round. A value is the median of the rounds,
and the spread goes from the lowest to the highest round. The server runs on a unix socket without
persistence, which is the harder comparison. A group is 16 rows of input_ids int32[L],
generation_logprobs float32[L], token_mask uint8[L], reward and length; small is L = 512 (74 KB),
standard 4,096 (590 KB), long 32,768 (4.7 MB).
"""
_QUICK: Final = "This was a quick run, whose buffers and rounds are small.\n\n"
_PICTURES: Final = {
    "cost-by-groups.png": "Milliseconds of calls and checkpoints against groups in the buffer",
    "speed-by-group-size.png": "MB/s of commits and reads against the size of a group",
}


def read_notes(path: Path = NOTES) -> dict[str, Any]:
    """Return the notes: ``missed`` and ``text``, by target id and by heading."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def page_of(
    outcomes: Sequence[Outcome],
    document: Mapping[str, Any],
    notes: Mapping[str, Any],
    pictures: Iterable[str],
) -> str:
    """Return the page as Markdown.

    Args:
        outcomes: Of every target, in order.
        document: The JSON document of the same run.
        notes: As `read_notes` returns them.
        pictures: Names of files in the folder ``plots`` beside the page.
    """
    parts = [
        _HEAD,
        _run(document),
        "## Targets\n\n" + _targets(outcomes, document["skipped"]),
        "## What was missed\n\n" + _missed(outcomes, notes.get("missed", {})),
        "## Peers\n\n" + _peers(document),
        *(f"![{_PICTURES[name]}](plots/{name})\n" for name in pictures),
        "## Further figures\n\n" + _details(document["details"]),
        "## How each target is measured\n\n" + _how(outcomes),
        *(f"## {heading}\n\n{text.strip()}\n" for heading, text in notes.get("text", {}).items()),
    ]
    return "\n".join(parts)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _run(document: Mapping[str, Any]) -> str:
    facts = {
        **{name.replace("_", " "): value for name, value in document["machine"].items()},
        **document["versions"],
        "rounds": document["rounds"],
        "seconds of the run": document["seconds"],
    }
    quick = _QUICK if document["quick"] else ""
    rows = [(name, _text(value)) for name, value in facts.items()]
    return "## The run\n\n" + quick + table(("what", "value"), rows)


def _targets(outcomes: Iterable[Outcome], skipped: Mapping[str, str]) -> str:
    rows: list[list[str]] = []
    for outcome in outcomes:
        target = outcome.target
        for at, (name, part) in enumerate(target.parts.items()):
            figure = outcome.figures.get(name)
            sign = "≥" if part.direction.value == "at least" else "≤"
            ambition = "" if part.ambition is None else f"{sign} {number(part.ambition)}"
            head = [target.id, target.what] if at == 0 else ["", ""]
            row = [*head, name, f"{sign} {number(part.must)} {part.unit}".strip(), ambition]
            if figure is None:
                rows.append([*row, "", "", "not measured"])
                continue
            spread = f"{number(figure.low)} to {number(figure.high)}"
            holds = verdict(outcome.holds_part(name))
            rows.append([*row, number(figure.value), spread, holds])
    shown = table(("", "what", "part", "must", "ambition", "value", "spread", "holds"), rows)
    reasons = "".join(f"- {name}: {why}\n" for name, why in skipped.items())
    return shown + (f"\nNot measured:\n\n{reasons}" if reasons else "")


def _missed(outcomes: Iterable[Outcome], notes: Mapping[str, str]) -> str:
    lines: list[str] = []
    for outcome in outcomes:
        parts = [name for name in outcome.figures if not outcome.holds_part(name)]
        if parts:
            named = "" if parts == [WHOLE] else f" ({', '.join(parts)})"
            note = notes.get(outcome.target.id, "No reason is known yet.").strip()
            lines.append(f"**{outcome.target.id}**{named}. {note}\n")
    return "\n".join(lines) or "All targets that were measured are kept.\n"


def _peers(document: Mapping[str, Any]) -> str:
    found = [one for name, one in document["details"].items() if name.startswith("peer ")]
    if not found:
        return "No peers were measured in this run; `--peers` does.\n"
    among = sorted({size for one in found for size in one["choose 64, ms"]}, key=int)
    rows: list[list[str]] = []
    for one in found:
        speeds = [one["groups/s"][name] for name in PROFILE_NAMES]
        chosen = [number(one["choose 64, ms"].get(size)) for size in among]
        pairs = [f"{number(pair['peer'])} / {number(pair['ours'])}" for pair in speeds]
        rows.append([one["title"], *pairs, *chosen])
    ours = document["details"].get("scaling", {}).get("ms by groups", {}).get("claim", {})
    if ours:
        rows.append(["the store", "", "", "", *(number(ours.get(size)) for size in among)])
    headings = [f"{name}, peer / store" for name in PROFILE_NAMES]
    return (
        "Groups a second through the whole lifecycle (put one by one, choose, read all rows, "
        "release), the peer's and the store's of the same rounds; and milliseconds to choose 64 "
        "groups. The store's claim includes the metas of its 1,024 rows and takes the groups; what "
        "peers choose is ids or, with TorchRL, the rows of tiny groups.\n\n"
        + table(["peer", *headings, *(f"choose among {int(n):,}, ms" for n in among)], rows)
    )


def _details(details: Mapping[str, Any]) -> str:
    shown: list[str] = []
    for name, found in details.items():
        if not name.startswith("peer "):
            shown.append(f"### {name[0].upper()}{name[1:]}\n\n{_nested(found)}")
    return "\n".join(shown)


def _nested(found: Any) -> str:
    """Return tables of what may hold further tables.

    Where several of them have the same names, these become the columns of one table.
    """
    by_names: dict[tuple[str, ...], list[tuple[str, Mapping[str, Any]]]] = {}
    for path, leaves in _innermost(found):
        by_names.setdefault(tuple(leaves), []).append((path, leaves))
    shown: list[str] = []
    for names, listed in by_names.items():
        if len(listed) > 1 and len(names) > 1:
            rows = [(path, *map(_text, leaves.values())) for path, leaves in listed]
            shown.append(table(("", *names), rows))
        else:
            pairs = [
                (", ".join(filter(None, (path, name))), _text(value))
                for path, leaves in listed
                for name, value in leaves.items()
            ]
            shown.append(table(("what", "value"), pairs))
    return "\n".join(shown)


def _innermost(found: Any, path: str = "") -> Iterable[tuple[str, Mapping[str, Any]]]:
    """Yield the plain values of each table with the path to it."""
    if not isinstance(found, Mapping):
        found = {"": found}
    leaves = {name: value for name, value in found.items() if not isinstance(value, Mapping)}
    if leaves:
        yield path, leaves
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _innermost(value, f"{path}, {name}" if path else str(name))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_text(one) for one in value)
    if isinstance(value, str) and value.isdecimal():
        return f"{int(value):,}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return number(value) if isinstance(value, float) else f"{value:,}" if is_number else str(value)


def _how(outcomes: Iterable[Outcome]) -> str:
    return "".join(f"- **{one.target.id}**: {one.target.how}\n" for one in outcomes)
