"""The policy of a run: written at first use, compared by everybody, switched on request."""

from __future__ import annotations

import logging
from itertools import permutations
from typing import Any

import anyio
import pytest

from redis_replay import (
    ReadyFirstSamplerConfig,
    WindowedSampler,
    WindowedSamplerConfig,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import CapacityTooSmall, PolicyMismatch, StoreClosed
from tests.contract.keyspace import control_key, nothing_changed
from tests.contract.policies import (
    GATED,
    admit,
    admit_all,
    chosen,
    ready,
    ready_for_step,
    sampler_of,
    states,
)
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

POLICIES = ("windowed", *GATED)
every_policy = pytest.mark.parametrize("policy", POLICIES)


class Subclass(WindowedSampler):
    """A policy of its own, although it behaves as its base."""


async def stored(runs: Runs) -> tuple[str, str]:
    """Return the policy and the gate window as the run holds them."""
    meta = control_key(runs, Key.META)
    policy, window = await runs.client.hmget(meta, "policy", "gate_window")
    return (policy or b"").decode(), (window or b"").decode()


@every_policy
async def test_constructing_a_sampler_touches_nothing(runs: Runs, policy: str) -> None:
    async with runs.open(groups_per_step=2) as store:
        async with nothing_changed(runs):
            sampler = sampler_of(store, policy, 3)
            assert -1 == sampler.dispatch_index
        assert ("", "") == await stored(runs)


@pytest.mark.parametrize(
    ("policy", "window"), [("windowed", ""), *[(policy, "3") for policy in GATED]]
)
async def test_the_policy_and_its_gate_are_written_at_first_use(
    runs: Runs, policy: str, window: str
) -> None:
    async with runs.open() as store:
        assert [] == await chosen(sampler_of(store, policy, 3), 0)
        assert (policy, window) == await stored(runs)


@every_policy
async def test_binding_the_bound_policy_again_changes_nothing(runs: Runs, policy: str) -> None:
    async with runs.open() as store, runs.open() as other:
        sampler = sampler_of(store, policy, 2)
        await sampler.flush()
        async with nothing_changed(runs):
            await sampler.flush()
            await sampler_of(other, policy, 2).flush()


@pytest.mark.parametrize(("stored_policy", "policy"), list(permutations(POLICIES, 2)))
async def test_another_policy_is_refused_by_the_name_of_the_stored_one(
    runs: Runs, stored_policy: str, policy: str
) -> None:
    async with runs.open() as store, runs.open() as other:
        await sampler_of(store, stored_policy, 1).flush()
        group_ids = await ready(store, 0)
        intruder = sampler_of(other, policy, 1)
        async with nothing_changed(runs):
            with pytest.raises(PolicyMismatch, match=rf"policy '{stored_policy}'.*switch_policy"):
                await chosen(intruder, 0)
            with pytest.raises(PolicyMismatch):
                await intruder.admit(trainer_version_fn=lambda: 0)
            with pytest.raises(PolicyMismatch):
                await intruder.evict(current_train_weight=9)
        assert group_ids == list(await states(store))


async def test_a_subclass_is_a_policy_of_its_own(runs: Runs) -> None:
    async with runs.open() as store:
        custom: Any = create_sampler(
            store.buffer,
            {"name": "custom", "target": f"{__name__}:Subclass", "max_staleness_versions": 1},
        )
        await custom.flush()
        assert (f"{__name__}:Subclass", "") == await stored(runs)
        with pytest.raises(PolicyMismatch, match="Subclass"):
            await sampler_of(store, "windowed", 1).flush()


@pytest.mark.parametrize("before", ["windowed", "ready_first", "weight_fifo"])
@pytest.mark.parametrize("after", ["windowed", "ready_first", "weight_fifo"])
async def test_policies_that_go_by_weight_may_be_switched_with_groups_in_the_buffer(
    runs: Runs, before: str, after: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs.open() as store, runs.open(switch_policy=True) as switching:
        await sampler_of(store, before, 1).flush()
        group_ids = await ready(store, 0, 0)
        with caplog.at_level(logging.WARNING, logger="redis_replay"):
            assert group_ids == await chosen(sampler_of(switching, after, 1), 0)
        assert after == (await stored(runs))[0]
        reported = [r for r in caplog.records if "sampler changed" in r.getMessage()]
        assert (before != after) == bool(reported)


@pytest.mark.parametrize(
    ("before", "after"),
    [(p, "in_order") for p in POLICIES[:3]] + [("in_order", p) for p in POLICIES[:3]],
)
@pytest.mark.parametrize("state", ["ready", "reserved", "claimed"])
async def test_a_switch_to_or_from_in_order_needs_an_empty_buffer_and_says_so(
    runs: Runs, before: str, after: str, state: str
) -> None:
    async with runs.open() as store, runs.open(switch_policy=True) as switching:
        await sampler_of(store, before, 1).flush()
        if state == "reserved":
            await store.buffer.reserve(0, group_id="group")
        else:
            [group_id] = await ready_for_step(store, 0, 1)
            if state == "claimed":
                await store.buffer.claim_for_training([group_id])
        async with nothing_changed(runs):
            with pytest.raises(PolicyMismatch, match=rf"'{before}' and holds 1 groups"):
                await sampler_of(switching, after, 1).flush()
        assert before == (await stored(runs))[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [(p, "in_order") for p in POLICIES[:3]] + [("in_order", p) for p in POLICIES[:3]],
)
async def test_an_empty_run_may_be_switched_to_and_from_in_order(
    runs: Runs, before: str, after: str
) -> None:
    async with runs.open(switch_policy=True) as store:
        await sampler_of(store, before, 1).flush()
        await store.buffer.remove(await ready(store, 0))
        await sampler_of(store, after, 2).flush()
        assert (after, "" if after == "windowed" else "2") == await stored(runs)


@pytest.mark.parametrize(
    ("cursor", "version", "expected"), [(-1, 0, -1), (-1, 7, 6), (3, 7, 6), (9, 7, 9), (6, 7, 6)]
)
async def test_a_switch_to_a_gated_policy_begins_at_the_trainers_step(
    runs: Runs, cursor: int, version: int, expected: int
) -> None:
    """Else an ungated run of hundreds of steps would open the gate for all of them at once."""
    async with runs.open(switch_policy=True) as store:
        windowed = sampler_of(store, "windowed", 1)
        windowed.restore_dispatch_index(cursor)
        await windowed.flush()
        await store.publish_trainer_version(version)
        gated = sampler_of(store, "ready_first", 1)
        await gated.flush()
        assert expected == (await store.stats()).dispatch_index
        assert list(range(expected + 1, version + 2)) == await admit_all(gated, 0)


async def test_a_switch_to_an_ungated_policy_leaves_the_cursor_and_takes_the_gate_away(
    runs: Runs,
) -> None:
    async with runs.open(switch_policy=True) as store:
        gated = sampler_of(store, "weight_fifo", 1)
        await admit(gated, 0)
        await store.publish_trainer_version(5)
        await sampler_of(store, "windowed", 1).flush()
        stats = await store.stats()
        assert (0, None) == (stats.dispatch_index, stats.gate_window)


async def test_binding_a_fresh_run_to_a_gated_policy_leaves_its_cursor(runs: Runs) -> None:
    async with runs.open() as store:
        await store.publish_trainer_version(5)
        await sampler_of(store, "in_order", 0).flush()
        assert -1 == (await store.stats()).dispatch_index


@every_policy
async def test_other_windows_of_the_same_policy_are_accepted_reported_and_in_force(
    runs: Runs, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs.open() as store, runs.open() as other:
        await sampler_of(store, policy, 1).flush()
        sampler = sampler_of(other, policy, 3)
        with caplog.at_level(logging.WARNING, logger="redis_replay"):
            await sampler.flush()
        [message] = [m for m in map(_text, caplog.records) if "sampler changed" in m]
        assert f'from {policy} {{"max_' in message
        assert ": 1" in message
        assert ": 3" in message
        assert (policy, "" if policy == "windowed" else "3") == await stored(runs)
        assert -1 == (await store.stats()).dispatch_index


def _text(found: logging.LogRecord) -> str:
    return found.getMessage()


async def test_a_joining_host_of_the_same_windows_never_shrinks_a_warmup_window(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as joining:
        sampler = sampler_of(store, "in_order", 1, warmup_lookahead_versions=4)
        sampler.set_gate_window(4)
        await sampler.flush()
        host = sampler_of(joining, "in_order", 1, warmup_lookahead_versions=4)
        assert 1 == host.gate_window
        await host.flush()
        assert (4, 4) == (host.gate_window, (await store.stats()).gate_window)
        assert [0, 1, 2, 3, 4] == await admit_all(host, 0)


@pytest.mark.parametrize(
    ("policy", "capacity", "required"),
    [("ready_first", 7, 8), ("weight_fifo", 7, 8), ("in_order", 7, 8), ("in_order", 4, 8)],
)
async def test_a_run_too_small_for_its_sampler_is_refused_with_both_numbers(
    runs: Runs, policy: str, capacity: int, required: int
) -> None:
    async with runs.open(capacity=capacity, groups_per_step=4) as store:
        sampler = sampler_of(store, policy, 1)
        for call in (
            lambda: chosen(sampler, 0),
            lambda: admit(sampler, 0),
            lambda: sampler.evict(current_train_weight=0),
        ):
            async with nothing_changed(runs):
                with pytest.raises(
                    CapacityTooSmall, match=rf"capacity of {capacity} .*needs {required}"
                ) as refused:
                    await call()
            assert (capacity, required) == (refused.value.capacity, refused.value.required)
        assert ("", "") == await stored(runs)


async def test_a_run_of_exactly_the_required_capacity_is_accepted(runs: Runs) -> None:
    async with runs.open(capacity=8, groups_per_step=4) as store:
        assert 0 == await admit(sampler_of(store, "in_order", 1), 0)


async def test_capacity_covers_the_warmup_window_from_the_start(runs: Runs) -> None:
    async with runs.open(capacity=9, groups_per_step=2) as store:
        with pytest.raises(CapacityTooSmall, match=r"capacity of 9 .*needs 10"):
            await admit(sampler_of(store, "in_order", 1, warmup_lookahead_versions=4), 0)
        assert 0 == await admit(sampler_of(store, "in_order", 1), 0)


async def test_wider_windows_than_the_capacity_allows_are_refused_later_too(runs: Runs) -> None:
    async with runs.open(capacity=8, groups_per_step=4) as store:
        await sampler_of(store, "in_order", 1).flush()
        async with nothing_changed(runs):
            with pytest.raises(CapacityTooSmall, match=r"capacity of 8 .*needs 12"):
                await sampler_of(store, "in_order", 2).flush()
        assert ("in_order", "1") == await stored(runs)


async def test_windowed_needs_its_streaming_batch_to_fit(runs: Runs) -> None:
    async with runs.open(capacity=4, groups_per_step=2) as store:
        config = {"name": "windowed", "max_staleness_versions": 9}
        small = create_sampler(store.buffer, config, min_groups_for_streaming_train=5)
        with pytest.raises(CapacityTooSmall, match=r"capacity of 4 .*needs 5"):
            await chosen(small, 0)
        fitting = create_sampler(store.buffer, config, min_groups_for_streaming_train=4)
        assert [] == await chosen(fitting, 0)


async def test_a_run_without_groups_per_step_states_no_requirement(runs: Runs) -> None:
    async with runs.open(capacity=1) as store:
        assert 0 == await admit(sampler_of(store, "in_order", 5), 0)


async def test_a_sampler_of_a_closed_store_says_so(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 1)
    with pytest.raises(StoreClosed):
        await sampler.flush()


async def test_a_host_learns_that_another_has_switched_the_policy(runs: Runs) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="job") as trainer,
        runs.open(switch_policy=True) as other,
    ):
        sampler = create_sampler(trainer.buffer, WindowedSamplerConfig())
        await sampler.flush()
        ids = [await commit_ready(store, 0) for _ in range(3)]
        await create_sampler(other.buffer, ReadyFirstSamplerConfig()).flush()
        weights = {"current_train_weight": 9, "min_prompt_groups": 1, "max_prompt_groups": 2}

        async def open_a_cut() -> None:
            async with trainer.mutation():
                pass

        for verb in (
            lambda: sampler.select(**weights),
            lambda: sampler.evict(current_train_weight=9),
            lambda: trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=2),
            lambda: trainer.buffer.claim_for_training(ids),
            lambda: trainer.buffer.selecting_for_good().claim_for_training(ids),
            lambda: trainer.buffer.admission.wait_until_open(lambda: 0, poll_seconds=0.01),
            open_a_cut,
        ):
            with pytest.raises(PolicyMismatch, match="'ready_first'"), anyio.fail_after(5):
                await verb()
        assert 3 == (await store.stats()).ready
        await create_sampler(other.buffer, WindowedSamplerConfig()).flush()
        assert 3 == await sampler.evict(current_train_weight=9)


async def test_a_waiting_trainer_learns_that_another_host_has_switched_the_policy(
    runs: Runs,
) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="job") as trainer,
        runs.open(switch_policy=True) as other,
        anyio.create_task_group() as group,
    ):
        sampler = create_sampler(trainer.buffer, WindowedSamplerConfig())
        await sampler.flush()
        switch = create_sampler(other.buffer, ReadyFirstSamplerConfig()).flush
        group.start_soon(switch)
        with pytest.raises(PolicyMismatch, match="'ready_first'"), anyio.fail_after(5):
            await trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=2)
