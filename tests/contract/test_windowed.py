"""``windowed``: the window's edges, buffer order or freshest first, no gate."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import WindowedSampler, WindowedSamplerConfig, create_sampler
from redis_replay.errors import CutExpired
from tests.contract.keyspace import attached, nothing_changed
from tests.contract.policies import (
    chosen,
    finish,
    ready,
    ready_named,
    sampler_of,
    select,
    states,
)
from tests.harness import GROUP_SIZE, Runs, commit_ready

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("window", "eligible"), [(0, [4]), (1, [3, 4]), (2, [2, 3, 4]), (9, [0, 1, 2, 3, 4])]
)
@pytest.mark.parametrize("freshest", [False, True])
async def test_a_group_of_exactly_the_window_is_selected_and_an_older_one_is_not(
    runs: Runs, window: int, eligible: list[int], freshest: bool
) -> None:
    async with runs.open() as store:
        ids = await ready(store, 0, 1, 2, 3, 4, 5)
        sampler = sampler_of(store, "windowed", window, sample_freshest_first=freshest)
        order = eligible[::-1] if freshest else eligible
        assert [ids[weight] for weight in order] == await chosen(sampler, 4)


@pytest.mark.parametrize("freshest", [False, True])
async def test_a_group_from_the_future_waits_for_its_version(runs: Runs, freshest: bool) -> None:
    async with runs.open() as store:
        [group_id] = await ready(store, 6)
        sampler = sampler_of(store, "windowed", 2, sample_freshest_first=freshest)
        assert [] == await chosen(sampler, 5)
        assert 0 == await sampler.evict(current_train_weight=5)
        assert [group_id] == await chosen(sampler, 6)


async def test_buffer_order_is_kept_across_versions(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 3, "b": 1, "c": 2, "d": 1, "e": 3})
        assert list("abcde") == await chosen(sampler_of(store, "windowed", 2), 3)


async def test_the_cap_takes_the_first_of_the_whole_window_not_of_its_oldest_version(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 3, "b": 1, "c": 2, "d": 1})
        sampler = sampler_of(store, "windowed", 2)
        assert ["a", "b"] == await chosen(sampler, 3, 1, 2)
        assert ["c"] == await chosen(sampler, 3, 1, 1)
        assert ["d"] == await chosen(sampler, 3, 1, 1)


async def test_freshest_first_goes_by_lag_and_within_one_lag_by_buffer_order(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 2, "b": 3, "c": 1, "d": 3, "e": 2, "f": 3})
        sampler = sampler_of(store, "windowed", 2, sample_freshest_first=True)
        assert list("bd") == await chosen(sampler, 3, 1, 2)
        assert list("fae") == await chosen(sampler, 3, 1, 3)
        assert list("c") == await chosen(sampler, 3, 1, 3)


@pytest.mark.parametrize("freshest", [False, True])
async def test_reserved_and_claimed_groups_are_not_eligible(runs: Runs, freshest: bool) -> None:
    async with runs.open() as store:
        await ready_named(store, {"claimed": 1, "ready": 1})
        await store.buffer.claim_for_training(["claimed"])
        await store.buffer.reserve(1, group_id="reserved")
        sampler = sampler_of(store, "windowed", 1, sample_freshest_first=freshest)
        assert ["ready"] == await chosen(sampler, 1)
        assert [] == await chosen(sampler, 1)


async def test_selection_is_greedy_up_to_the_cap(runs: Runs) -> None:
    async with runs.open() as store:
        ids = await ready(store, *[0] * 5)
        sampler = sampler_of(store, "windowed", 0)
        assert ids[:3] == await chosen(sampler, 0, 1, 3)
        assert ids[3:] == await chosen(sampler, 0, 1, 3)


async def test_exactly_the_minimum_is_enough_and_one_less_changes_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        ids = await ready(store, 0, 0)
        sampler = sampler_of(store, "windowed", 0)
        await attached(store)
        await sampler.flush()
        async with nothing_changed(runs):
            assert (None, 0) == await select(sampler, 0, 3, 4)
        assert ids == await chosen(sampler, 0, 2, 4)


@pytest.mark.parametrize(("least", "most"), [(0, 1), (-1, 1), (2, 1), (1, 0), (1, 1025)])
async def test_impossible_bounds_are_refused_before_the_run_is_touched(
    runs: Runs, least: int, most: int
) -> None:
    async with runs.open() as store:
        await ready(store, 0)
        sampler = sampler_of(store, "windowed", 0)
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match="prompt_groups"):
                await select(sampler, 0, least, most)


async def test_the_meta_is_the_groups_concatenated_in_selection_order(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 1, "b": 2})
        sampler = sampler_of(store, "windowed", 1, sample_freshest_first=True)
        meta, groups = await select(sampler, 2, 1, 4)
        assert meta is not None
        assert 2 == groups
        assert [f"{group}_g{row}" for group in "ba" for row in range(GROUP_SIZE)] == meta.sample_ids
        assert [2, 2, 1, 1] == [tag["start_weight_version"] for tag in meta.tags or ()]
        assert [2, 1] == meta.extra_info["start_weight_versions"]
        assert [0, 1] == meta.extra_info["lags"]


@pytest.mark.parametrize(
    ("weight", "window", "dropped"),
    [(5, 2, [0, 1, 2]), (5, 0, [0, 1, 2, 3, 4]), (2, 3, []), (3, 3, []), (4, 3, [0])],
)
async def test_eviction_drops_what_is_older_than_the_window_and_nothing_else(
    runs: Runs, weight: int, window: int, dropped: list[int]
) -> None:
    async with runs.open() as store:
        ids = await ready(store, *range(7))
        sampler = sampler_of(store, "windowed", window)
        assert len(dropped) == await sampler.evict(current_train_weight=weight)
        kept = [group_id for at, group_id in enumerate(ids) if at not in dropped]
        assert kept == list(await states(store))
        assert 2 * len(kept) == len(await store.samples.list_sample_ids())
        assert len(kept) == len(await runs.payload_keys())
        assert 0 == await sampler.evict(current_train_weight=weight)


async def test_eviction_leaves_reserved_and_claimed_groups_alone(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"claimed": 0, "ready": 0})
        await store.buffer.claim_for_training(["claimed"])
        await store.buffer.reserve(0, group_id="reserved")
        sampler = sampler_of(store, "windowed", 1)
        assert 1 == await sampler.evict(current_train_weight=9)
        assert {"claimed": "claimed", "reserved": "reserved"} == await states(store)
        await finish(store, "reserved", 0)
        assert [] == await chosen(sampler, 9)
        assert 1 == await sampler.evict(current_train_weight=9)


@pytest.mark.parametrize(
    ("window", "start", "weight", "expected"),
    [(1, 3, 4, False), (1, 3, 5, True), (1, 0, 1, False), (0, 4, 5, True), (0, 5, 5, False)],
)
def test_a_rollout_is_given_up_once_its_start_has_left_the_window(
    window: int, start: int, weight: int, expected: bool
) -> None:
    sampler = create_sampler(object(), WindowedSamplerConfig(max_staleness_versions=window))
    assert expected is sampler.should_abort_inflight(
        start_weight_version=start, current_train_weight=weight
    )


@pytest.mark.parametrize(("window", "expected"), [(0, True), (1, False)])
def test_it_is_on_policy_when_its_window_is_zero(window: int, expected: bool) -> None:
    sampler = create_sampler(object(), WindowedSamplerConfig(max_staleness_versions=window))
    assert expected is sampler.is_on_policy


@pytest.mark.parametrize("least", [None, 3])
def test_it_needs_places_only_for_the_smallest_streaming_batch(least: int | None) -> None:
    config = WindowedSamplerConfig(max_staleness_versions=4)
    sampler = create_sampler(object(), config, min_groups_for_streaming_train=least)
    assert least == sampler.required_buffer_capacity(8)


async def test_admission_never_waits_never_stamps_and_moves_no_cursor(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "windowed", 0)
        with anyio.fail_after(10):
            for _ in range(5):
                assert None is await sampler.admit(trainer_version_fn=lambda: 0)
                await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
        stats = await store.stats()
        assert (-1, None) == (stats.dispatch_index, stats.gate_window)
        assert -1 == sampler.dispatch_index


async def test_a_cut_records_no_admission_of_it_but_an_expired_cut_is_refused(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "windowed", 0)
        await sampler.flush()
        await attached(store)
        async with nothing_changed(runs), store.mutation() as cut:
            assert None is sampler.commit_admission(cut)
        async with nothing_changed(runs):
            with pytest.raises(CutExpired, match="no longer active"):
                sampler.commit_admission(cut)


def test_it_has_no_gate_window_to_set() -> None:
    sampler: Any = create_sampler(object(), WindowedSamplerConfig())
    assert isinstance(sampler, WindowedSampler)
    assert not hasattr(sampler, "set_gate_window")


async def test_two_samplers_that_select_at_once_share_no_group(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        ids = await ready(store, *[0] * 20)
        taken: list[str] = []

        async def take(place: Any) -> None:
            sampler = sampler_of(place, "windowed", 0)
            while groups := await chosen(sampler, 0, 1, 3):
                taken.extend(groups)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, store)
            tasks.start_soon(take, other)
        assert sorted(ids) == sorted(taken)


async def test_a_requeued_group_is_selected_at_its_old_place(runs: Runs) -> None:
    async with runs.open() as store:
        await ready_named(store, {"a": 0, "b": 1, "c": 1})
        sampler = sampler_of(store, "windowed", 1)
        assert ["a", "b"] == await chosen(sampler, 1, 1, 2)
        await store.buffer.requeue(["b", "a"])
        await commit_ready(store, 1, group_id="d")
        assert list("abcd") == await chosen(sampler, 1)
