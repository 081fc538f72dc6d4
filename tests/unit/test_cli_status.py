"""How ``status`` words a run: gate, totals, sessions."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from redis_replay.cli.status import admissible_batches, run_document, run_view
from redis_replay.cli.survey import OwnerSurvey, RunSurvey
from redis_replay.run import RunSettings
from redis_replay.types import BufferStats

STATS = BufferStats(
    reserved=0,
    ready=0,
    claimed=0,
    quarantined=0,
    capacity=64,
    payload_bytes=0,
    reserved_total=0,
    trained=0,
    filtered=0,
    evicted=0,
    aborted=0,
    removed=0,
    requeued=0,
    dispatch_index=-1,
    trainer_version=0,
    gate_window=None,
)
SURVEY = RunSurvey(
    run="r",
    partition="p",
    lineage="abc",
    store_epoch=1,
    seq=0,
    settings=RunSettings(
        capacity=64, group_size=8, max_attempts=5, max_requeues=5, journal_events=100
    ),
    policy=None,
    windows={},
    stats=STATS,
    tickets=0,
    ended_sessions=0,
    owners=(),
)
OWNER = OwnerSurvey(
    owner="job",
    role="trainer",
    epoch=1,
    lease_seconds=60.0,
    heartbeats=3,
    world=1,
    host="vm.1",
    reserved=0,
    claimed=0,
)


def survey(*, stats: dict[str, Any] | None = None, **changes: Any) -> RunSurvey:
    return replace(SURVEY, stats=replace(STATS, **(stats or {})), **changes)


def shown(found: RunSurvey, *, width: int = 100, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(run_view(found, width=width, **options))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("policy", "cursor", "trainer", "window", "room"),
    [
        (None, -1, 0, None, None),
        ("windowed", -1, 7, None, None),
        ("in_order", -1, 0, 0, 1),
        ("in_order", 0, 0, 0, 0),
        ("in_order", 0, 1, 0, 1),
        ("ready_first", 3, 2, 1, 0),
        ("ready_first", 3, 2, 4, 3),
        ("weight_fifo", 9, 2, 1, 0),
    ],
)
def test_the_room_at_the_gate_is_trainer_version_plus_window_minus_cursor(
    policy: str | None, cursor: int, trainer: int, window: int | None, room: int | None
) -> None:
    stats = {"dispatch_index": cursor, "trainer_version": trainer, "gate_window": window}
    found = survey(policy=policy, stats=stats)
    assert room == admissible_batches(found)
    assert (room != 0) == run_document(found)["gate_open"]


@pytest.mark.parametrize(
    ("stats", "policy", "words"),
    [
        ({}, None, "no batch yet; no gate"),
        ({"dispatch_index": 4, "gate_window": 0, "trainer_version": 4}, "in_order", "closed until"),
        ({"dispatch_index": 4, "gate_window": 1, "trainer_version": 3}, "in_order", "version 4"),
        ({"gate_window": 1}, "in_order", "no batch yet; gate window 1: open for 2 more batches"),
    ],
)
def test_the_dispatch_line_says_when_the_gate_opens(
    stats: dict[str, Any], policy: str | None, words: str
) -> None:
    assert words in shown(survey(policy=policy, stats=stats))


def test_a_fresh_run_is_described_without_a_sampler_or_session() -> None:
    text = shown(SURVEY)
    assert "none yet: no sampler has been used" in text
    assert "No session is attached." in text
    assert "0 reserved = 0 live" in text


def test_trouble_is_shown() -> None:
    stats = {
        "reserved": 1,
        "quarantined": 2,
        "reserved_total": 12,
        "evicted": 5,
        "aborted": 4,
        "requeued": 3,
        "ends": {"evicted:evicted": 5, "aborted:stale": 4},
    }
    text = " ".join(shown(survey(tickets=1, ended_sessions=1, stats=stats)).split())
    for words in (
        "1 reserved (1 ticket to redispatch)",
        "2 quarantined",
        "12 reserved = 3 live + 5 evicted + 4 aborted; 4 aborted as stale, 3 requeues",
        "1 ended session still being drained.",
    ):
        assert words in text


def test_limits_that_are_set_are_shown() -> None:
    settings = replace(SURVEY.settings, groups_per_step=1200, max_payload_bytes=2_000_000)
    text = " ".join(shown(survey(settings=settings)).split())
    assert "8 samples a group, 1,200 groups a step" in text
    assert "2.0 MB of payload" in text


def test_sessions_are_a_table_with_what_they_hold() -> None:
    owners = (
        replace(OWNER, world=4, claimed=16),
        replace(OWNER, owner="host\x1b", role="rollout", reserved=2, claimed=1),
        replace(OWNER, owner="idle"),
    )
    lines = [line.split() for line in shown(survey(owners=owners)).splitlines()[-3:]]
    assert ["job", "trainer", "x4", "16", "claimed", "1", "60", "s", "3", "vm.1"] == lines[0]
    assert [r"host\x1b", "rollout", "2", "reserved,", "1", "claimed"] == lines[1][:6]
    assert ["idle", "trainer", "-"] == lines[2][:3]


def test_the_bar_can_be_drawn_in_ascii() -> None:
    text = shown(survey(stats={"ready": 32}), blocks="#=-.")
    assert "=" * 14 in text
    assert text.isascii()


@pytest.mark.parametrize("width", [50, 80, 200])
def test_a_run_keeps_to_the_width(width: int) -> None:
    text = shown(survey(stats={"ready": 32}, owners=(OWNER,)), width=width)
    assert [] == [line for line in text.splitlines() if len(line) > width]
