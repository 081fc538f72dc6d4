"""``in_order``: the batch of the current step exactly, whatever its weights."""

from __future__ import annotations

import pytest

from redis_replay import InOrderSampler, InOrderSamplerConfig, create_sampler
from redis_replay.errors import CutExpired
from tests.contract.keyspace import attached, nothing_changed
from tests.contract.policies import (
    admit,
    admit_all,
    chosen,
    ready_for_step,
    sampler_of,
    select,
    states,
)
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


async def test_only_groups_of_the_current_step_are_selected_in_buffer_order(runs: Runs) -> None:
    async with runs.open() as store:
        for group_id, step in {"a": 4, "b": 3, "c": 5, "d": 4, "e": 4}.items():
            await commit_ready(store, 3, group_id=group_id, target_step=step)
        sampler = sampler_of(store, "in_order", 2)
        assert ["a", "d"] == await chosen(sampler, 4, 2, 2)
        assert ["e"] == await chosen(sampler, 4, 1, 2)
        assert [] == await chosen(sampler, 4)
        assert ["c"] == await chosen(sampler, 5)


async def test_the_weight_of_a_group_plays_no_part(runs: Runs) -> None:
    async with runs.open() as store:
        for group_id, weight in {"future": 9, "ancient": 0, "current": 4}.items():
            await commit_ready(store, weight, group_id=group_id, target_step=4)
        assert ["future", "ancient", "current"] == await chosen(sampler_of(store, "in_order", 1), 4)


async def test_a_group_without_a_step_is_never_selected(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="unstamped")
        sampler = sampler_of(store, "in_order", 1)
        for weight in range(3):
            assert [] == await chosen(sampler, weight)


async def test_reserved_and_claimed_groups_of_the_step_are_not_eligible(runs: Runs) -> None:
    async with runs.open() as store:
        [claimed, _] = await ready_for_step(store, 1, 2)
        await store.buffer.claim_for_training([claimed])
        await store.buffer.reserve(0, target_step=1)
        sampler = sampler_of(store, "in_order", 1)
        await sampler.flush()
        await attached(store)
        async with nothing_changed(runs):
            assert (None, 0) == await select(sampler, 1, 2, 4)
        assert 1 == len(await chosen(sampler, 1))
        assert 2 == sum(state == "claimed" for state in (await states(store)).values())


async def test_eviction_drops_ready_groups_of_passed_steps_whatever_their_weight(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        for group_id, weight, step in (
            ("passed", 9, 3),
            ("also passed", 0, 0),
            ("current", 0, 4),
            ("ahead", 0, 5),
        ):
            await commit_ready(store, weight, group_id=group_id, target_step=step)
        sampler = sampler_of(store, "in_order", 1)
        assert 2 == await sampler.evict(current_train_weight=4)
        assert ["current", "ahead"] == list(await states(store))
        assert 2 == len(await runs.payload_keys())
        assert 0 == await sampler.evict(current_train_weight=4)


async def test_eviction_leaves_unstamped_reserved_and_claimed_groups_alone(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="unstamped")
        await commit_ready(store, 0, group_id="claimed", target_step=0)
        await store.buffer.claim_for_training(["claimed"])
        await store.buffer.reserve(0, group_id="reserved", target_step=0)
        sampler = sampler_of(store, "in_order", 0)
        await sampler.flush()
        async with nothing_changed(runs):
            assert 0 == await sampler.evict(current_train_weight=9)
        assert ["unstamped", "claimed", "reserved"] == list(await states(store))


async def test_the_stamp_of_an_admission_is_its_dispatch_index(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 2)
        assert [0, 1, 2] == [await admit(sampler, 0) for _ in range(3)]
        assert 2 == (await store.stats()).dispatch_index


async def test_a_cut_stamps_too_and_an_expired_one_records_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 2)
        await sampler.flush()
        async with store.mutation() as cut:
            assert 0 == sampler.commit_admission(cut)
        assert 0 == (await store.stats()).dispatch_index
        async with nothing_changed(runs):
            with pytest.raises(CutExpired, match="no longer active"):
                sampler.commit_admission(cut)
            with pytest.raises(RuntimeError):
                sampler.commit_admission(cut)


async def test_it_is_on_policy_while_its_live_window_is_zero(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        sampler, elsewhere = sampler_of(store, "in_order", 0), sampler_of(other, "in_order", 0)
        assert sampler.is_on_policy
        sampler.set_gate_window(1)
        assert (1, False) == (sampler.gate_window, sampler.is_on_policy)
        await sampler.flush()
        await elsewhere.flush()
        assert (1, False) == (elsewhere.gate_window, elsewhere.is_on_policy)
        sampler.set_gate_window(0)
        await sampler.flush()
        await elsewhere.refresh()
        assert sampler.is_on_policy
        assert elsewhere.is_on_policy


async def test_it_starts_at_its_steady_window_not_at_the_warmup_one(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 1, warmup_lookahead_versions=3)
        assert [0, 1] == await admit_all(sampler, 0)
        assert 1 == (await store.stats()).gate_window
        sampler.set_gate_window(3)
        assert [2, 3] == await admit_all(sampler, 0)


@pytest.mark.parametrize(
    ("lookahead", "warmup", "peak"), [(0, None, 0), (2, None, 2), (1, 4, 4), (2, 2, 2)]
)
def test_it_is_sized_for_the_widest_window_of_the_whole_run(
    lookahead: int, warmup: int | None, peak: int
) -> None:
    config = InOrderSamplerConfig(
        max_lookahead_versions=lookahead, warmup_lookahead_versions=warmup
    )
    sampler = create_sampler(object(), config)
    assert isinstance(sampler, InOrderSampler)
    assert peak == sampler.peak_lookahead_versions
    assert 8 * (peak + 1) == sampler.required_buffer_capacity(8)
    sampler.set_gate_window(0)
    assert 8 * (peak + 1) == sampler.required_buffer_capacity(8)
    assert not sampler.should_abort_inflight(start_weight_version=0, current_train_weight=99)


def test_a_warmup_window_below_the_steady_one_is_refused_by_the_class_too() -> None:
    with pytest.raises(ValueError, match=r"warmup_lookahead_versions \(1\)"):
        InOrderSampler(object(), max_lookahead_versions=2, warmup_lookahead_versions=1)  # type: ignore[arg-type]
