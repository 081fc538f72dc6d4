"""Dropping checkpoints frees exactly what nothing else needs, in slices."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from redis_replay import ReplayStore
from redis_replay._redis.checkpoint_scripts import DropCheckpoint
from redis_replay._redis.keys import Key, Keyspace
from redis_replay.errors import CheckpointMissing
from redis_replay.store import DEFAULT_PARTITION
from tests.contract.keyspace import control_key, nothing_changed, send_plain
from tests.harness import Runs, commit_ready, rows

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


async def trained(store: ReplayStore, group_ids: Sequence[str]) -> None:
    """Train groups under the implicit session, and free what is free."""
    await store.buffer.claim_for_training(group_ids)
    await store.buffer.release_training_claims(group_ids)
    await store.collect_garbage()


async def kept_ids(runs: Runs) -> list[str]:
    """Return the groups whose payload is on the server."""
    return sorted(key.split(":")[-2] for key in await runs.payload_keys())


async def test_each_group_is_freed_with_the_last_checkpoint_that_refers_to_it(runs: Runs) -> None:
    async with runs.open() as store:
        for number, name in enumerate("abc"):
            await commit_ready(store, 0, group_id=name)
            await store.checkpoints.create(f"c{number}")
        await commit_ready(store, 0, group_id="live")
        await trained(store, ["a", "b", "c"])
        assert ["a", "b", "c", "live"] == await kept_ids(runs)
        assert 0 == await store.collect_garbage()
        await store.checkpoints.drop("c0")
        assert ["a", "b", "c", "live"] == await kept_ids(runs)
        await store.checkpoints.drop("c2")
        assert ["a", "b", "live"] == await kept_ids(runs)
        await store.checkpoints.drop("c1")
        assert ["live"] == await kept_ids(runs)
        assert [] == await saved_keys(runs)
        for key in (Key.DEAD, Key.PINNED, Key.CONDEMNED, Key.CHECKPOINTS):
            assert not await runs.client.exists(control_key(runs, key))
        assert 1 == await runs.client.hlen(control_key(runs, Key.GROUPS))


async def test_dropping_frees_no_live_group_whoever_holds_it(runs: Runs) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("empty")
        for name in ("ready", "claimed", "gone"):
            await commit_ready(store, 0, group_id=name)
        await store.buffer.reserve(0, group_id="reserved")
        await store.checkpoints.create("kept")
        await store.buffer.claim_for_training(["claimed"])
        await store.buffer.commit("reserved", rows(), start_weight_version=0, end_weight_version=0)
        await store.buffer.remove(["gone"])
        assert 1 == await store.checkpoints.drop("kept")
        assert 0 == await store.checkpoints.drop("empty")
        assert ["claimed", "ready", "reserved"] == await kept_ids(runs)


async def test_a_drop_in_slices_keeps_what_it_has_not_come_to(runs: Runs) -> None:
    async with runs.open() as store:
        for name in "abcd":
            await commit_ready(store, 0, group_id=name)
        await store.checkpoints.create("kept")
        await store.checkpoints.create("other")
        record = await store.checkpoints.record("kept")
        await store.checkpoints.drop("other")
        await trained(store, ["a", "b", "c", "d"])
        assert 4 == len(await runs.payload_keys())
        slice_of_one = DropCheckpoint("kept", 1, (record.saved_id,))
        assert (1, True) == await send_plain(store.buffer.session, slice_of_one)
        assert [] == await store.checkpoints.list()
        for verb in (store.checkpoints.restore, store.checkpoints.pin, store.checkpoints.drop):
            with pytest.raises(CheckpointMissing, match="no checkpoint 'kept'; it has"):
                await verb("kept")
        await store.collect_garbage()
        assert 3 == len(await runs.payload_keys())
        assert (await store.audit()).is_clean
        await commit_ready(store, 0, group_id="a")
        await store.checkpoints.create("kept", keep=1)
        assert 1 == len(await runs.payload_keys())
        assert ["kept"] == [info.name for info in await store.checkpoints.list()]
        await store.checkpoints.drop("kept")
        assert [] == await saved_keys(runs)


async def test_a_drop_finishes_another_that_was_cut_short(runs: Runs) -> None:
    async with runs.open() as store:
        for name in "abc":
            await commit_ready(store, 0, group_id=name)
        await store.checkpoints.create("cut-short")
        record = await store.checkpoints.record("cut-short")
        await store.buffer.remove(["a", "b", "c"])
        await store.checkpoints.create("other")
        call = DropCheckpoint("cut-short", 1, (record.saved_id,))
        await send_plain(store.buffer.session, call)
        await store.checkpoints.drop("other")
        assert [] == await saved_keys(runs)
        assert [] == await runs.payload_keys()


async def test_a_repeated_slice_of_a_drop_that_has_ended_changes_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0)
        await store.checkpoints.create("kept")
        first = await store.checkpoints.record("kept")
        await store.checkpoints.create("kept", replace=True)
        async with nothing_changed(runs):
            call = DropCheckpoint("kept", 9, (first.saved_id,))
            assert (0, False) == await send_plain(store.buffer.session, call)
        assert (await store.checkpoints.verify("kept")).is_whole


async def test_a_group_that_came_back_is_freed_by_no_drop_until_it_ends(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g")
        await store.checkpoints.create("first")
        await trained(store, ["g"])
        await store.checkpoints.restore("first")
        await store.checkpoints.create("second")
        await trained(store, ["g"])
        await store.checkpoints.restore("second")
        assert 0 == await store.checkpoints.drop("first")
        assert 0 == await store.checkpoints.drop("second")
        assert ["g"] == await kept_ids(runs)
        await trained(store, ["g"])
        assert [] == await kept_ids(runs)
