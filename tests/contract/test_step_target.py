"""What a trainer is told of a step that lost groups, and how it closes it: in time or loudly."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import (
    DynamicSampling,
    InOrderSampler,
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    Replacement,
    WeightFifoSamplerConfig,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import StepStarved
from redis_replay.heart import end_owner
from tests.contract.keyspace import collected, control_key
from tests.contract.prompt_groups import record_of
from tests.contract.waits import Waits
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

WITHIN_A_POLL = 0.9
"""Seconds; less than the period of the slow re-check, so that only an event can have woken it."""


def in_order(place: Any, *, lookahead: int = 1) -> InOrderSampler:
    """Return an ``in_order`` sampler on a store or session."""
    sampler = create_sampler(place.buffer, InOrderSamplerConfig(max_lookahead_versions=lookahead))
    assert isinstance(sampler, InOrderSampler)
    return sampler


@pytest.mark.parametrize("end", ["fail", "abort", "remove", "filter"])
async def test_a_waiting_trainer_closes_short_as_soon_as_the_loss_is_recorded(
    runs: Runs, end: str
) -> None:
    async with (
        runs.open(groups_per_step=4, capacity=8) as store,
        store.trainer(owner="t", min_batch_fraction=0.75) as trainer,
    ):
        await store.publish_trainer_version(2)
        sampler = in_order(trainer)
        ready = [await commit_ready(store, 2, target_step=2) for _ in range(3)]
        lost = await store.buffer.reserve(2, group_id="lost", target_step=2)
        waits, batch = Waits(trainer), list[str]()

        async def train() -> None:
            meta, _ = await trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4)
            batch.extend(meta.extra_info["group_ids"])

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(train)
                await waits.begun()
                began = anyio.current_time()
                if end == "fail":
                    await store.filter().fail("lost")
                elif end == "abort":
                    await store.buffer.abort("lost", fence=lost.fence)
                elif end == "remove":
                    await store.buffer.remove_group("lost")
                else:
                    await store.filter().commit(
                        "lost", record_of([1, 1]), start_weight_version=2, end_weight_version=2
                    )
        assert anyio.current_time() - began < WITHIN_A_POLL
        assert ready == batch
        assert 3 == await store.buffer.size()
        await trainer.commit_step(2)
        assert (3, 0) == (trainer.trainer_version, await store.buffer.size())


async def test_a_trainer_that_replaces_waits_for_the_replacement(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=4) as store,
        store.trainer(owner="t", on_dropped="replace", min_batch_fraction=0.0) as trainer,
    ):
        await store.publish_trainer_version(2)
        sampler = in_order(trainer)
        for _ in range(3):
            await commit_ready(store, 2, target_step=2)
        lost = await store.buffer.reserve(2, target_step=2)
        await store.filter().fail(lost.group_id)
        with pytest.raises(StepStarved, match="it has 3 of 4 groups: 3 ready, 0 in flight") as none:
            await trainer.select(
                sampler, min_prompt_groups=4, max_prompt_groups=4, deadline_seconds=0.02
            )
        assert (1, 3) == (none.value.target.lost, none.value.target.reachable)
        again = await store.buffer.reserve(2, target_step=2, replacement_index=1)
        await store.filter().commit(
            again.group_id, record_of([0, 1]), start_weight_version=2, end_weight_version=2
        )
        _, groups = await trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4)
        assert 4 == groups


async def test_a_step_without_credit_raises_at_the_deadline_with_all_numbers(runs: Runs) -> None:
    async with runs.open(groups_per_step=4) as store, store.trainer(owner="t") as trainer:
        sampler = in_order(trainer)
        for _ in range(3):
            await commit_ready(store, 0, target_step=0)
        with pytest.raises(StepStarved) as starved:
            await trainer.select(
                sampler, min_prompt_groups=4, max_prompt_groups=4, deadline_seconds=0
            )
        target = starved.value.target
        assert (0, 4, 3, 0, 0, 0, 4) == (
            *(target.step, target.wanted, target.ready, target.in_flight, target.claimed),
            *(target.lost, target.reachable),
        )
        assert "step 0 had no batch within 0 s; it has 3 of 4 groups" in str(starved.value)
        assert "its batch was not dispatched yet" in str(starved.value)
        assert 3 == (await store.stats()).ready


async def test_a_minimum_is_not_lowered_while_nothing_is_lost(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="t", min_batch_fraction=0.0) as trainer,
    ):
        sampler = in_order(trainer)
        await commit_ready(store, 0, target_step=0)
        await store.buffer.reserve(0, target_step=0)
        with pytest.raises(StepStarved, match="1 ready, 1 in flight"):
            await trainer.select(
                sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=0.02
            )


async def test_a_minimum_is_lowered_to_what_can_come_and_no_further(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=4) as store,
        store.trainer(owner="t", min_batch_fraction=0.0) as trainer,
    ):
        sampler = in_order(trainer)
        await commit_ready(store, 0, target_step=0)
        for name in ("late", "later", "lost"):
            await store.buffer.reserve(0, group_id=name, target_step=0)
        await store.filter().fail("lost")
        for name, have in (("late", 1), ("later", 2)):
            with pytest.raises(StepStarved, match=f"it has {have} of 4 groups"):
                await trainer.select(
                    sampler, min_prompt_groups=4, max_prompt_groups=4, deadline_seconds=0
                )
            await store.filter().commit(
                name, record_of([0, 1]), start_weight_version=0, end_weight_version=0
            )
        _, groups = await trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4)
        assert 3 == groups


async def test_a_streaming_step_ends_when_all_that_can_come_is_taken(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=4) as store,
        store.trainer(owner="t", min_batch_fraction=0.5) as trainer,
    ):
        sampler = in_order(trainer)
        for _ in range(3):
            await commit_ready(store, 0, target_step=0)
        lost = await store.buffer.reserve(0, target_step=0)
        await store.filter().fail(lost.group_id)
        taken = []
        for _ in range(2):
            _, groups = await trainer.select(
                sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=5
            )
            taken.append(groups)
        assert [2, 1] == taken
        with pytest.raises(StepStarved, match="can have 3 of 4 groups and needs 4"):
            await trainer.select(
                sampler, min_prompt_groups=1, max_prompt_groups=2, deadline_seconds=5
            )
        assert 3 == len((await trainer.commit_step(0)).trained)


@pytest.mark.parametrize("fraction", [0.5, 0.0])
async def test_a_step_that_lost_everything_is_named_and_never_selected(
    runs: Runs, fraction: float
) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="t", min_batch_fraction=fraction) as trainer,
    ):
        sampler = in_order(trainer, lookahead=0)
        await store.publish_trainer_version(3)
        for _ in range(2):
            slot = await store.buffer.reserve(3, target_step=3)
            await store.filter().commit(
                slot.group_id, record_of([0, 0]), start_weight_version=3, end_weight_version=3
            )
        with pytest.raises(StepStarved, match="step 3 can have 0 of 2 groups and needs 1"):
            await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert ((), 0) == ((await trainer.skip_step(3)).trained, await store.buffer.size())
        assert 4 == trainer.trainer_version


@pytest.mark.parametrize(("fraction", "groups"), [(0.75, 3), (0.76, 0), (1.0, 0)])
async def test_the_fraction_is_of_the_minimum_and_rounded_up(
    runs: Runs, fraction: float, groups: int
) -> None:
    async with (
        runs.open(groups_per_step=4) as store,
        store.trainer(owner="t", min_batch_fraction=fraction) as trainer,
    ):
        sampler = in_order(trainer)
        for _ in range(3):
            await commit_ready(store, 0, target_step=0)
        lost = await store.buffer.reserve(0, target_step=0)
        await store.filter().fail(lost.group_id)
        if groups:
            assert (
                groups
                == (await trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4))[1]
            )
        else:
            with pytest.raises(StepStarved, match="3 of 4 groups and needs 4"):
                await trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4)
            assert 3 == (await store.stats()).ready


async def test_a_survivor_of_zero_masks_and_zero_length_comes_back_whole(runs: Runs) -> None:
    async with runs.open(groups_per_step=1) as store, store.trainer(owner="t") as trainer:
        sampler = in_order(trainer)
        slot = await store.buffer.reserve(0, target_step=0)
        row: dict[str, Any] = {"input_ids": b"", "mask": [0, 0], "length": 0, "reward": 0.0}
        await store.buffer.commit(
            slot.group_id,
            [row, {**row, "length": 3, "input_ids": b"abc"}],
            start_weight_version=0,
            end_weight_version=0,
        )
        assert 1 == (await store.step_target(0)).zero_variance
        meta, _ = await trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)
        assert [0, 3] == list(meta.sequence_lengths or ())
        found = await trainer.samples.get_samples(meta.sample_ids, select_fields=["mask"])
        assert [[0, 0], [0, 0]] == [list(row["mask"]) for row in found]


async def test_a_run_of_hopeless_prompts_ends_with_the_count_of_what_was_generated(
    runs: Runs,
) -> None:
    async with (
        runs.open(groups_per_step=2, group_size=4, capacity=2) as store,
        store.trainer(owner="t", min_batch_fraction=0.5) as trainer,
        store.rollout(owner="r") as rollout,
    ):
        sampler, commits = in_order(trainer, lookahead=0), rollout.filter(DynamicSampling())
        await sampler.admit(trainer_version_fn=lambda: 0)
        pending = [await rollout.buffer.reserve(0, target_step=0) for _ in range(2)]
        while pending:
            slot = pending.pop()
            outcome = await commits.commit(
                slot.group_id, record_of([0, 0, 0, 0]),
                start_weight_version=0, end_weight_version=0, replacement=Replacement(0),
            )  # fmt: skip
            if outcome.replacement is not None:
                pending.append(outcome.replacement)
        with pytest.raises(
            StepStarved, match=r"step 0 can have 0 of 2 .*8 generated, 8 of them without signal"
        ):
            await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert {
            "unfiltered_reward": 0.0,
            "first_attempt_reward": 0.0,
            "generated_prompt_groups": 8.0,
            "zero_variance_prompt_groups": 8.0,
            "zero_variance_fraction": 1.0,
        } == await trainer.drain_step_reward_metrics(0)
        await collected(store, rollout)
        assert [] == await runs.payload_keys()


async def test_a_group_quarantined_and_then_removed_is_lost_once(runs: Runs) -> None:
    async with runs.open(groups_per_step=2, max_attempts=1) as store:
        rollout = store.rollout(owner="r")
        async with rollout:
            await rollout.buffer.reserve(0, group_id="g", target_step=1)
            link = store.buffer.session.link
            await end_owner(link.gateway, link.run.frame, "r", rollout.epoch)
        assert 1 == (await store.stats()).quarantined
        assert 1 == (await store.step_target(1)).lost
        await store.buffer.remove_group("g")
        assert 1 == (await store.step_target(1)).lost


async def test_late_losses_of_stamped_steps_are_not_carried_into_another_policy(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store:
        stamped = in_order(store)
        await stamped.admit(trainer_version_fn=lambda: 0)
        late = await store.buffer.reserve(0, target_step=0)
        await store.publish_trainer_version(1)
        await store.buffer.abort(late.group_id, fence=late.fence)
        assert {} == await runs.client.hgetall(control_key(runs, Key.STEPS))
    async with runs.open(groups_per_step=2, switch_policy=True) as store:
        unstamped = create_sampler(store.buffer, ReadyFirstSamplerConfig())
        await unstamped.admit(trainer_version_fn=lambda: 1)
        assert 2 == (await store.step_target(1)).reachable


@pytest.mark.parametrize("config", [ReadyFirstSamplerConfig(), WeightFifoSamplerConfig()])
async def test_versions_published_before_the_first_dispatch_leave_nothing_short(
    runs: Runs, config: Any
) -> None:
    async with runs.open(groups_per_step=2) as store:
        sampler = create_sampler(store.buffer, config)
        sampler.set_dispatch_index(5)  # type: ignore[attr-defined]
        await sampler.admit(trainer_version_fn=lambda: 5)
        assert 5 == sampler.dispatch_index
        for _ in range(2):
            slot = await store.buffer.reserve(5)
        await store.publish_trainer_version(5)
        await store.buffer.abort(slot.group_id, fence=slot.fence)
        target = await store.step_target(5)
        assert (1, 0, 1) == (target.lost, target.short, target.reachable)


@pytest.mark.parametrize("fraction", [0.5, 1.0])
async def test_weight_fifo_closes_with_the_rest_of_a_version_that_dispatch_has_passed(
    runs: Runs, fraction: float
) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="t", min_batch_fraction=fraction) as trainer,
    ):
        sampler = create_sampler(trainer.buffer, WeightFifoSamplerConfig())
        await sampler.admit(trainer_version_fn=lambda: 0)
        await store.publish_trainer_version(1)
        await commit_ready(store, 0)
        if fraction == 1.0:
            await commit_ready(store, 1)
        with pytest.raises(StepStarved, match="it has"):
            await trainer.select(
                sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=0.02
            )
        if fraction < 1.0:
            await store.buffer.reserve(1)
            _, groups = await trainer.select(
                sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=5
            )
            assert 1 == groups


async def test_a_step_is_dispatched_once_the_cursor_has_reached_it(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await in_order(store).admit(trainer_version_fn=lambda: 0)
        dispatched = [(await store.step_target(step)).dispatched for step in range(3)]
        assert [True, False, False] == dispatched
