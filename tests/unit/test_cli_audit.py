"""The audit's words for its reader, and the program's own facts."""

from __future__ import annotations

import re

import pytest

import redis_replay
from redis_replay import audit
from redis_replay.cli import main
from redis_replay.cli.audit import INVARIANTS


def test_the_invariants_are_those_of_the_audit() -> None:
    numbered = re.findall(r"^ ?(\d+) {4}\S", audit.__doc__ or "", re.MULTILINE)
    assert [int(number) for number in numbered] == list(INVARIANTS)


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["--version"])
    assert f"redis-replay {redis_replay.__version__}\n" == capsys.readouterr().out
