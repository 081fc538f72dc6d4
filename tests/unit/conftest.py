"""A folder for an embedded server; whatever a test left running in it is a failure, and stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_replay.embedded import stop_embedded


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    left_running = folder.is_dir() and stop_embedded(folder)
    assert not left_running, "the test left a server running"
