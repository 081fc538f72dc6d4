"""``weight_fifo``: the oldest in-window version's groups, and no others before them."""

from __future__ import annotations

import pytest

from redis_replay import WeightFifoSampler, WeightFifoSamplerConfig, create_sampler
from tests.contract.keyspace import attached, nothing_changed
from tests.contract.policies import (
    admit,
    chosen,
    finish,
    ready,
    ready_named,
    sampler_of,
    select,
    states,
)
from tests.harness import Runs

pytestmark = pytest.mark.anyio


async def test_one_version_is_taken_at_a_time_oldest_first(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 3, "b": 2, "c": 3, "d": 1, "e": 2})
        sampler = sampler_of(store, "weight_fifo", 2)
        assert ["d"] == await chosen(sampler, 3)
        assert ["b", "e"] == await chosen(sampler, 3)
        assert ["a", "c"] == await chosen(sampler, 3)
        assert [] == await chosen(sampler, 3)


async def test_a_version_that_is_too_small_for_the_minimum_is_waited_for(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 1, "b": 2, "c": 2})
        sampler = sampler_of(store, "weight_fifo", 2)
        await sampler.flush()
        await attached(store)
        async with nothing_changed(runs):
            assert (None, 0) == await select(sampler, 2, 2, 2)
        await ready_named(store, {"d": 1})
        assert ["a", "d"] == await chosen(sampler, 2, 2, 2)
        assert ["b", "c"] == await chosen(sampler, 2, 2, 2)


async def test_a_reserved_group_of_an_older_version_holds_the_newer_ones_back(runs: Runs) -> None:
    async with runs.open() as store:
        slot = await store.buffer.reserve(1, group_id="late")
        await ready_named(store, {"a": 2, "b": 2})
        sampler = sampler_of(store, "weight_fifo", 1)
        assert [] == await chosen(sampler, 2)
        await finish(store, slot.group_id, 1)
        assert ["late"] == await chosen(sampler, 2)
        assert ["a", "b"] == await chosen(sampler, 2)


async def test_an_aborted_reservation_holds_nobody_back_any_more(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(1, group_id="late")
        await ready_named(store, {"a": 2})
        sampler = sampler_of(store, "weight_fifo", 1)
        assert [] == await chosen(sampler, 2)
        await store.buffer.abort("late")
        assert ["a"] == await chosen(sampler, 2)


async def test_a_reserved_group_of_the_same_version_does_not_hold_ready_ones_back(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(2, group_id="late")
        await ready_named(store, {"a": 2, "b": 2})
        assert ["a", "b"] == await chosen(sampler_of(store, "weight_fifo", 1), 2)


async def test_a_reserved_group_below_the_window_or_from_the_future_counts_for_nothing(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(1, group_id="stale")
        await store.buffer.reserve(5, group_id="future")
        await ready_named(store, {"a": 3, "b": 4})
        sampler = sampler_of(store, "weight_fifo", 2)
        assert ["a"] == await chosen(sampler, 4)
        assert ["b"] == await chosen(sampler, 4)


async def test_a_reserved_group_at_the_edge_of_the_window_counts(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(2, group_id="edge")
        await ready_named(store, {"a": 3})
        sampler = sampler_of(store, "weight_fifo", 2)
        assert [] == await chosen(sampler, 4)
        assert ["a"] == await chosen(sampler, 5)


async def test_a_claimed_group_of_an_older_version_holds_nobody_back(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"old": 1, "new": 2})
        sampler = sampler_of(store, "weight_fifo", 1)
        assert ["old"] == await chosen(sampler, 2)
        assert {"old": "claimed", "new": "ready"} == await states(store)
        assert ["new"] == await chosen(sampler, 2)


async def test_a_requeued_group_is_the_oldest_again(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"new": 2, "old": 1})
        sampler = sampler_of(store, "weight_fifo", 1)
        assert ["old"] == await chosen(sampler, 2)
        await store.buffer.requeue(["old"])
        assert ["old"] == await chosen(sampler, 2)


async def test_a_group_from_the_future_waits_and_an_older_than_the_window_never_comes(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await ready_named(store, {"stale": 2, "future": 5})
        sampler = sampler_of(store, "weight_fifo", 1)
        assert [] == await chosen(sampler, 4)
        assert 1 == await sampler.evict(current_train_weight=4)
        assert {"future": "ready"} == await states(store)
        assert ["future"] == await chosen(sampler, 5)


async def test_eviction_goes_by_the_configured_window_not_by_the_gates(runs: Runs) -> None:
    async with runs.open(groups_per_step=4) as store:
        ids = await ready(store, 1, 2, 3)
        sampler = sampler_of(store, "weight_fifo", 2)
        sampler.set_gate_window(0)
        assert 1 == await sampler.evict(current_train_weight=4)
        assert ids[1:2] == await chosen(sampler, 4)
        assert (12, False) == (sampler.required_buffer_capacity(4), sampler.is_on_policy)
        sampler.set_gate_window(9)
        await ready_named(store, {"old": 0})
        assert ids[2:] == await chosen(sampler, 4)
        assert 1 == await sampler.evict(current_train_weight=4)


async def test_the_lower_edge_of_the_window_is_never_below_zero(runs: Runs) -> None:
    async with runs.open() as store:
        ids = await ready(store, 0, 0, 1)
        sampler = sampler_of(store, "weight_fifo", 3)
        assert 0 == await sampler.evict(current_train_weight=1)
        assert ids[:2] == await chosen(sampler, 1)


async def test_the_cap_cuts_a_version_in_buffer_order(runs: Runs) -> None:
    async with runs.open() as store:
        ids = await ready(store, 1, 1, 1, 2)
        sampler = sampler_of(store, "weight_fifo", 1)
        assert ids[:2] == await chosen(sampler, 2, 1, 2)
        assert ids[2:3] == await chosen(sampler, 2, 1, 2)
        assert ids[3:] == await chosen(sampler, 2, 1, 2)


async def test_admission_is_gated_and_stamps_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "weight_fifo", 0)
        assert None is await admit(sampler, 0)
        assert 0 == (await store.stats()).dispatch_index


@pytest.mark.parametrize(("window", "expected"), [(0, True), (1, False)])
def test_it_never_gives_a_rollout_up_and_is_on_policy_at_window_zero(
    window: int, expected: bool
) -> None:
    config = WeightFifoSamplerConfig(max_staleness_versions=window)
    sampler = create_sampler(object(), config)
    assert isinstance(sampler, WeightFifoSampler)
    assert expected is sampler.is_on_policy
    assert not sampler.should_abort_inflight(start_weight_version=0, current_train_weight=99)
    assert 8 * (window + 1) == sampler.required_buffer_capacity(8)
