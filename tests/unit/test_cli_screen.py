"""What reaches the terminal: escaped texts, tables that lose nothing, bars, one JSON line."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from redis_replay.cli.failures import failure_line
from redis_replay.cli.screen import cell, facts, listing, printable, stacked_bar, write_json
from redis_replay.errors import ReplayError, StoreRefused, StoreUnavailable


def drawn(renderable: object, *, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain id-1_é漢", "plain id-1_é漢"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202eevil\u200b", r"\u202eevil\u200b"),
        ("\x00\x9b", r"\x00\x9b"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, shown: str) -> None:
    assert shown == printable(text)


def test_a_cell_is_never_markup() -> None:
    assert ["[bold]x[/bold] [link=http://y]z"] == drawn(
        cell("[bold]x[/bold] [link=http://y]z"), width=80
    )


def test_numbers_are_grouped_and_nothing_is_a_dash() -> None:
    assert ("1,234,567", "-", "True") == tuple(map(str, map(cell, (1234567, None, True))))


def test_a_long_cell_is_folded_and_never_cut() -> None:
    long_id = "x" * 30 + "y" * 30 + "z" * 7
    table = listing("Group", "Order", numbers=("Order",))
    table.add_row(cell(long_id), cell(5))
    header, _, *lines = drawn(table, width=40)
    assert long_id == "".join(line[: header.index("Order")].strip() for line in lines)


def test_facts_are_labels_and_words() -> None:
    grid = facts()
    grid.add_row("Server", "here")
    grid.add_row("", "and there")
    assert ["Server  here", "        and there"] == drawn(grid, width=40)


@pytest.mark.parametrize(
    ("amounts", "total", "bar"),
    [
        ((0, 0), 10, ".........."),
        ((5, 5), 10, "aaaaabbbbb"),
        ((1, 1), 1000, "ab........"),
        ((999, 1), 1000, "aaaaaaaaaa"),
        ((0, 10), 10, "bbbbbbbbbb"),
        ((30, 0), 10, "aaaaaaaaaa"),
        ((0, 0), 0, ".........."),
    ],
)
def test_a_bar_has_its_width_and_shows_every_part_for_which_there_is_room(
    amounts: tuple[int, int], total: int, bar: str
) -> None:
    parts = [(amounts[0], "a", "red"), (amounts[1], "b", "blue")]
    assert bar == stacked_bar(parts, total=total, width=10, empty=".").plain


def test_json_is_one_line_of_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    document = {"group_id": "é\x1b\n\u2028", "order": 1}
    write_json(document)
    [line] = capsys.readouterr().out.splitlines()
    assert (document, True) == (json.loads(line), line.isascii())


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        (ReplayError("it\nis   so"), "it is so."),
        (StoreUnavailable("x is away."), "x is away. Is it running, and is --url right?"),
        (StoreRefused("no"), "no. Check user, password and permissions"),
    ],
)
def test_a_failure_is_one_line_with_what_to_do(failure: ReplayError, line: str) -> None:
    found = failure_line(failure)
    assert found.startswith(line)
    assert "\n" not in found
