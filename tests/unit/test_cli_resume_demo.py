"""``redis-replay resume-demo`` hands its options over and ends with the demo's exit status."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from redis_replay.cli import main
from redis_replay.demo.resume import command
from redis_replay.demo.resume.command import ResumeOptions

DEFAULTS: dict[str, Any] = {
    "kill_points": 20,
    "lookahead": 1,
    "ranks": 1,
    "policy": "torch",
    "seed": 1,
    "json": False,
    "directory": None,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ResumeOptions]:
    """What the demo was asked for; it ends with 1 for seed 7."""
    seen: list[ResumeOptions] = []

    def run(options: ResumeOptions) -> int:
        seen.append(options)
        return 1 if options.seed == 7 else 0

    monkeypatch.setattr(command, "run_resume_demo", run)
    return seen


def test_by_default_a_torch_model_is_killed_twenty_times(asked: list[ResumeOptions]) -> None:
    assert 0 == main(["resume-demo"])
    assert [DEFAULTS] == [asdict(options) for options in asked]


def test_every_option_arrives(asked: list[ResumeOptions]) -> None:
    wanted: dict[str, Any] = {
        "kill_points": 3,
        "lookahead": 2,
        "ranks": 2,
        "policy": "numpy",
        "seed": 5,
        "directory": Path("d"),
    }
    arguments = [
        word
        for name, value in wanted.items()
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    assert 0 == main(["resume-demo", "--json", *arguments])
    assert [{**wanted, "json": True}] == [asdict(options) for options in asked]


def test_a_run_that_ends_otherwise_exits_1(asked: list[ResumeOptions]) -> None:
    assert 1 == main(["resume-demo", "--seed", "7"])
    assert 1 == len(asked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "3"), "--ranks must be 1, 2 or 4"),
        (("--lookahead", "9"), "--lookahead must be in 0..4"),
        (("--seed", "2147483648"), "--seed must be in 0..2147483647"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(
    options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 2 == main(["resume-demo", "--policy", "numpy", *options])
    assert message in capsys.readouterr().err
