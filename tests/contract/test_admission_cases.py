"""Dispatching ahead of the trainer where other asynchronous trainers have gone wrong."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pydantic import ValidationError

from redis_replay import InOrderSamplerConfig, required_buffer_capacity_for_config
from redis_replay.errors import CapacityTooSmall
from tests.contract.policies import (
    admit,
    admit_all,
    blocks,
    chosen,
    ready_for_step,
    sampler_of,
    select,
)
from tests.harness import Runs, rows

pytestmark = pytest.mark.anyio


async def test_a_lookahead_of_two_dispatches_three_batches_and_one_more_each_step(
    runs: Runs,
) -> None:
    """B01."""
    async with runs.open(capacity=12, groups_per_step=4) as store:
        sampler = sampler_of(store, "in_order", 2)
        assert (-1, 12) == (sampler.dispatch_index, sampler.required_buffer_capacity(4))
        assert [0, 1, 2] == [await admit(sampler, 0) for _ in range(3)]
        with anyio.move_on_after(0.1) as patience:
            await sampler.admit(trainer_version_fn=lambda: 0)
        assert patience.cancelled_caught
        await store.publish_trainer_version(1)
        assert 3 == await admit(sampler, 0)
        assert await blocks(sampler.admit, 1)
        assert 3 == sampler.dispatch_index


async def test_a_negative_lookahead_is_no_configuration() -> None:
    """B01."""
    with pytest.raises(ValidationError, match="max_lookahead_versions"):
        InOrderSamplerConfig(max_lookahead_versions=-1)


async def test_a_capacity_in_which_dispatch_would_deadlock_is_refused_at_setup(runs: Runs) -> None:
    """B01."""
    config = InOrderSamplerConfig(max_lookahead_versions=2)
    assert 12 == required_buffer_capacity_for_config(config, 4)
    async with runs.open(capacity=8, groups_per_step=4) as store:
        with pytest.raises(CapacityTooSmall, match=r"\b8\b.*\b12\b"):
            await admit(sampler_of(store, "in_order", 2), 0)


async def test_a_run_resumed_at_a_high_version_dispatches_its_lookahead_and_no_more(
    runs: Runs,
) -> None:
    """B04: 12 groups are in flight, not 412."""
    async with runs.open(capacity=12, groups_per_step=4) as store:
        await store.publish_trainer_version(100)
        sampler = sampler_of(store, "in_order", 2)
        sampler.set_dispatch_index(100)
        assert 99 == sampler.dispatch_index
        while not await blocks(sampler.wait_until_admissible, 100):
            async with store.mutation() as cut:
                step = sampler.commit_admission(cut)
                for _ in range(4):
                    cut.reserve(100, target_step=step)
        counts = [await store.buffer.count_for_target_step(step) for step in range(98, 105)]
        assert [0, 0, 4, 4, 4, 0, 0] == counts
        assert (12, 102) == (await store.buffer.size(), sampler.dispatch_index)


async def test_resuming_from_version_zero_is_a_fresh_run_and_from_below_is_refused(
    runs: Runs,
) -> None:
    """B04."""
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 2)
        with pytest.raises(ValueError, match="got -1"):
            sampler.set_dispatch_index(-1)
        sampler.set_dispatch_index(0)
        assert -1 == sampler.dispatch_index
        assert [0, 1, 2] == await admit_all(sampler, 0)


async def test_a_run_resumed_with_a_full_batch_skips_no_step_behind_it(runs: Runs) -> None:
    """B05: targets 30, 31 and 32 get eight groups each."""
    async with runs.open(capacity=16, groups_per_step=8) as store:
        await store.publish_trainer_version(30)
        restored = await ready_for_step(store, 30, 8, weight=29)
        sampler = sampler_of(store, "in_order", 1)
        sampler.restore_dispatch_index(30)
        assert 31 == await admit(sampler, 30)
        assert restored == await chosen(sampler, 30, 8, 8)
        await store.buffer.release_training_claims(restored)
        await store.publish_trainer_version(31)
        assert 32 == await admit(sampler, 31)
        made = await ready_for_step(store, 31, 8, weight=30)
        assert made == await chosen(sampler, 31, 8, 8)
        await store.buffer.release_training_claims(made)
        await store.publish_trainer_version(32)
        made = await ready_for_step(store, 32, 8, weight=31)
        assert made == await chosen(sampler, 32, 8, 8)
        assert 24 == (await store.stats()).reserved_total


async def test_a_batch_that_is_complete_already_is_admitted_and_dispatches_no_prompt(
    runs: Runs,
) -> None:
    """B05, the variant without the exact cursor: never sixteen groups for step 30."""
    async with runs.open(capacity=16, groups_per_step=8) as store:
        await store.publish_trainer_version(30)
        await ready_for_step(store, 30, 8, weight=29)
        sampler = sampler_of(store, "in_order", 1)
        sampler.set_dispatch_index(30)
        dispatched: dict[int, int] = {}
        while not await blocks(sampler.wait_until_admissible, 30):
            async with store.mutation() as cut:
                step = sampler.commit_admission(cut)
                missing = 8 - await store.buffer.count_for_target_step(step)
                for _ in range(missing):
                    cut.reserve(30, target_step=step)
            dispatched[step] = missing
        assert {30: 0, 31: 8} == dispatched
        assert 8 == await store.buffer.count_for_target_step(30)
        assert 8 == len(await chosen(sampler, 30, 8, 8))


async def train_one_step(store: Any, trainer: Any, producer: Any, sampler: Any) -> dict[str, int]:
    """Dispatch, generate, train and count one step, and return each place's label of it."""
    version = store.trainer_version
    admitted = await admit(producer, version)
    await ready_for_step(store, admitted or 0, 2, weight=version)
    meta, _ = await select(sampler, version, 2, 2)
    assert meta is not None
    drained = await store.drain_step_reward_metrics(version)
    assert 2.0 == drained["generated_prompt_groups"]
    committed = await trainer.commit_step(version)
    await producer.refresh()
    return {
        "admitted": admitted or 0,
        "selected": meta.extra_info["target_steps"][0],
        "drained": version,
        "committed": committed.step,
        "next": store.trainer_version - 1,
    }


async def test_a_resumed_run_labels_its_steps_as_an_uninterrupted_one(runs: Runs) -> None:
    """B06: 0, 1, 2 before the restart and 100, 101 after a checkpoint of 100 steps."""
    labels: dict[str, list[set[int]]] = {}
    for name, first, steps in (("uninterrupted", 0, 3), ("resumed", 100, 2)):
        async with (
            runs.open(run=f"{runs.name}-{name}", groups_per_step=2) as store,
            store.trainer(owner="job") as trainer,
        ):
            await store.publish_trainer_version(first)
            producer, sampler = (sampler_of(place, "in_order", 0) for place in (store, trainer))
            producer.restore_dispatch_index(first - 1)
            await producer.flush()
            labels[name] = [
                set((await train_one_step(store, trainer, producer, sampler)).values())
                for _ in range(steps)
            ]
    assert {"uninterrupted": [{0}, {1}, {2}], "resumed": [{100}, {101}]} == labels


async def test_a_warmup_window_banks_batches_that_shrinking_neither_drops_nor_repeats(
    runs: Runs,
) -> None:
    """B07."""
    async with runs.open(capacity=10, groups_per_step=2) as store:
        sampler = sampler_of(store, "in_order", 1, warmup_lookahead_versions=4)
        assert (10, 4) == (sampler.required_buffer_capacity(2), sampler.peak_lookahead_versions)
        sampler.set_gate_window(4)
        assert [0, 1, 2, 3, 4] == await bank(store, sampler, 0)
        banked: list[list[int]] = []
        for version in (1, 2):
            await train(store, sampler, version - 1)
            banked.append(await bank(store, sampler, version))
        assert [[5], [6]] == banked
        await train(store, sampler, 2)
        sampler.set_gate_window(1)
        after: dict[int, list[int]] = {}
        for version in range(3, 8):
            assert 0 == await sampler.evict(current_train_weight=version)
            after[version] = await bank(store, sampler, version)
            await train(store, sampler, version)
        assert {3: [], 4: [], 5: [], 6: [7], 7: [8]} == after
        stats = await store.stats()
        assert (0, 16, 1) == (stats.evicted, stats.trained, sampler.gate_window)


async def bank(store: Any, sampler: Any, version: int) -> list[int]:
    """Dispatch batches of two until the gate is closed; return their steps."""
    banked: list[int] = []
    while not await blocks(sampler.wait_until_admissible, version):
        banked.append(await admit(sampler, version) or 0)
        await ready_for_step(store, banked[-1], 2, weight=version)
    return banked


async def train(store: Any, sampler: Any, step: int) -> None:
    """Train a step's two groups and raise the trainer version."""
    group_ids = await chosen(sampler, step, 2, 2)
    assert 2 == len(group_ids)
    await store.buffer.release_training_claims(group_ids)
    await store.publish_trainer_version(step + 1)


async def test_without_a_warmup_window_the_peak_is_the_steady_window(runs: Runs) -> None:
    """B07."""
    async with runs.open() as store:
        assert 1 == sampler_of(store, "in_order", 1).peak_lookahead_versions


ROLLOUTS = 210


async def test_validation_in_a_partition_of_its_own_touches_nothing_of_training(
    runs: Runs,
) -> None:
    """B09: 210 validation rollouts at version 4, beside two training groups of step 4."""
    async with (
        runs.open(groups_per_step=2) as store,
        runs.open(partition="val", group_size=ROLLOUTS // 7) as validation,
    ):
        await store.publish_trainer_version(4)
        sampler = sampler_of(store, "in_order", 1)
        sampler.restore_dispatch_index(5)
        await sampler.flush()
        training = await ready_for_step(store, 4, 2, weight=4)
        before = await store.stats()
        for at in range(7):
            await validation.buffer.reserve(4, group_id=f"val-{at}")
            await validation.buffer.commit(
                f"val-{at}",
                rows(at, size=ROLLOUTS // 7),
                start_weight_version=4,
                end_weight_version=4,
            )
        assert (before, 5) == (await store.stats(), sampler.dispatch_index)
        assert ROLLOUTS == len(await validation.samples.list_sample_ids())
        assert {4} == {slot.start_weight_version for slot in await validation.buffer.slots()}
        assert await blocks(sampler.admit, 4)
        assert training == await chosen(sampler, 4, 2, 16)
        metrics = await store.drain_step_reward_metrics(4)
        assert 2.0 == metrics["generated_prompt_groups"]


@pytest.mark.parametrize("cleared", ["val", "training"])
async def test_clearing_one_partition_removes_no_key_of_the_other(runs: Runs, cleared: str) -> None:
    """B09."""
    async with runs.open() as store, runs.open(partition="val") as validation:
        places = {"training": store, "val": validation}
        for place in places.values():
            await ready_for_step(place, 4, 2)
        kept = {name: await place.samples.list_sample_ids() for name, place in places.items()}
        assert 2 == await places[cleared].samples.clear_samples(kept.pop(cleared))
        assert 0 == await places[cleared].buffer.size()
        [(name, sample_ids)] = kept.items()
        assert 4 == len(await places[name].samples.get_samples(sample_ids))
        assert 2 == len(await runs.payload_keys())
