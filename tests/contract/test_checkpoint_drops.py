"""Dropping checkpoints frees exactly what nothing else needs, in slices."""

from __future__ import annotations

import anyio
import pytest

from redis_replay._redis.keys import Key, Keyspace
from redis_replay.store import DEFAULT_PARTITION
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

RESERVED = b"reserved %d 1 0 - - - - 1 - 0 - - - 0"
"""The record of an unfinished group, by its order."""


def saved_key(runs: Runs, saved_id: str, key: Key) -> str:
    """Return the full name of a checkpoint's copy."""
    return Keyspace(runs.name, DEFAULT_PARTITION).saved(saved_id, key)


async def saved_keys(runs: Runs) -> list[str]:
    """Return the keys of all checkpoints' copies."""
    return [key for key in await runs.keys() if ":saved:" in key]


async def test_a_checkpoint_of_thousands_of_groups_is_dropped_to_the_end(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g")
        await store.checkpoints.create("large")
        record = await store.checkpoints.record("large")
        many = {f"more-{order}": RESERVED % order for order in range(2, 6000)}
        await runs.client.hset(saved_key(runs, record.saved_id, Key.SLOTS), mapping=many)
        with anyio.fail_after(30):
            assert 0 == await store.checkpoints.drop("large")
        assert [] == await saved_keys(runs)
        assert 1 == len(await runs.payload_keys())
