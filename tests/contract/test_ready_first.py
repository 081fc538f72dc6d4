"""``ready_first``: whatever is ready first, of any past version; nothing is ever thrown away."""

from __future__ import annotations

import pytest

from redis_replay import ReadyFirstSampler, ReadyFirstSamplerConfig, create_sampler
from tests.contract.keyspace import attached, nothing_changed
from tests.contract.policies import admit, chosen, ready, ready_named, sampler_of, select, states
from tests.harness import Runs

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("window", [0, 1, 3])
async def test_stragglers_of_any_age_stay_selectable_in_buffer_order(
    runs: Runs, window: int
) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 9, "b": 0, "c": 8, "d": 3, "e": 9})
        assert list("abcde") == await chosen(sampler_of(store, "ready_first", window), 9)


async def test_a_group_from_the_future_is_passed_over_until_its_version_comes(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 10, "b": 9, "c": 11, "d": 8})
        sampler = sampler_of(store, "ready_first", 1)
        assert ["b", "d"] == await chosen(sampler, 9)
        assert ["a"] == await chosen(sampler, 10)
        assert ["c"] == await chosen(sampler, 11)


async def test_any_number_of_groups_from_the_future_hide_nobody_behind_them(runs: Runs) -> None:
    async with runs.open() as store:
        await ready(store, *[5] * 7)
        ids = await ready(store, 1, 1, 1)
        sampler = sampler_of(store, "ready_first", 1)
        assert ids[:2] == await chosen(sampler, 4, 2, 2)
        assert ids[2:] == await chosen(sampler, 4, 1, 2)
        assert [] == await chosen(sampler, 4, 1, 2)


async def test_the_cap_takes_the_first_and_leaves_the_rest(runs: Runs) -> None:
    async with runs.open() as store:
        ids = await ready(store, 3, 0, 2, 1, 0)
        sampler = sampler_of(store, "ready_first", 1)
        assert ids[:3] == await chosen(sampler, 3, 1, 3)
        assert ids[3:] == await chosen(sampler, 3, 1, 3)


async def test_below_the_minimum_nothing_changes(runs: Runs) -> None:
    async with runs.open() as store:
        await ready(store, 0, 0, 9)
        sampler = sampler_of(store, "ready_first", 1)
        await sampler.flush()
        await attached(store)
        async with nothing_changed(runs):
            assert (None, 0) == await select(sampler, 1, 3, 3)
        assert 2 == len(await chosen(sampler, 1, 2, 3))


async def test_reserved_and_claimed_groups_are_not_eligible(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"claimed": 0, "ready": 0})
        await store.buffer.claim_for_training(["claimed"])
        await store.buffer.reserve(0, group_id="reserved")
        sampler = sampler_of(store, "ready_first", 1)
        assert ["ready"] == await chosen(sampler, 0)
        assert [] == await chosen(sampler, 0)


async def test_eviction_drops_nothing_however_old(runs: Runs) -> None:
    async with runs.open() as store:
        ids = await ready(store, 0, 1, 2)
        sampler = sampler_of(store, "ready_first", 0)
        await sampler.flush()
        async with nothing_changed(runs):
            assert 0 == await sampler.evict(current_train_weight=1_000)
        assert ids == list(await states(store))


async def test_retuning_the_gate_does_not_touch_selection_or_capacity(runs: Runs) -> None:
    async with runs.open(groups_per_step=4) as store:
        ids = await ready(store, 0, 4, 9)
        sampler = sampler_of(store, "ready_first", 2)
        sampler.set_gate_window(0)
        assert ids == await chosen(sampler, 9)
        assert (12, False) == (sampler.required_buffer_capacity(4), sampler.is_on_policy)


async def test_admission_is_gated_and_stamps_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "ready_first", 1)
        assert (None, None) == (await admit(sampler, 0), await admit(sampler, 0))
        assert (1, 1) == (sampler.dispatch_index, (await store.stats()).dispatch_index)
        async with store.mutation() as cut:
            assert None is sampler.commit_admission(cut)
            await store.publish_trainer_version(1)
        assert 2 == (await store.stats()).dispatch_index


@pytest.mark.parametrize(("window", "expected"), [(0, True), (1, False), (7, False)])
def test_it_never_gives_a_rollout_up_and_is_on_policy_at_window_zero(
    window: int, expected: bool
) -> None:
    config = ReadyFirstSamplerConfig(max_staleness_versions=window)
    sampler = create_sampler(object(), config)
    assert isinstance(sampler, ReadyFirstSampler)
    assert expected is sampler.is_on_policy
    assert not sampler.should_abort_inflight(start_weight_version=0, current_train_weight=99)


@pytest.mark.parametrize(("window", "places"), [(0, 8), (1, 16), (3, 32)])
def test_it_needs_one_live_batch_and_one_of_each_lookahead_version(
    window: int, places: int
) -> None:
    config = ReadyFirstSamplerConfig(max_staleness_versions=window)
    assert places == create_sampler(object(), config).required_buffer_capacity(8)
