"""The demo as a user starts it: trainer, rollout process and server are killed; it carries on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.chaos

STEPS = 12
ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "redis_replay.cli", "demo"]


def demo(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def processes_naming(text: str) -> list[str]:
    """Return the command lines of running processes that name a text."""
    found: list[str] = []
    listing = subprocess.run(
        ["ps", "-eo", "args"], capture_output=True, text=True, check=True, timeout=10
    )
    for command in listing.stdout.splitlines():
        if text in command:
            found.append(command)
    return found


def test_a_run_whose_processes_and_server_are_killed_loses_nothing(tmp_path: Path) -> None:
    folder, picture = tmp_path / "demo", tmp_path / "picture.png"
    ended = demo(
        *("--json", "--steps", str(STEPS), "--seed", "1"),
        *("--directory", str(folder), "--plot", str(picture)),
    )
    assert 0 == ended.returncode, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    zeros = ("lost", "trained_twice", "regenerated_committed", "retrained_steps")
    assert dict.fromkeys(zeros, 0) == {name: document[name] for name in zeros}
    assert [] == document["faults"]
    assert document["audit_clean"] is True
    assert (STEPS, 16 * STEPS) == (document["steps"], document["trained"])
    ends = ("trained", "evicted", "aborted", "live")
    assert document["dispatched"] == sum(document[end] for end in ends)
    assert document["reward_last"] >= document["reward_first"] + 0.1
    kills = [kill for kill in document["kills"] if kill["held"]]
    assert ["rollout", "server", "trainer"] == sorted(k["what"].split("-")[0] for k in kills)
    assert document["redispatched"] >= 1
    assert b"\x89PNG" == picture.read_bytes()[:4]
    assert [] == processes_naming(str(folder))


def test_a_missing_extra_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    hide = "import sys\nsys.modules['reasoning_gym'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hide, encoding="utf-8")
    ended = demo("--steps", str(STEPS), PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert 2 == ended.returncode
    assert "pip install 'redis-replay[demo]'" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "3"), "--steps must be at least"),
        (("--url", "unix:///nowhere/s"), "not reachable"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(options: tuple[str, ...], message: str) -> None:
    ended = demo(*options)
    assert 2 == ended.returncode
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
