"""Stopped anywhere and resumed, a run loses no prompt, trains none twice and never stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import anyio
import pytest

from redis_replay import ReplayStore
from redis_replay._redis.keys import Key
from redis_replay.checkpoint_info import RestoreMode
from redis_replay.errors import CheckpointDamaged, StepStarved, StoreClosed
from tests.contract.job import opened_job, prompts_of
from tests.contract.keyspace import nothing_changed
from tests.contract.waits import Waits
from tests.harness import Runs

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def killed_with_groups_in_flight(runs: Runs) -> AsyncIterator[tuple[ReplayStore, str]]:
    """Leave a run as a kill at step 2 would: 4 is ready, 5, 6 and 7 are in flight, 0 to 3 trained.

    Its checkpoint is ``kept``. Yields the store and the id of the finished group.
    """
    async with runs.open(groups_per_step=2) as store:
        async with opened_job(store) as job:
            await job.run(range(2), prompts=4)
            finished, flying = await job.dispatch(), await job.dispatch()
            assert ([4, 5], [6, 7]) == (prompts_of(finished), prompts_of(flying))
            await job.finish(finished[:1])
            await store.checkpoints.create("kept", step=2)
            assert {0: [0, 1], 1: [2, 3]} == job.trained
        yield store, finished[0].group_id


async def payload(runs: Runs, group_id: str) -> list[bytes]:
    """Return the payload bytes of a group."""
    keys = [key for key in await runs.payload_keys() if f":{group_id}:" in key]
    return [await runs.client.get(key) for key in keys]


async def test_prompts_in_flight_come_back_with_their_targets_and_finished_ones_with_their_bytes(
    runs: Runs,
) -> None:
    async with killed_with_groups_in_flight(runs) as (store, finished):
        before = await payload(runs, finished)
        async with opened_job(store) as job:
            await job.redispatch()
            await job.run(range(2, 4))
        report = await store.resume(model_step=2)
        assert ("restore", 3) == (report.action, report.redispatched)
        assert before == await payload(runs, finished)
        async with opened_job(store) as job:
            tickets = await job.redispatch()
            assert [(5, 2), (6, 3), (7, 3)] == [
                (prompts_of([ticket])[0], ticket.target_step) for ticket in tickets
            ]
            assert not await job.may_dispatch()
            await job.train(2)
            made = await job.dispatch()
            assert (4, [8, 9]) == (made[0].target_step, prompts_of(made))
            await job.finish(made)
            await job.train(3)
            await job.train(4)
        assert {2: [4, 5], 3: [6, 7], 4: [8, 9]} == job.trained


@pytest.mark.parametrize("drop", [False, True])
async def test_buffered_groups_that_are_not_wanted_are_generated_again(
    runs: Runs, drop: bool
) -> None:
    async with killed_with_groups_in_flight(runs) as (store, finished):
        await store.checkpoints.restore("kept", mode="prompts_only")
        if drop:
            await store.checkpoints.drop("kept")
            assert [] == await payload(runs, finished)
        async with opened_job(store) as job:
            tickets = await job.redispatch()
            assert [(4, 2, 2), (5, 2, 2), (6, 3, 2), (7, 3, 2)] == [
                (prompts_of([ticket])[0], ticket.target_step, ticket.weight_version)
                for ticket in tickets
            ]
            await job.run(range(2, 5))
        assert {2: [4, 5], 3: [6, 7], 4: [8, 9]} == job.trained
        await store.collect_garbage()


@pytest.mark.parametrize("mode", ["all", "prompts_only", "none"])
async def test_a_checkpoint_that_is_damaged_leaves_the_run_untouched(
    runs: Runs, mode: RestoreMode
) -> None:
    async with killed_with_groups_in_flight(runs) as (store, _):
        record = await store.checkpoints.record("kept")
        keyspace = store.buffer.session.link.gateway.keyspace
        await runs.client.hset(keyspace.saved(record.saved_id, Key.PROMPTS), "ghost", b"p")
        async with nothing_changed(runs):
            with pytest.raises(CheckpointDamaged):
                await store.checkpoints.restore("kept", mode=mode)


async def test_generated_groups_are_trained_before_prompts_that_follow_them(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        async with opened_job(store) as job:
            await job.finish(await job.dispatch())
            await job.finish(await job.dispatch())
            await job.train(0, checkpoint="step-1")
            await job.run(range(1, 2))
        await store.resume(model_step=1)
        async with opened_job(store) as job:
            await job.run(range(1, 4), prompts=8)
            assert {1: [2, 3], 2: [4, 5], 3: [6, 7]} == job.trained


async def test_the_end_of_the_data_survives_a_restart(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        async with opened_job(store) as job:
            await job.run(range(3), prompts=8)
            assert not await job.may_dispatch(prompts=8)
            await store.checkpoints.create("kept")
        await store.checkpoints.restore("kept")
    async with runs.open() as store:
        report = await store.resume()
        assert (b"8", 2) == (report.loader_state, report.found["ready"])
        async with opened_job(store) as job:
            await job.run(range(3, 4), prompts=8)
            assert {3: [6, 7]} == job.trained
            assert not await job.may_dispatch(prompts=8)


@pytest.mark.parametrize(
    ("prompts", "batches"), [(5, [[0, 1], [2, 3], [4]]), (1, [[0]])], ids=["five", "one"]
)
async def test_the_tail_of_the_data_is_trained_where_less_than_a_batch_is_enough(
    runs: Runs, prompts: int, batches: list[list[int]]
) -> None:
    async with runs.open(groups_per_step=2) as store, opened_job(store) as job:
        *whole, last = range(len(batches))
        await job.run(whole, prompts=prompts)
        while await job.may_dispatch(prompts=prompts):
            await job.finish(await job.dispatch(prompts=prompts))
        async with store.trainer(owner="tail", min_batch_fraction=0.5) as job.trainer:
            job.sampler = type(job.sampler)(job.trainer.buffer, max_lookahead_versions=1)
            await job.train(last)
        assert batches == list(job.trained.values())


async def test_a_tail_that_is_dropped_is_counted_and_the_run_ends(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, opened_job(store) as job:
        await job.run(range(2), prompts=5)
        [tail] = [slot.group_id for slot in await store.buffer.slots()]
        await store.buffer.remove([tail], reason="end_of_data")
        ends = (await store.stats()).ends
        assert (1, 1) == (ends["removed:end_of_data"], ends["aborted:end_of_data"])
        with pytest.raises(StepStarved, match="step 2 can have 0 of 2"):
            await job.train(2)
        assert {0: [0, 1], 1: [2, 3]} == job.trained


async def test_a_trainer_that_waits_for_the_tail_is_told_that_there_is_no_more(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, opened_job(store) as job:
        await job.run(range(2), prompts=4)
        waits = Waits(store)

        async def end_the_data() -> None:
            await waits.begun()
            await job.finish(await job.dispatch(prompts=5))

        async with anyio.create_task_group() as group:
            group.start_soon(end_the_data)
            with anyio.fail_after(4), pytest.raises(StepStarved, match="can have 1 of 2"):
                await job.trainer.select(job.sampler, min_prompt_groups=2, max_prompt_groups=2)


async def test_a_step_whose_trainer_was_killed_is_trained_wholly_by_the_next(runs: Runs) -> None:
    async with runs.open(groups_per_step=4, capacity=8) as store, runs.open(capacity=8) as dead:
        async with opened_job(store, per_step=4) as job:
            await store.publish_trainer_version(8)
            job.dispatcher.set_dispatch_index(8)
            batch = await job.dispatch()
            await job.finish(batch[:2])
            killed = await dead.trainer(owner="killed").__aenter__()
            await killed.buffer.claim_for_training([made.group_id for made in batch[:2]])
            for weight in (8, 9):
                assert 0 == await job.sampler.evict(current_train_weight=weight)
            await job.finish(batch[2:3])
            assert (4, 3) == (await store.buffer.size(), len(await runs.payload_keys()))
        report = await store.resume(model_step=8, take_over=True)
        assert ("continue", 2, 1) == (report.action, report.requeued, report.redispatched)
        async with opened_job(store, per_step=4) as job:
            assert [0, 1, 2] == await job.claim(8, least=1)
            assert [3] == prompts_of(await job.redispatch())
            assert [3] == await job.claim(8, least=1)
            assert 4 == len((await job.trainer.commit_step(8)).trained)
            assert 9 == store.trainer_version


async def test_a_run_that_stops_early_lets_go_of_waiters_and_is_taken_up_again(runs: Runs) -> None:
    async with (
        anyio.create_task_group() as group,
        runs.open(groups_per_step=2, capacity=6) as store,
        opened_job(store, lookahead=2) as job,
    ):
        await job.run(range(5), prompts=14)
        await job.dispatch()
        assert (7, 6) == (store.buffer.admission.dispatch_index, await store.buffer.size())
        waits = Waits(store)
        group.start_soon(waits_in_vain, job.dispatcher.admit(trainer_version_fn=lambda: 5))
        group.start_soon(waits_in_vain, job.rollout.buffer.reserve_when_free(5))
        await waits.begun(2)
        started = anyio.current_time()
        await job.trainer.__aexit__(None, None, None)
        await job.rollout.__aexit__(None, None, None)
        await store.close()
        assert anyio.current_time() - started < 1.0
    async with runs.open(capacity=6) as store:
        report = await store.resume()
        assert (4, 2, 5, 7) == (
            *(report.found["ready"], report.redispatched),
            *(report.step, report.dispatch_index),
        )
        async with opened_job(store, lookahead=2) as job:
            await job.redispatch()
            for step in range(5, 8):
                await job.train(step)
            assert {5: [10, 11], 6: [12, 13], 7: [14, 15]} == job.trained
            assert (8, 7) == (store.trainer_version, store.buffer.admission.dispatch_index)
        await store.collect_garbage()
        assert [] == await runs.payload_keys()


async def waits_in_vain(wait: Awaitable[object]) -> None:
    """Wait for something that a closed store will not give."""
    with pytest.raises(StoreClosed):
        await wait
