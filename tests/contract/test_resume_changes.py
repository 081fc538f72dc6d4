"""Resuming with other settings than those a run was stopped with: in force, reported or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from redis_replay import (
    InOrderSamplerConfig,
    ReplayStore,
    WindowedSamplerConfig,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.checkpoint_info import Incomplete
from redis_replay.errors import CheckpointDamaged, CheckpointMismatch, RunMismatch
from redis_replay.group_record import pack_record
from redis_replay.payloads import encode_group
from tests.contract.job import opened_job
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def stamped(runs: Runs) -> AsyncIterator[ReplayStore]:
    """Open a run at step 1 with three groups for step 1, two for 2 and one left over for 0.

    Its checkpoint is ``kept``; batches hold three groups.
    """
    async with runs.open(groups_per_step=3) as store:
        async with opened_job(store, lookahead=2, per_step=3) as job:
            past = await job.dispatch()
            await job.finish(past)
            await job.finish(await job.dispatch())
            short = await job.dispatch()
            await job.finish(short[:2])
            await job.rollout.buffer.abort(short[2].group_id)
            kept = [made.group_id for made in past[:2]]
            await job.trainer.buffer.claim_for_training(kept)
            await job.trainer.commit_step(0)
            await store.checkpoints.create("kept")
        yield store


async def steps_of(store: ReplayStore) -> list[int | None]:
    """Return the target steps of the live groups in buffer order."""
    return [slot.target_step for slot in await store.buffer.slots()]


@pytest.mark.parametrize(
    ("incomplete", "restored", "dispatched"),
    [("fill", [1, 1, 1, 2, 2], [[2], [3, 3, 3]]), ("drop", [1, 1, 1], [[2, 2, 2], [3, 3, 3]])],
)
async def test_an_incomplete_step_is_filled_or_dropped_and_a_past_one_is_evicted(
    runs: Runs, incomplete: Incomplete, restored: list[int], dispatched: list[list[int]]
) -> None:
    async with stamped(runs) as store:
        await store.checkpoints.restore("kept", incomplete=incomplete)
        assert sorted([0, *restored]) == sorted(step or 0 for step in await steps_of(store))
        async with opened_job(store, lookahead=2, per_step=3) as job:
            assert 1 == await job.sampler.evict(current_train_weight=1)
            assert restored == await steps_of(store)
            found: list[list[int | None]] = []
            while await job.may_dispatch():
                made = await job.dispatch()
                found.append([reservation.target_step for reservation in made])
            assert dispatched == found
        await store.checkpoints.drop("kept")
        assert len(restored) == len(await runs.payload_keys())


async def test_incomplete_steps_are_dropped_before_places_are_counted(runs: Runs) -> None:
    async with stamped(runs) as store:
        slots = await store.buffer.slots()
        await store.buffer.remove([slot.group_id for slot in slots if slot.target_step != 1])
        async with runs.open(capacity=4):
            report = await store.checkpoints.restore("kept", incomplete="drop")
        assert (4, 2) == (report.ready, len(report.left_out))


@pytest.mark.parametrize("policy", ["windowed", "in_order"])
async def test_a_smaller_capacity_refuses_what_does_not_fit_and_says_what_would(
    runs: Runs, policy: str
) -> None:
    weights = [1, 1, 2, 2, 3, 3]
    async with runs.open(capacity=6) as store:
        for weight in weights:
            step = weight + 2 if policy == "in_order" else None
            await commit_ready(store, weight, target_step=step)
        await store.checkpoints.create("kept")
        with pytest.raises(RunMismatch, match=r"holds 6 groups, .* capacity of 4"):
            await runs.open(capacity=4).__aenter__()
        await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])
        async with runs.open(capacity=4) as smaller:
            keys = await runs.keys()
            with pytest.raises(CheckpointMismatch, match=r"6 groups .* of 4; .*capacity=6 or more"):
                await smaller.checkpoints.restore("kept")
            assert (keys, 0) == (await runs.keys(), (await smaller.stats()).occupancy)
        async with runs.open(capacity=12) as larger:
            await larger.checkpoints.restore("kept")
            assert weights == [slot.start_weight_version for slot in await larger.buffer.slots()]
            assert 6 == (await larger.stats()).capacity - await larger.buffer.size()


async def test_a_much_smaller_capacity_that_everything_fits_is_taken(runs: Runs) -> None:
    async with runs.open(capacity=64) as store:
        for _ in range(5):
            await commit_ready(store, 0)
        await store.checkpoints.create("kept")
        await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])
    async with runs.open(capacity=8) as store:
        assert ("capacity changed from 64 to 8",) == store.run.changes
        assert 5 == (await store.checkpoints.restore("kept")).ready
        for _ in range(3):
            await store.buffer.reserve(0)


async def test_another_group_size_is_refused_and_the_same_works_afterwards(runs: Runs) -> None:
    async with runs.open(group_size=8) as store:
        for name in "abc":
            await store.buffer.reserve(0, group_id=name)
            await store.buffer.commit(
                name, rows(size=8), start_weight_version=0, end_weight_version=0
            )
        await store.checkpoints.create("kept")
    async with nothing_changed(runs):
        with pytest.raises(RunMismatch, match="group_size: stored 8, asked 16"):
            await runs.open(group_size=16).__aenter__()
    async with runs.open(group_size=8) as store:
        assert 3 == (await store.checkpoints.restore("kept")).ready
        await store.buffer.reserve(0, group_id="live")
        with pytest.raises(ValueError, match=r"'live': expected 8 rows .* got 4"):
            await store.buffer.commit(
                "live", rows(size=4), start_weight_version=0, end_weight_version=0
            )


async def test_one_stored_group_of_another_size_is_refused_by_name(runs: Runs) -> None:
    async with runs.open(group_size=8) as store:
        await store.buffer.reserve(0, group_id="odd")
        eight, seven = ([{"x": np.zeros(56 // size, np.uint8)}] * size for size in (8, 7))
        await store.buffer.commit("odd", eight, start_weight_version=0, end_weight_version=0)
        await store.checkpoints.create("kept")
        groups = control_key(runs, Key.GROUPS)
        [name] = await runs.client.hkeys(groups)
        encoded = encode_group("odd", seven)
        short = pack_record(encoded, chunk_bytes=1000, tags=[{}] * 7, rollout_metrics={})
        await runs.client.hset(groups, name, short)
        async with nothing_changed(runs):
            with pytest.raises(CheckpointDamaged, match="group 'odd': it has 7 rows instead of 8"):
                await store.checkpoints.restore("kept")
        report = await store.checkpoints.restore("kept", regenerate_damaged=True)
        assert (0, 1) == (report.ready, report.tickets)


@pytest.mark.parametrize("restored", [False, True])
async def test_the_windows_of_the_job_that_resumes_are_in_force(runs: Runs, restored: bool) -> None:
    async with runs.open(capacity=2) as store:
        await create_sampler(store.buffer, WindowedSamplerConfig()).flush()  # type: ignore[attr-defined]
        await store.publish_trainer_version(3)
        for _ in range(2):
            await commit_ready(store, 3)
        await store.checkpoints.create("kept")
    async with runs.open(capacity=8) as store:
        cfg = WindowedSamplerConfig(max_staleness_versions=4)
        sampler = create_sampler(store.buffer, cfg)
        await sampler.flush()  # type: ignore[attr-defined]
        if restored:
            await store.checkpoints.restore("kept")
        await store.publish_trainer_version(6)
        assert 0 == await sampler.evict(current_train_weight=6)
        _, groups = await sampler.select(
            current_train_weight=6, min_prompt_groups=2, max_prompt_groups=8
        )
        assert 2 == groups
        for _ in range(6):
            await store.buffer.reserve(6)
        stored = await runs.client.hget(control_key(runs, Key.META), "windows")
        assert b'"max_staleness_versions": 4' in stored


async def test_any_number_of_ranks_reads_the_same_groups_or_refuses_to_cut_them(
    runs: Runs,
) -> None:
    async with runs.open(group_size=4, groups_per_step=2) as store:
        names = ["a", "b"]
        async with store.rollout(owner="host") as host:
            for value, name in enumerate(names):
                await host.buffer.reserve(0, group_id=name, target_step=0)
                await host.buffer.commit(
                    name, rows(value, size=4), start_weight_version=0, end_weight_version=0
                )
        async with store.trainer(owner="job", world=4) as trainer:
            await trainer.buffer.claim_for_training(names)
            await store.checkpoints.create("kept")
        await store.checkpoints.restore("kept")
        for world in (3, 2, 6, 4, 1):
            async with store.trainer(owner="job", world=world) as trainer:
                sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
                meta, _ = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
                read: list[str] = []
                for number in range(world):
                    rank = store.trainer_rank(owner="job", epoch=trainer.epoch, rank=number)
                    if 8 % world:
                        with pytest.raises(ValueError, match="8 rows, which do not divide"):
                            await rank.read_slice(trainer.batches[0])
                        continue
                    read += (await rank.read_slice(trainer.batches[0])).sample_ids
                assert ([] if 8 % world else list(meta.sample_ids)) == read
                assert [f"{name}_g{row}" for name in names for row in range(4)] == list(
                    meta.sample_ids
                )


async def test_an_unfinished_group_between_finished_ones_shifts_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        for name, weight, step in (("first", 3, 7), ("between", 3, 7), ("last", 4, 8)):
            await store.buffer.reserve(weight, group_id=name, target_step=step)
        for name, weight in (("first", 3), ("last", 4)):
            await store.buffer.commit(
                name, rows(weight), start_weight_version=weight, end_weight_version=4
            )
        await store.checkpoints.create("one")
        assert 2 == (await store.checkpoints.restore("one")).ready
        once = await comparable(store)
        assert [(3, 4, 7), (3, None, 7), (4, 4, 8)] == [words[:3] for words in once]
        await store.checkpoints.create("two")
        await store.checkpoints.drop("one")
        await store.checkpoints.restore("two")
        assert once == await comparable(store)


async def comparable(store: ReplayStore) -> list[tuple[Any, ...]]:
    """Return all that a restore of a restored run must leave as it is."""
    return [
        (
            *(slot.start_weight_version, slot.end_weight_version, slot.target_step),
            *(slot.group_id, slot.order, slot.state, slot.attempt, slot.payload_fence),
            store.buffer.admission.dispatch_index,
        )
        for slot in await store.buffer.slots()
    ]


async def test_a_loader_position_is_never_applied_to_another_dataset(runs: Runs) -> None:
    async with runs.open(groups_per_step=3, dataset="a") as store:
        async with opened_job(store, per_step=3) as job:
            async with job.rollout.mutation() as cut:
                cut.set_loader_state(b"500")
            await job.finish(await job.dispatch())
        await store.checkpoints.create("kept")
    async with nothing_changed(runs):
        with pytest.raises(RunMismatch, match="stands in the dataset 'a', asked is 'b'"):
            await runs.open(dataset="b").__aenter__()
    async with runs.open(dataset="b", new_dataset=True) as store:
        assert any("3 buffered groups" in change for change in store.run.changes)
        report = await store.resume()
        assert (None, 3, 0) == (report.loader_state, report.found["ready"], report.dispatch_index)
        with pytest.raises(CheckpointMismatch, match="with dataset a and the run has b"):
            await store.checkpoints.restore("kept")
        async with opened_job(store, per_step=3) as job:
            await job.run(range(2), prompts=200)
            assert {0: [500, 501, 502], 1: [0, 1, 2]} == job.trained


async def test_a_loader_position_brings_the_name_of_its_dataset_along(runs: Runs) -> None:
    async with runs.open(groups_per_step=2, dataset="a") as store, opened_job(store) as job:
        await job.dispatch()
        await store.checkpoints.create("kept")
    meta = control_key(runs, Key.META)
    await runs.client.hset(meta, "dataset", "")
    await runs.client.hdel(meta, "loader_state")
    async with runs.open() as store:
        await store.checkpoints.restore("kept")
    with pytest.raises(RunMismatch, match="dataset 'a', asked is 'b'"):
        await runs.open(dataset="b").__aenter__()
