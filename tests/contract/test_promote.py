"""Lending a finished group of a later step to an earlier one."""

from __future__ import annotations

import pytest

from redis_replay import InOrderSamplerConfig, create_sampler
from redis_replay._redis.keys import Key
from redis_replay.errors import StoreCorrupted
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_the_furthest_step_lends_and_is_repaid(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=2))
        sampler.set_dispatch_index(8)
        await sampler.flush()
        await store.publish_trainer_version(5)
        count = store.buffer.count_for_target_step
        for name, target in (("a", 5), ("b", 6), ("c", 6), ("d", 7)):
            await commit_ready(store, 5, group_id=name, target_step=target)
        await store.buffer.reserve(5, group_id="e", target_step=7)

        assert 7 == await store.buffer.promote_ready_group(to_target_step=5)
        assert [2, 2, 1] == [await count(step) for step in (5, 6, 7)]
        meta, groups = await sampler.select(
            current_train_weight=5, min_prompt_groups=2, max_prompt_groups=2
        )
        assert meta is not None
        assert (["a", "d"], [5, 5], 2) == (
            *(meta.extra_info["group_ids"], meta.extra_info["target_steps"]),
            groups,
        )
        await store.buffer.reserve(5, group_id="repayment", target_step=7)
        assert [2, 2] == [await count(step) for step in (6, 7)]
        assert 6 == await store.buffer.promote_ready_group(to_target_step=5)
        assert 6 == await store.buffer.promote_ready_group(to_target_step=5)
        async with nothing_changed(runs):
            assert await store.buffer.promote_ready_group(to_target_step=5) is None


async def test_within_a_step_the_first_in_buffer_order_is_lent(runs: Runs) -> None:
    async with runs.open() as store:
        for weight, name in ((9, "first"), (1, "second")):
            await commit_ready(store, weight, group_id=name, target_step=3)
        before = {slot.group_id: slot for slot in await store.buffer.slots()}
        assert 3 == await store.buffer.promote_ready_group(to_target_step=2)
        lent, kept = await store.buffer.slots()
        assert ("first", 2, "second", 3) == (
            *(lent.group_id, lent.target_step),
            *(kept.group_id, kept.target_step),
        )
        old = before["first"]
        assert (old.order, old.start_weight_version, old.fence, old.payload_fence) == (
            *(lent.order, lent.start_weight_version),
            *(lent.fence, lent.payload_fence),
        )


async def test_reserved_claimed_and_unstamped_groups_never_lend(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, target_step=5)
        await commit_ready(store, 0)
        claimed = await commit_ready(store, 0, target_step=4)
        await commit_ready(store, 0, target_step=2)
        await store.buffer.claim_for_training([claimed])
        async with nothing_changed(runs):
            assert await store.buffer.promote_ready_group(to_target_step=2) is None
            assert await store.buffer.promote_ready_group(to_target_step=3) is None
        assert 2 == await store.buffer.promote_ready_group(to_target_step=1)


async def test_a_group_is_never_lent_to_a_step_that_has_passed(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, target_step=9)
        await store.publish_trainer_version(7)
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match="step 6 has passed: the trainer version is 7"):
                await store.buffer.promote_ready_group(to_target_step=6)
        assert 9 == await store.buffer.promote_ready_group(to_target_step=7)


@pytest.mark.parametrize("step", [-1, 2**53, None, "1"])
async def test_a_step_that_is_no_version_is_refused_at_the_door(runs: Runs, step: object) -> None:
    async with runs.open() as store, nothing_changed(runs):
        with pytest.raises((ValueError, TypeError), match="to_target_step"):
            await store.buffer.promote_ready_group(to_target_step=step)  # type: ignore[arg-type]


async def test_a_group_may_be_lent_on(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g", target_step=9)
        assert 9 == await store.buffer.promote_ready_group(to_target_step=5)
        assert 5 == await store.buffer.promote_ready_group(to_target_step=2)
        [slot] = await store.buffer.slots()
        assert 2 == slot.target_step


async def test_a_count_for_a_step_takes_all_states_that_hold_a_place(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, target_step=2)
        await commit_ready(store, 0, target_step=2)
        claimed = await commit_ready(store, 0, target_step=2)
        await store.buffer.claim_for_training([claimed])
        await commit_ready(store, 0, target_step=3)
        await commit_ready(store, 2)
        assert [0, 3, 1, 0] == [await store.buffer.count_for_target_step(s) for s in (1, 2, 3, 4)]
        await store.buffer.release_training_claims([claimed])
        assert 2 == await store.buffer.count_for_target_step(2)


async def test_a_lender_that_does_not_fit_its_record_stops_the_loan(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, target_step=3)
        stray = "0000000000000099:ghost"
        await runs.client.zadd(control_key(runs, Key.READY_BY_STEP), {stray: 8})
        async with nothing_changed(runs):
            with pytest.raises(StoreCorrupted):
                await store.buffer.promote_ready_group(to_target_step=1)
        await runs.client.zrem(control_key(runs, Key.READY_BY_STEP), stray)
        assert 3 == await store.buffer.promote_ready_group(to_target_step=1)
        await store.buffer.reserve(0, group_id="late", target_step=1)
        await store.buffer.commit("late", rows(), start_weight_version=0, end_weight_version=0)
