"""Loans between steps: a finished group of a later step fills a hole, and is paid back."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay import InOrderSampler, InOrderSamplerConfig, create_sampler
from redis_replay.errors import StepStarved
from tests.contract.keyspace import nothing_changed
from tests.contract.prompt_groups import record_of
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


def in_order(place: Any, *, lookahead: int = 2) -> InOrderSampler:
    """Return an ``in_order`` sampler on a store or session."""
    sampler = create_sampler(place.buffer, InOrderSamplerConfig(max_lookahead_versions=lookahead))
    assert isinstance(sampler, InOrderSampler)
    return sampler


async def lose(place: Any, step: int) -> None:
    """Reserve a group for a step and end it as failed."""
    slot = await place.buffer.reserve(step, target_step=step)
    await place.filter().fail(slot.group_id)


async def balance(store: Any, step: int) -> tuple[int, int, int, int, int]:
    """Return what a step lost, got replaced, borrowed and lent, and what it can still have."""
    target = await store.step_target(step)
    return (target.lost, target.replaced, target.borrowed, target.lent, target.reachable)


async def test_a_hole_is_filled_by_the_furthest_step_and_the_loan_is_paid_back(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store, store.trainer(owner="t") as trainer:
        await store.publish_trainer_version(5)
        sampler = in_order(trainer)
        await commit_ready(store, 5, group_id="a", target_step=5)
        await lose(store, 5)
        for name in ("b", "c"):
            await commit_ready(store, 5, group_id=name, target_step=6)
        slot = await store.buffer.reserve(5, group_id="d", target_step=7)
        await store.filter().commit(
            slot.group_id, record_of([0.0, 1.0]), start_weight_version=5, end_weight_version=5
        )
        await store.buffer.reserve(5, group_id="e", target_step=7)
        assert 7 == await store.buffer.promote_ready_group(to_target_step=5)
        assert (1, 0, 1, 0, 2) == await balance(store, 5)
        assert (0, 0, 0, 1, 1) == await balance(store, 7)
        await store.buffer.reserve(5, group_id="repaid", target_step=7, replacement_index=1)
        assert (0, 1, 0, 1, 2) == await balance(store, 7)
        meta, _ = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert ["a", "d"] == meta.extra_info["group_ids"]
        counts = {step: await store.buffer.count_for_target_step(step) for step in (6, 7)}
        assert {6: 2, 7: 2} == counts
        await trainer.commit_step(5)
        assert (0, 0, 0, 0, 2) == await balance(store, 5)
        metrics = [await trainer.drain_step_reward_metrics(step) for step in (5, 6, 7)]
        assert [1.0, 2.0, 1.0] == [found["generated_prompt_groups"] for found in metrics]


async def test_only_finished_groups_are_lent_and_then_there_is_no_lender(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await commit_ready(store, 0, target_step=1)
        await store.buffer.reserve(0, target_step=2)
        assert 1 == await store.buffer.promote_ready_group(to_target_step=0)
        async with nothing_changed(runs):
            assert await store.buffer.promote_ready_group(to_target_step=0) is None
        assert (0, 0, 1, 0, 2) == await balance(store, 0)
        assert (0, 0, 0, 1, 1) == await balance(store, 1)
        assert (0, 0, 0, 0, 2) == await balance(store, 2)


async def test_a_borrowed_group_that_is_lost_is_missing_where_it_went(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        for _ in range(2):
            await commit_ready(store, 0, target_step=2)
        await store.buffer.promote_ready_group(to_target_step=1)
        [borrowed] = [s.group_id for s in await store.buffer.slots() if s.target_step == 1]
        await store.buffer.remove_group(borrowed)
        assert (1, 0, 1, 0, 2) == await balance(store, 1)
        assert (0, 0, 0, 1, 1) == await balance(store, 2)


async def test_a_group_lent_on_leaves_the_middle_step_as_it_was(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await commit_ready(store, 0, target_step=4)
        assert 4 == await store.buffer.promote_ready_group(to_target_step=3)
        assert 3 == await store.buffer.promote_ready_group(to_target_step=1)
        assert (0, 0, 1, 1, 2) == await balance(store, 3)
        assert (0, 0, 1, 0, 2) == await balance(store, 1)
        assert (0, 0, 0, 1, 1) == await balance(store, 4)


async def test_a_passed_step_gets_no_loan(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await store.publish_trainer_version(7)
        await commit_ready(store, 7, target_step=9)
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match="step 6 has passed: the trainer version is 7"):
                await store.buffer.promote_ready_group(to_target_step=6)
        assert 9 == await store.buffer.promote_ready_group(to_target_step=7)


@pytest.mark.parametrize(("fraction", "last"), [(0.5, 1), (1.0, 0)])
async def test_a_chain_of_loans_ends_with_the_last_step_short_or_loudly(
    runs: Runs, fraction: float, last: int
) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="t", min_batch_fraction=fraction) as trainer,
    ):
        await store.publish_trainer_version(7)
        sampler = in_order(trainer)
        for step in (7, 8, 8, 9, 9):
            await commit_ready(store, 7, target_step=step)
        await lose(store, 7)
        assert 9 == await store.buffer.promote_ready_group(to_target_step=7)
        repayment = await store.buffer.reserve(7, target_step=9, replacement_index=1)
        await store.filter().fail(repayment.group_id)
        for step in (7, 8):
            _, groups = await trainer.select(
                sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=5
            )
            assert (step, 2) == (trainer.trainer_version, groups)
            await trainer.commit_step(step)
        assert await store.buffer.promote_ready_group(to_target_step=9) is None
        assert (1, 1, 0, 1, 1) == await balance(store, 9)
        if last:
            _, groups = await trainer.select(
                sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=5
            )
            assert last == groups
            await trainer.commit_step(9)
            assert (10, 0) == (trainer.trainer_version, await store.buffer.size())
        else:
            with pytest.raises(StepStarved, match="step 9 can have 1 of 2 groups and needs 2"):
                await trainer.select(
                    sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=5
                )
