"""Drops, replacements and loans of a step, and what a trainer is told of them."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import InOrderSamplerConfig, WeightFifoSamplerConfig, create_sampler
from redis_replay.dynamic_sampling import Completion, PromptGroupRecord
from redis_replay.errors import ConfigurationError, StepStarved
from redis_replay.filtering import DynamicSampling, Replacement
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


def record(rewards: list[float], *, truncated: tuple[int, ...] = ()) -> PromptGroupRecord:
    """A group's record with the given rewards."""
    return PromptGroupRecord(
        prompt_idx=0,
        prompt=[],
        extra_env_info=None,
        metadata={},
        completions=[
            Completion(message_log=[], env_extras=None, truncated=at in truncated, reward=reward)
            for at, reward in enumerate(rewards)
        ],
        rollout_metrics={},
    )


async def admit_steps(sampler: Any, steps: int, *, version: int) -> None:
    """Admit batches so that the cursor covers the steps."""
    for _ in range(steps):
        await sampler.admit(trainer_version_fn=lambda: version)


async def test_a_step_that_lost_a_group_closes_with_the_rest(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=4) as store,
        store.trainer(owner="t", min_batch_fraction=0.5) as trainer,
    ):
        await store.publish_trainer_version(2)
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
        for _ in range(3):
            await commit_ready(store, 2, target_step=2)
        failed = await store.buffer.reserve(2, target_step=2)
        await store.buffer.abort(failed.group_id, reason="failed")
        with anyio.fail_after(10):
            _, groups = await trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4)
        assert 3 == groups
        assert 3 == len((await trainer.commit_step(2)).trained)
        assert 0 == await store.buffer.size()


async def test_a_replacement_makes_the_step_whole_again(runs: Runs) -> None:
    async with runs.open(groups_per_step=4) as store, store.trainer(owner="t") as trainer:
        await store.publish_trainer_version(2)
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
        for _ in range(3):
            await commit_ready(store, 2, target_step=2)
        failed = await store.buffer.reserve(2, target_step=2)
        await store.buffer.abort(failed.group_id, reason="failed")
        assert 3 == (await store.step_target(2)).reachable
        again = await store.buffer.reserve(2, target_step=2, replacement_index=1)
        await store.buffer.commit(
            again.group_id, rows(), start_weight_version=2, end_weight_version=2
        )
        assert 4 == (await store.step_target(2)).reachable
        _, groups = await trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4)
        assert 4 == groups


async def test_a_step_below_the_fraction_is_refused_with_its_numbers(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="t", min_batch_fraction=0.5) as trainer,
    ):
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=0))
        for _ in range(2):
            lost = await store.buffer.reserve(0, target_step=0)
            await store.buffer.abort(lost.group_id, reason="failed")
        with pytest.raises(StepStarved, match="step 0 can have 0 of 2 groups") as caught:
            await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert (2, 0) == (caught.value.target.lost, caught.value.target.reachable)


async def test_a_step_that_lost_everything_is_never_selected_and_can_be_skipped(
    runs: Runs,
) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="t", min_batch_fraction=0.0) as trainer,
    ):
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
        for _ in range(2):
            lost = await store.buffer.reserve(0, target_step=0)
            await store.buffer.abort(lost.group_id, reason="failed")
        with pytest.raises(StepStarved, match="0 of 2 groups and needs 1"):
            await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        await trainer.skip_step(0)
        assert 1 == trainer.trainer_version


async def test_a_missing_group_without_credit_is_named_at_the_deadline(runs: Runs) -> None:
    async with runs.open(groups_per_step=4) as store, store.trainer(owner="t") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
        for _ in range(3):
            await commit_ready(store, 0, target_step=0)
        with pytest.raises(StepStarved, match="it has 3 of 4 groups: 3 ready, 0 in flight"):
            await trainer.select(
                sampler, min_prompt_groups=4, max_prompt_groups=4, deadline_seconds=0.05
            )
        assert 3 == (await store.stats()).ready


async def test_a_loan_is_recorded_and_its_repayment_credited(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, store.trainer(owner="t") as trainer:
        await store.publish_trainer_version(5)
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=2))
        await commit_ready(store, 5, group_id="a", target_step=5)
        sibling = await store.buffer.reserve(5, target_step=5)
        await store.buffer.abort(sibling.group_id, reason="failed")
        for name in ("b", "c"):
            await commit_ready(store, 5, group_id=name, target_step=6)
        await commit_ready(store, 5, group_id="d", target_step=7)
        await store.buffer.reserve(5, group_id="e", target_step=7)
        assert 7 == await store.buffer.promote_ready_group(to_target_step=5)
        assert (2, 1) == (
            (await store.step_target(5)).reachable,
            (await store.step_target(7)).reachable,
        )
        await store.buffer.reserve(5, target_step=7, replacement_index=1)
        assert 2 == (await store.step_target(7)).reachable
        meta, _ = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert meta is not None
        assert ["a", "d"] == meta.extra_info["group_ids"]
        counts = {step: await store.buffer.count_for_target_step(step) for step in (6, 7)}
        assert {6: 2, 7: 2} == counts


async def test_a_group_without_signal_ends_filtered_and_its_replacement_is_reserved(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store, store.rollout(owner="r") as rollout:
        commits = rollout.filter(DynamicSampling(max_replacements=1))
        first = await rollout.buffer.reserve(0, target_step=4)
        outcome = await commits.commit(
            first.group_id,
            record([1.0, 1.0]),
            start_weight_version=0,
            end_weight_version=0,
            replacement=Replacement(0, prompt_ref=b"next"),
        )
        assert not outcome.kept
        assert outcome.replacement is not None
        assert (4, 1, b"next") == (
            outcome.replacement.target_step,
            outcome.replacement.replacement_index,
            outcome.replacement.prompt_ref,
        )
        last = await commits.commit(
            outcome.replacement.group_id,
            record([0.0, 0.0]),
            start_weight_version=0,
            end_weight_version=0,
            replacement=Replacement(0),
        )
        assert last.replacement is None
        stats = await store.stats()
        assert (2, 0, 0) == (stats.filtered, stats.reserved, stats.ready)
        assert {
            "unfiltered_reward": 0.5,
            "first_attempt_reward": 1.0,
            "generated_prompt_groups": 2.0,
            "zero_variance_prompt_groups": 2.0,
            "zero_variance_fraction": 1.0,
        } == await store.drain_step_reward_metrics(4)
        assert {} == await store.drain_step_reward_metrics(4)
        assert 1 == (await store.step_target(4)).reachable


async def test_a_kept_group_is_tallied_once_however_often_it_is_committed(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, store.rollout(owner="r") as rollout:
        slot = await rollout.buffer.reserve(0, target_step=0)
        for _ in range(2):
            await rollout.filter().commit(
                slot.group_id, record([0.0, 1.0]), start_weight_version=0, end_weight_version=0,
                fence=slot.fence,
            )  # fmt: skip
        metrics = await store.drain_step_reward_metrics(0)
        assert (1.0, 0.5) == (metrics["generated_prompt_groups"], metrics["unfiltered_reward"])


async def test_dynamic_sampling_with_single_samples_is_refused(runs: Runs) -> None:
    async with runs.open(group_size=1) as store:
        with pytest.raises(ConfigurationError, match="group size of at least 2"):
            store.filter()


async def test_unstamped_batches_absorb_a_loss_once(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="t", min_batch_fraction=0.5) as trainer,
    ):
        sampler = create_sampler(trainer.buffer, WeightFifoSamplerConfig())
        producer = create_sampler(store.buffer, WeightFifoSamplerConfig())
        for batch in range(2):
            await producer.admit(trainer_version_fn=lambda: 0)
            for at in range(2):
                slot = await store.buffer.reserve(0, group_id=f"{batch}.{at}")
                if (batch, at) != (0, 1):
                    await store.buffer.commit(
                        slot.group_id, rows(), start_weight_version=0, end_weight_version=0
                    )
        await store.buffer.abort("0.1", reason="failed")
        assert (1, 2) == tuple(
            [(await store.step_target(step)).lost for step in (0,)]
            + [(await store.step_target(1)).reachable]
        )
        _, groups = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert 2 == groups
        await trainer.commit_step(0)
        assert 1 == (await store.step_target(1)).reachable
        _, groups = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert 1 == groups
        await trainer.commit_step(1)
        assert 2 == (await store.step_target(2)).reachable
