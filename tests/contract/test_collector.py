"""Payload is freed after its group became invisible, exactly once, and nothing is left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from redis_replay import Eviction, Rule, Selection
from redis_replay._redis.checkpoint_scripts import Condemn
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.run_scripts import Bury
from redis_replay.errors import StoreMissing
from redis_replay.store import DEFAULT_PARTITION
from tests.contract.keyspace import (
    attached,
    collected,
    control_key,
    nothing_changed,
    send_plain,
    snapshot,
    stop_collecting,
)
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def dead_entries(runs: Runs) -> int:
    """Return how many entries wait for collection."""
    return int(await runs.client.zcard(control_key(runs, Key.DEAD)))


async def test_what_a_killed_process_did_not_free_is_freed_by_the_next(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        stop_collecting(store)
        ids = [await commit_ready(store, 0) for _ in range(3)]
        await store.buffer.remove(ids[:2])
        assert 3 == len(await runs.payload_keys())
        assert 2 == await dead_entries(runs)
        assert 2 == await other.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        assert 1 == await runs.client.hlen(control_key(runs, Key.GROUPS))
        async with nothing_changed(runs):
            assert 0 == await other.collect_garbage()


async def test_a_collection_cut_short_between_freeing_and_forgetting_is_finished(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        stop_collecting(store)
        group_id = await commit_ready(store, 0)
        await store.buffer.remove([group_id])
        await runs.client.delete(*await runs.payload_keys())
        assert 1 == await other.collect_garbage()
        assert (0, 0) == (
            await dead_entries(runs),
            await runs.client.hlen(control_key(runs, Key.GROUPS)),
        )


async def test_an_entry_is_freed_by_one_of_several_collectors(runs: Runs) -> None:
    async with runs.open(capacity=200, group_size=1) as store:
        stop_collecting(store)
        session = store.buffer.session
        entries = {f"{at}:g{at}": at for at in range(100)}
        await attached(store)
        await runs.client.zadd(control_key(runs, Key.DEAD), entries)
        left, first = await send_plain(session, Condemn((), ()))
        assert (36, 64) == (left, len(first))
        left, second = await send_plain(session, Condemn((), ()))
        assert (0, entries.keys()) == (left, {*first, *second})
        assert (0, []) == await send_plain(session, Condemn((), ()))
        assert 100 == await runs.client.zcard(control_key(runs, Key.CONDEMNED))
        assert 100 == await send_plain(session, Bury((*first, *second)))


async def test_a_running_store_leaves_to_others_what_they_free_until_it_is_asked(
    runs: Runs,
) -> None:
    async with runs.open(group_size=1) as store:
        assert 0 == await store.collect_garbage()
        await runs.client.zadd(control_key(runs, Key.CONDEMNED), {"7:g": 1})
        assert 0 == await store.buffer.session.link.collector.collect()
        assert 1 == await store.collect_garbage()


async def test_chunks_and_written_columns_are_freed_with_their_group(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        store.buffer.session.link.chunk_bytes = 16
        group_id = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([group_id])
        await trainer.samples.put_samples([f"{group_id}_g0"], fields={"x": [1]})
        chunks = len(await runs.payload_keys())
        assert chunks > 3
        await trainer.commit_step(0)
        await collected(store)
        assert [] == await runs.payload_keys()
        assert 0 == await dead_entries(runs)


async def test_more_groups_than_one_slice_are_freed(runs: Runs) -> None:
    async with runs.open(capacity=200, group_size=1) as store:
        stop_collecting(store)
        ids = []
        for _ in range(150):
            made = await store.buffer.reserve(0)
            await store.buffer.commit(
                made.group_id, rows(size=1), start_weight_version=0, end_weight_version=0
            )
            ids.append(made.group_id)
        await store.buffer.remove(ids)
        async with runs.open(capacity=None, group_size=None) as other:
            assert 150 == await other.collect_garbage()
    assert [] == await runs.payload_keys()


async def test_a_lost_attempts_payload_is_freed_and_the_next_attempts_is_not(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        async with store.rollout(owner="host") as host:
            lost = await host.buffer.reserve(0, group_id="g")
            key = Keyspace(runs.name, DEFAULT_PARTITION).payload("g", lost.fence)
            await runs.client.set(key, b"written by a host that died before its flip")
        await rollout.take_tickets(max_tickets=1, weight_version=0)
        await rollout.buffer.commit("g", rows(3), start_weight_version=0, end_weight_version=0)
        assert 1 == await store.collect_garbage()
        assert not await runs.client.exists(key)
        [row] = await store.samples.get_samples(["g_g0"])
        assert 3.0 == row["reward"]


async def test_an_orphan_is_freed_only_when_it_was_seen_twice(runs: Runs) -> None:
    async with runs.open() as store:
        live = await commit_ready(store, 0)
        reserved = await store.buffer.reserve(0, group_id="in flight")
        keyspace = Keyspace(runs.name, DEFAULT_PARTITION)
        orphan = keyspace.payload("ghost", 999)
        strays = [orphan, f"{orphan}:c1", keyspace.written("ghost", 999, 7)]
        for key in (*strays, keyspace.payload("in flight", reserved.fence)):
            await runs.client.set(key, b"x")
        assert [] == await store.find_orphans()
        assert set(strays) <= set(await runs.payload_keys())
        assert sorted(strays) == await store.find_orphans()
        assert [] == await store.find_orphans()
        assert 2 == len(await runs.payload_keys())
        assert 1 == len(await store.samples.get_samples([f"{live}_g0"]))


async def test_a_payload_that_got_a_group_in_time_is_no_orphan(runs: Runs) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(0, group_id="g")
        keyspace = Keyspace(runs.name, DEFAULT_PARTITION)
        next_key = keyspace.payload("later", made.fence + 1)
        await runs.client.set(next_key, b"x")
        assert [] == await store.find_orphans()
        later = await store.buffer.reserve(0, group_id="later")
        assert made.fence + 1 == later.fence
        assert [] == await store.find_orphans()
        assert await runs.client.exists(next_key)


async def test_orphans_of_one_run_are_not_sought_among_anothers(runs: Runs) -> None:
    async with runs.open() as store, runs.open(partition="val") as val:
        await commit_ready(val, 0)
        for _ in range(2):
            assert [] == await store.find_orphans()
        assert 1 == len(await runs.payload_keys())


async def test_forgetting_nothing_changes_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        async with nothing_changed(runs):
            assert 0 == await send_plain(store.buffer.session, Bury(entries=()))
            assert 0 == await send_plain(store.buffer.session, Bury(entries=("1:ghost",)))


async def test_collecting_in_a_run_that_is_gone_says_so_and_keeps_the_payload(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        stop_collecting(store)
        group_id = await commit_ready(store, 0)
        await store.buffer.remove([group_id])
        await runs.client.hset(control_key(runs, Key.META), "lineage", "another")
        async with runs.open() as other:
            assert 1 == await other.collect_garbage()
        group_id = "later"
        async with runs.open() as third:
            await commit_ready(third, 0, group_id=group_id)
            await runs.client.delete(control_key(runs, Key.META))
            with pytest.raises(StoreMissing):
                await third.buffer.remove([group_id])
        assert 1 == len(await runs.payload_keys())


BOOKKEEPING = (Key.META, Key.COUNTERS, Key.ENDS, Key.EVENTS)


async def churn(runs: Runs, *, steps: int, seed: int) -> set[str]:
    """Run steps of every kind of end, with a restart in the middle; return the keys left."""
    draw = random.Random(seed)
    version = 0
    for part in range(2):
        async with runs.open(journal_events=50) as store, store.trainer(owner="job") as trainer:
            for _ in range(steps // 2):
                await one_step(store, trainer, draw, version)
                version += 1
            if part == 1:
                leftovers = [slot.group_id for slot in await store.buffer.slots()]
                if leftovers:
                    await store.buffer.remove(leftovers)
    return set(await runs.keys())


async def one_step(store: Any, trainer: Any, draw: random.Random, version: int) -> None:
    """Dispatch four groups of which each ends in one of the ways, and close the step."""
    for _ in range(4):
        made = await trainer.buffer.reserve(version, prompt_ref=b"p")
        luck = draw.random()
        if luck < 0.2:
            await trainer.buffer.remove_group(made.group_id, reason="failed")
            continue
        if luck < 0.3:
            await trainer.buffer.abort(made.group_id)
            continue
        if luck < 0.35:
            continue  # in flight at the end of the step
        await trainer.buffer.commit(
            made.group_id, rows(), start_weight_version=version, end_weight_version=version
        )
        if luck < 0.45:
            await trainer.buffer.remove_group(made.group_id, reason="filtered")
    await store.buffer.evict(Eviction(below=version - 1))
    await trainer.buffer.claim(Selection(Rule.BUFFER, 0, version, 1, draw.randint(1, 4)))
    if trainer.batches:
        await trainer.commit_step(version)
    else:
        await trainer.skip_step(version)
    for slot in await store.buffer.slots():
        if slot.state == "reserved" and slot.start_weight_version < version:
            await trainer.buffer.abort(slot.group_id, fence=slot.fence)


async def test_every_exit_frees_its_payload_and_bookkeeping_does_not_grow(runs: Runs) -> None:
    few = await churn(runs, steps=10, seed=1)
    runs.name += "-long"
    many = await churn(runs, steps=100, seed=2)
    assert [] == await runs.payload_keys()
    assert {control_key(runs, key) for key in BOOKKEEPING} == many
    assert len(few) == len(many)
    async with runs.open(create=False) as store:
        stats = await store.stats()
        assert (0, 0, 100) == (stats.occupancy, stats.payload_bytes, stats.trainer_version)
        assert stats.reserved_total == stats.trained + stats.evicted + stats.aborted + stats.removed
        assert min(stats.trained, stats.evicted, stats.aborted, stats.removed) > 0
        for _ in range(stats.capacity):
            await store.buffer.reserve(0)
    kept = {key: len(value) for key, value in (await snapshot(runs)).items()}
    assert kept[control_key(runs, Key.EVENTS)] <= 50 + 150
