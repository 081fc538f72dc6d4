"""What makes a demo run a failure, and what is printed of it."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from redis_replay.audit import AuditReport, Violation
from redis_replay.demo.kills import Kill
from redis_replay.demo.outcome import Outcome
from redis_replay.demo.plot import draw
from redis_replay.demo.report import print_report
from redis_replay.demo.supervisor import Inventory
from redis_replay.demo.verdict import End, TrainedStep, Verdict
from redis_replay.types import BufferStats

CLEAN = AuditReport(groups_checked=2, violations=())
VERDICT = Verdict(
    dispatched=9,
    ends={End.TRAINED: 4, End.EVICTED: 2, End.ABORTED: 1},
    live=2,
    lost=0,
    trained_twice=0,
    regenerated_committed=0,
    retrained_steps=0,
    redispatched=3,
    explained=1,
    steps=[
        TrainedStep(step=0, at_ns=0, reward=0.1, lags=[0, 0]),
        TrainedStep(step=1, at_ns=500_000_000, reward=0.6, lags=[1, 2]),
    ],
    findings=[],
)
STATS = BufferStats(
    reserved=1,
    ready=1,
    claimed=0,
    quarantined=0,
    capacity=48,
    payload_bytes=0,
    reserved_total=9,
    trained=4,
    filtered=0,
    evicted=2,
    aborted=1,
    removed=0,
    requeued=0,
    dispatch_index=2,
    trainer_version=2,
    gate_window=2,
)
KILLS = (Kill("trainer", 0, 2), Kill("rollout-1", 1, 1), Kill("server", 1, 3))


def outcome(*, stats: BufferStats = STATS, audit: AuditReport = CLEAN, **changes: Any) -> Outcome:
    facts: dict[str, Any] = {
        "sampler": "in_order",
        "seed": 1,
        "reward_first": 0.0,
        "reward_last": 0.5,
        "verdict": VERDICT,
        "kills": KILLS,
        "seconds": 12.3,
        "inventory": Inventory(stats, audit),
    }
    return Outcome(**{**facts, **changes})


def test_a_run_whose_accounts_agree_has_no_fault() -> None:
    assert [] == outcome().faults


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"reserved_total": 10}, "dispatched: 9 by the logs, 10 by the store"),
        ({"trained": 5}, "trained: 4 by the logs, 5 by the store"),
        ({"evicted": 0}, "evicted: 2 by the logs, 0 by the store"),
        ({"aborted": 2}, "aborted: 1 by the logs, 2 by the store"),
        ({"quarantined": 1}, "live: 2 by the logs, 3 by the store"),
        ({"trainer_version": 3}, "steps: 2 by the logs, 3 by the store"),
    ],
)
def test_a_store_that_says_otherwise_than_the_logs_is_a_fault(
    change: dict[str, int], fault: str
) -> None:
    assert [fault] == outcome(stats=dataclasses.replace(STATS, **change)).faults


def test_a_violated_invariant_is_a_fault() -> None:
    audit = dataclasses.replace(CLEAN, violations=(Violation(2, "totals differ"),))
    found = outcome(audit=audit)
    assert ["audit, invariant 2: totals differ"] == found.faults
    assert found.to_document()["audit_clean"] is False


def test_a_finding_of_the_verdict_is_a_fault() -> None:
    verdict = dataclasses.replace(VERDICT, findings=["group g1 was trained 2 times"])
    assert ["group g1 was trained 2 times"] == outcome(verdict=verdict).faults


@pytest.mark.parametrize(("last", "faults"), [(0.35, 0), (0.3, 1), (0.25, 1)])
def test_a_reward_that_does_not_rise_is_a_fault(last: float, faults: int) -> None:
    found = outcome(reward_first=0.25, reward_last=last)
    assert faults == len(found.faults)


def test_the_document_has_every_figure_of_the_run() -> None:
    document = json.loads(json.dumps(outcome().to_document()))
    expected = {
        "steps": 2,
        "reward_first": 0.0,
        "reward_last": 0.5,
        "dispatched": 9,
        "trained": 4,
        "evicted": 2,
        "aborted": 1,
        "live": 2,
        "lost": 0,
        "trained_twice": 0,
        "regenerated_committed": 0,
        "retrained_steps": 0,
        "redispatched": 3,
        "open_calls_explained": 1,
        "kills": [
            {"what": "trainer", "at_step": 0, "held": 2},
            {"what": "rollout-1", "at_step": 1, "held": 1},
            {"what": "server", "at_step": 1, "held": 3},
        ],
        "seconds": 12.3,
        "sampler": "in_order",
        "seed": 1,
        "staleness": {"min": 0, "mean": 0.75, "max": 2},
        "groups_per_second": 4.0,
        "audit_clean": True,
        "faults": [],
    }
    assert expected == document


def test_the_report_shows_the_balance_and_every_fault() -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    lost = dataclasses.replace(VERDICT, live=1, lost=1, findings=["group g3 is lost"])
    print_report(console, outcome())
    print_report(console, outcome(verdict=lost))
    text = console.export_text()
    assert "dispatched 9 = trained 4 + evicted 2 + aborted 1 + live 2" in text
    assert "Nothing was lost and nothing was trained twice." in text
    assert "dispatched 9 != trained 4 + evicted 2 + aborted 1 + live 1" in text
    assert "FAILED:\n  group g3 is lost" in text


def test_the_picture_is_a_png_in_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "picture.png"
    draw(path, outcome())
    assert b"\x89PNG" == path.read_bytes()[:4]


def test_a_run_without_steps_can_be_reported(tmp_path: Path) -> None:
    empty = outcome(verdict=dataclasses.replace(VERDICT, steps=[]), kills=())
    assert {"min": 0, "mean": 0.0, "max": 0} == empty.to_document()["staleness"]
    draw(tmp_path / "picture.png", empty)
