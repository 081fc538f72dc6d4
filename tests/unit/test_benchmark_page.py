"""The page says what was measured, what was missed and why, and what was not measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.page import page_of, read_notes, table
from benchmarks.plots import COSTS, SPEEDS, draw_plots
from benchmarks.results import Found, document_of, outcomes_of
from benchmarks.screen import number
from benchmarks.targets import TARGET_IDS, TARGETS, WHOLE

FACTS = {
    "machine": {"cores": 2, "load": [0.5, 0.25]},
    "versions": {"python": "3.11"},
    "rounds": 7,
    "quick": False,
    "seconds": 12,
}
SIDES = {"ours": 200.0, "peer": 50.0}
PEER = {
    "title": "a peer",
    "groups/s": dict.fromkeys(("small", "standard", "long"), SIDES),
    "choose 64, ms": {"1000": 0.5},
}
MILLISECONDS = {"1000": 1.0, "10000": 1.5}
SPEED = {side: {"MB/s": 100.0} for side in ("limit", "channel")}


def page(found: Found, *, notes: dict[str, Any] | None = None, **facts: object) -> str:
    """Return the page of what was found."""
    document = document_of(found, {**FACTS, **facts})
    return page_of(outcomes_of(found), document, notes or {}, [COSTS])


def line_of(text: str, start: str) -> str:
    """Return the one line that begins so."""
    [line] = [line for line in text.splitlines() if line.startswith(start)]
    return line


def test_each_target_has_its_line_with_limits_value_spread_and_verdict() -> None:
    text = page(Found(samples={"P5": {WHOLE: [6.0, 8.0, 9.0]}}))
    assert line_of(text, "| P5 ").endswith("| ≤ 7.00 | ≤ 4.00 | 8.00 | 6.00 to 9.00 | no |")
    for target in TARGETS:
        assert target.what in line_of(text, f"| {target.id} ")
        assert target.how in line_of(text, f"- **{target.id}**")


def test_a_target_that_was_not_measured_says_so_and_why() -> None:
    text = page(Found(skipped={"P13": "no peers here"}))
    assert line_of(text, "| P9 ").endswith("not measured |")
    assert "- P13: no peers here" in text


def test_what_was_missed_is_explained_and_what_was_kept_is_not() -> None:
    found = Found(samples={"P1": {"small": [0.1], "long": [0.9]}, "P5": {WHOLE: [1.0]}})
    text = page(found, notes={"missed": {"P1": "small is small", "P5": "never shown"}})
    assert "**P1** (small). small is small" in text
    assert "never shown" not in text


def test_a_run_that_misses_nothing_says_so() -> None:
    assert "All targets that were measured are kept." in page(Found())


def test_machine_versions_and_rounds_stand_on_the_page() -> None:
    text = page(Found())
    assert "| load | 0.50, 0.25 |" in text
    assert "| python | 3.11 |" in text
    assert "| rounds | 7 |" in text
    assert "quick run" not in text
    assert "quick run" in page(Found(), quick=True)


def test_peers_are_shown_beside_the_store_in_the_same_rounds() -> None:
    details = {"peer x": PEER, "scaling": {"ms by groups": {"claim": MILLISECONDS}}}
    text = page(Found(details=details))
    assert "| a peer | 50.0 / 200 | 50.0 / 200 | 50.0 / 200 | 0.50 |" in text
    assert "| the store |  |  |  | 1.00 |" in text
    assert "### Peer x" not in text


def test_further_figures_with_the_same_names_share_a_table() -> None:
    details = {"steps": {"claim": {"wall": 1.0, "processor": 0.5}, "settle": SIDES}}
    text = page(Found(details=details))
    assert "| settle, ours | 200 |" in text  # alone with its names
    details["steps"]["settle"] = {"wall": 2.0, "processor": 1.5}
    text = page(Found(details=details))
    assert table(("", "wall", "processor"), [("claim", "1.00", "0.50")]) in text


def test_pictures_are_shown_where_they_were_drawn() -> None:
    assert f"(plots/{COSTS})" in page(Found())
    assert SPEEDS not in page(Found())


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.123, "0.12"), (12.34, "12.3"), (1234.5, "1,234")],
)
def test_numbers_have_three_digits_that_matter(value: float | None, shown: str) -> None:
    assert shown == number(value)


def test_the_notes_explain_targets_that_there_are() -> None:
    notes = read_notes()
    assert set() == notes["missed"].keys() - set(TARGET_IDS)
    assert notes["text"]


def test_pictures_are_drawn_of_what_there_are_figures_for(tmp_path: Path) -> None:
    verbs = ("claim", "settle", "evict", "commit", "reserve", "miss")
    scaling = {"ping ms": 0.1, "ms by groups": dict.fromkeys(verbs, MILLISECONDS)}
    transfer = {"transfer small": {"commit": SPEED, "read": SPEED}}
    assert [] == draw_plots(tmp_path, {})
    assert [COSTS] == draw_plots(tmp_path, {"scaling": scaling})
    assert [COSTS, SPEEDS] == draw_plots(tmp_path, {"scaling": scaling, **transfer})
    for name in (COSTS, SPEEDS):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
