"""A training run that is killed anywhere ends bit for bit as the one that was not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "redis_replay.cli", "resume-demo", "--json"]
ZEROS = (
    "different",
    "skipped_prompts",
    "repeated_prompts",
    "regenerated_committed",
    "retrained_steps",
)


def resume_demo(*options: str, timeout_seconds: float) -> dict[str, Any]:
    ended = subprocess.run(
        [*COMMAND, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert 0 == ended.returncode, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return document


def check(document: dict[str, Any], *, kill_points: int) -> None:
    assert [] == document["faults"]
    assert dict.fromkeys(ZEROS, 0) == {name: document[name] for name in ZEROS}
    assert (kill_points, kill_points) == (document["kill_points"], document["identical"])
    assert document["undisturbed_agree"] is True
    assert 2 * document["in_flight"] >= kill_points


def tell(capsys: pytest.CaptureFixture[str], document: dict[str, Any]) -> None:
    """Print what was run and how long it took, whatever the options of pytest."""
    with capsys.disabled():
        sys.stdout.write(
            f"\nresume demo, {document['policy']}, lookahead {document['lookahead']}, "
            f"{document['ranks']} ranks: {document['kill_points']} kill points, "
            f"{document['seconds']} s "
        )


@pytest.mark.timeout(300)
def test_a_short_dose_with_the_numpy_policy(capsys: pytest.CaptureFixture[str]) -> None:
    document = resume_demo(
        *("--policy", "numpy", "--kill-points", "4", "--lookahead", "2", "--seed", "1"),
        timeout_seconds=280,
    )
    tell(capsys, document)
    check(document, kill_points=4)
    assert document["restores"] >= 1
    assert document["replayed_steps"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "options",
    [(), ("--lookahead", "0"), ("--lookahead", "2"), ("--ranks", "2")],
    ids=["plain", "no-lookahead", "lookahead-2", "two-ranks"],
)
def test_twenty_kill_points_with_the_torch_policy(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    document = resume_demo("--policy", "torch", *options, timeout_seconds=1750)
    tell(capsys, document)
    check(document, kill_points=20)
    assert document["restores"] >= 1
