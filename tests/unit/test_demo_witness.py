"""The logs of the demo's processes: what is on disk when, and what a killed process leaves."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from redis_replay.demo.witness import Kind, Line, Result, Witness, read_log, read_logs
from redis_replay.errors import AdmissionConflict, StoreUnavailable


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "rollout-1.0.jsonl"


def written(path: Path) -> list[tuple[Kind, str, dict[str, Any]]]:
    return [(line.kind, line.call, dict(line.facts)) for line in read_log(path)]


def test_the_intent_is_on_disk_before_the_call(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr("redis_replay.demo.witness.os.fsync", lambda fd: synced.append(fsync(fd)))
    witness = Witness(log, who="rollout-1")
    with witness.calling("commit", group="g0"):
        assert [(Kind.INTENT, "commit", {"group": "g0"})] == written(log)
        assert 1 == len(synced)
    assert 2 == len(synced)
    witness.close()


def test_an_outcome_states_what_was_found_under_the_number_of_its_intent(log: Path) -> None:
    witness = Witness(log, who="rollout-1", life=3)
    with witness.calling("cut", groups=["g0"]) as found:
        found["groups"] = ["g0"]
    witness.close()
    intent, outcome = read_log(log)
    assert (intent.number, 3) == (outcome.number, outcome.life)
    assert {"result": Result.OK, "groups": ["g0"]} == outcome.facts
    assert intent < outcome


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (AdmissionConflict("moved"), Result.REFUSED),
        (StoreUnavailable("gone"), Result.UNKNOWN),
    ],
)
def test_an_error_is_written_and_goes_on(log: Path, error: Exception, result: Result) -> None:
    witness = Witness(log, who="rollout-1")
    with pytest.raises(type(error)), witness.calling("cut"):
        raise error
    witness.close()
    outcome = read_log(log)[-1]
    assert (result, type(error).__name__) == (outcome.result, outcome.facts["error"])


@pytest.mark.anyio
async def test_a_call_that_was_cancelled_says_so(log: Path) -> None:
    witness = Witness(log, who="trainer")
    with anyio.move_on_after(0.01), witness.calling("select"):
        await anyio.sleep_forever()
    witness.close()
    assert Result.CANCELLED is read_log(log)[-1].result


@pytest.mark.anyio
async def test_a_fault_of_the_program_leaves_the_call_open(log: Path) -> None:
    witness = Witness(log, who="trainer")
    with pytest.raises(ZeroDivisionError), witness.calling("select"):
        raise ZeroDivisionError
    witness.close()
    assert [Kind.INTENT] == [line.kind for line in read_log(log)]


def test_a_last_line_without_its_end_is_no_line(log: Path) -> None:
    witness = Witness(log, who="trainer")
    witness.saw("model", version=1)
    witness.saw("model", version=2)
    witness.close()
    whole = log.read_bytes()
    for kept in range(len(whole) // 2 + 1, len(whole)):
        log.write_bytes(whole[:kept])
        assert [(Kind.SEEN, "model", {"version": 1})] == written(log)


def test_a_damaged_line_in_the_middle_is_named(log: Path) -> None:
    log.write_text('{"at_ns": 1}\n{}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"rollout-1\.0\.jsonl, line 1"):
        read_log(log)


def test_every_line_is_repeated_after_it_is_on_disk(log: Path) -> None:
    echo = io.StringIO()
    witness = Witness(log, who="trainer", echo=echo)
    witness.saw("model", version=1)
    witness.close()
    assert log.read_text(encoding="utf-8") == echo.getvalue()
    assert read_log(log) == [Line.from_json(echo.getvalue())]


def test_logs_are_read_in_the_order_of_the_clock(tmp_path: Path) -> None:
    first = Witness(tmp_path / "a.jsonl", who="a")
    second = Witness(tmp_path / "b.jsonl", who="b")
    for witness in (second, first, second):
        witness.saw("model")
    first.close()
    second.close()
    assert ["b", "a", "b"] == [line.who for line in read_logs(tmp_path)]
