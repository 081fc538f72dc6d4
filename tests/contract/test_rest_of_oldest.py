"""How many groups of the oldest version are left, which is all that a batch of it can have."""

from __future__ import annotations

import pytest

from redis_replay.step_target import read_rest_of_oldest
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("ready", "reserved", "at_most", "expected"),
    [
        ([0, 0, 0, 1], [], 4, 3),
        ([0, 1], [0, 0], 4, 3),
        ([1, 1], [0], 4, 1),
        ([0, 0, 0, 1], [], 2, 2),
        ([0, 0], [0], 4, 4),
        ([], [], 4, 4),
        ([5, 5], [0], 4, 4),
    ],
    ids=["ready", "in flight too", "in flight alone", "capped", "one version", "none", "window"],
)
async def test_what_is_left_is_counted_once_a_newer_version_is_live(
    runs: Runs, ready: list[int], reserved: list[int], at_most: int, expected: int
) -> None:
    async with runs.open() as store:
        for weight in ready:
            await commit_ready(store, weight)
        for weight in reserved:
            await store.buffer.reserve(weight)
        reads = store.buffer.session.reads
        assert expected == await read_rest_of_oldest(reads, range(4), at_most=at_most)
