"""``redis-replay demo`` hands its options over and ends with the demo's exit status."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from redis_replay.cli import main
from redis_replay.demo import command
from redis_replay.demo.options import DemoOptions
from redis_replay.errors import ConfigurationError

DEFAULTS: dict[str, Any] = {
    "steps": None,
    "workers": 2,
    "url": None,
    "run": None,
    "sampler": "in_order",
    "seed": 1,
    "json": False,
    "plot": None,
    "directory": None,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DemoOptions]:
    """What the demo was asked for; it ends with 1 for seed 7 and cannot run for seed 8."""
    seen: list[DemoOptions] = []

    def run_demo(options: DemoOptions) -> int:
        seen.append(options)
        if options.seed == 8:
            raise ConfigurationError("the demo needs more:\npip install it")
        return 1 if options.seed == 7 else 0

    monkeypatch.setattr(command, "run_demo", run_demo)
    return seen


def test_the_defaults_name_no_server_whatever_the_environment_says(
    asked: list[DemoOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_REPLAY_URL", "redis://precious")
    assert 0 == main(["demo"])
    assert [DEFAULTS] == [asdict(options) for options in asked]


def test_every_option_arrives(asked: list[DemoOptions]) -> None:
    wanted: dict[str, Any] = {
        "steps": 12,
        "workers": 3,
        "url": "unix:///s",
        "run": "mine",
        "sampler": "weight_fifo",
        "seed": 5,
        "plot": Path("p.png"),
        "directory": Path("d"),
    }
    arguments = [word for name, value in wanted.items() for word in (f"--{name}", str(value))]
    assert 0 == main(["demo", "--json", *arguments])
    assert [{**wanted, "json": True}] == [asdict(options) for options in asked]


def test_a_demo_that_breaks_its_promises_exits_1(asked: list[DemoOptions]) -> None:
    assert 1 == main(["demo", "--seed", "7"])
    assert 1 == len(asked)


@pytest.mark.usefixtures("asked")
def test_a_demo_that_cannot_run_says_why_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["demo", "--seed", "8"])
    captured = capsys.readouterr()
    assert ("", "redis-replay: the demo needs more: pip install it.\n") == (
        captured.out,
        captured.err,
    )
