"""The progress bar of export and import: for people only, and on stderr."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from redis_replay.checkpoint_info import TransferProgress
from redis_replay.cli.checkpoint_transfer import progress_bar


def test_a_bar_for_each_stage_says_how_far_it_is_and_goes_away() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, _environ={"TERM": "xterm"})
    with progress_bar(console) as update:
        update(TransferProgress("check", 10_000_000, 20_000_000))
        update(TransferProgress("write", 5_000_000, 20_000_000))
        console.print("")
    drawn = screen.getvalue()
    for words in ("checking", "writing", "10.0/20.0 MB", "5.0/20.0 MB"):
        assert words in drawn


def test_nothing_is_drawn_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar() as update:
        update(TransferProgress("write", 1, 2))
    assert ("", "") == capsys.readouterr()
