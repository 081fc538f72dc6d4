"""What commands write to stdout: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

LABEL_STYLE: Final = "bold"
QUIET_STYLE: Final = "dim"
GOOD_STYLE: Final = "green"
BAD_STYLE: Final = "bold red"

_LEAST_COLUMN: Final = 8


def open_console() -> Console:
    """Return a console on stdout as it is now; as wide as the terminal or ``COLUMNS`` say."""
    return Console(highlight=False)


def write_json(document: Mapping[str, Any]) -> None:
    """Write one JSON object as one line; control characters are escaped."""
    typer.echo(json.dumps(document))


def printable(text: str) -> str:
    """Return a text with what is not printable escaped, so that no id can drive the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cell(value: object, *, style: str = "") -> Text:
    """Return a value for a table: ``-`` for none, never markup, never control characters."""
    if value is None:
        return Text("-", style=QUIET_STYLE)
    return Text(printable(f"{value:,}" if type(value) is int else str(value)), style=style)


def listing(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table; the columns named in ``numbers`` are aligned to the right.

    Other cells are folded where they do not fit, never cut: an id that was printed can be copied.
    """
    table = Table(
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        header_style=LABEL_STYLE,
    )
    for name in columns:
        if name in numbers:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", min_width=min(_LEAST_COLUMN, len(name)))
    return table


def facts() -> Table:
    """Return an empty grid of two columns: a label and what is said about it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=LABEL_STYLE, no_wrap=True)
    grid.add_column(overflow="fold")
    return grid


def stacked_bar(
    parts: Sequence[tuple[int, str, str]], *, total: int, width: int, empty: str
) -> Text:
    """Return a bar in which each part has its share of the total.

    A part that is not zero has a cell at least, as long as there is room.

    Args:
        parts: Each an amount, the character that draws it, and its style.
        total: What the whole bar stands for.
        width: Cells of the whole bar.
        empty: What draws the rest.
    """
    bar = Text()
    left = width
    for amount, character, style in parts:
        share = round(width * amount / total) if total else 0
        cells = min(left, max(share, 1 if amount else 0))
        bar.append(character * cells, style=style)
        left -= cells
    return bar.append(empty * left, style=QUIET_STYLE)
