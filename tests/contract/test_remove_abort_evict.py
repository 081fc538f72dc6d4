"""The ways a group ends without being trained, and what each of them may not touch."""

from __future__ import annotations

import pytest

from redis_replay import (
    Eviction,
    ReadyFirstSamplerConfig,
    WindowedSamplerConfig,
    create_sampler,
)
from redis_replay.errors import (
    StaleAttempt,
    StoreClosed,
    UnknownGroup,
    WrongState,
)
from tests.contract.keyspace import attached, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_an_aborted_rollout_gives_its_place_back_once(runs: Runs) -> None:
    async with runs.open(capacity=1) as store:
        made = await store.buffer.reserve(0, target_step=3, prompt_ref=b"p")
        await store.buffer.abort(made.group_id, reason="too slow")
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup) as refused:
                await store.buffer.abort(made.group_id, fence=made.fence)
        assert made.group_id == refused.value.group_id
        stats = await store.stats()
        assert (0, 1, {"aborted:too slow": 1}) == (stats.occupancy, stats.aborted, stats.ends)
        assert 0 == await store.buffer.count_for_target_step(3)
        await store.buffer.reserve(0)


@pytest.mark.parametrize("state", ["ready", "claimed"])
async def test_finished_work_is_not_aborted(runs: Runs, state: str) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(0, group_id="g")
        await store.buffer.commit("g", rows(), start_weight_version=0, end_weight_version=0)
        if state == "claimed":
            await store.buffer.claim_for_training(["g"])
        async with nothing_changed(runs):
            for fence in (None, made.fence):
                with pytest.raises(WrongState) as refused:
                    await store.buffer.abort("g", fence=fence)
                assert ("g", state) == (refused.value.group_id, refused.value.state)


async def test_an_abort_reaches_only_the_attempt_it_names(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        made = await store.buffer.reserve(0, group_id="g")
        await attached(other)
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt):
                await other.buffer.abort("g")
            with pytest.raises(StaleAttempt, match="attempt 1"):
                await other.buffer.abort("g", fence=made.fence + 1)
        await other.buffer.abort("g", fence=made.fence)
        assert 0 == await store.buffer.size()


async def test_a_redispatched_group_survives_the_abort_of_its_lost_attempt(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        async with store.rollout(owner="host") as host:
            lost = await host.buffer.reserve(0, group_id="g")
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt):
                await rollout.buffer.abort("g", fence=lost.fence)
        [ticket] = await rollout.take_tickets(max_tickets=1, weight_version=0)
        await attached(store)
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt):
                await store.buffer.abort("g", fence=lost.fence)
        await rollout.buffer.abort("g", fence=ticket.fence)


async def test_remove_takes_reserved_and_ready_groups_and_their_payload(runs: Runs) -> None:
    async with runs.open() as store:
        reserved = (await store.buffer.reserve(0)).group_id
        ready = await commit_ready(store, 0)
        kept = await commit_ready(store, 0)
        assert 2 == await store.buffer.remove([reserved, ready], reason="bad prompt")
        await store.buffer.remove_group(kept, reason="bad prompt")
        stats = await store.stats()
        assert (0, 3, {"removed:bad prompt": 3}) == (stats.occupancy, stats.removed, stats.ends)
        assert 0 == stats.payload_bytes
    assert [] == await runs.payload_keys()


@pytest.mark.parametrize("bad", ["ghost", "claimed"])
async def test_if_one_named_group_cannot_be_removed_none_is(runs: Runs, bad: str) -> None:
    async with runs.open() as store:
        good = await commit_ready(store, 0)
        await commit_ready(store, 0, group_id="claimed")
        await store.buffer.claim_for_training(["claimed"])
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup if bad == "ghost" else WrongState) as refused:
                await store.buffer.remove([good, bad])
        assert bad == refused.value.group_id


async def test_a_ticket_can_be_removed(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.rollout(owner="host") as host:
            await host.buffer.reserve(0, group_id="g", prompt_ref=b"p")
        await store.buffer.remove_group("g")
        async with store.rollout(owner="next") as rollout:
            assert [] == await rollout.take_tickets(max_tickets=4, weight_version=0)


async def test_an_eviction_drops_ready_groups_below_a_version_and_their_payload(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        ids = [await commit_ready(store, weight) for weight in (3, 1, 2)]
        await store.buffer.reserve(0, group_id="in flight")
        claimed = await commit_ready(store, 0)
        await store.buffer.claim_for_training([claimed])
        assert 2 == await store.buffer.evict(Eviction(below=3))
        left = {slot.group_id for slot in await store.buffer.slots()}
        assert {ids[0], "in flight", claimed} == left
        stats = await store.stats()
        assert (2, {"evicted:stale": 2}) == (stats.evicted, stats.ends)
        assert 2 == len(await runs.payload_keys())
        async with nothing_changed(runs):
            assert 0 == await store.buffer.evict(Eviction(below=3))
            assert 0 == await store.buffer.evict(Eviction(below=-4))


async def test_an_eviction_by_step_leaves_groups_without_a_step(runs: Runs) -> None:
    async with runs.open() as store:
        unstamped = await commit_ready(store, 0)
        ahead = await commit_ready(store, 0, target_step=5)
        await commit_ready(store, 9, target_step=4)
        assert 1 == await store.buffer.evict(Eviction(below=5, by_target_step=True))
        assert [unstamped, ahead] == [slot.group_id for slot in await store.buffer.slots()]


async def test_an_eviction_of_more_than_one_slice_returns_the_sum(runs: Runs) -> None:
    count = 300
    async with runs.open(capacity=count, group_size=1) as store:
        async with store.mutation() as cut:
            ids = [cut.reserve(0) for _ in range(count)]
        for group_id in ids:
            await store.buffer.commit(
                group_id, rows(size=1), start_weight_version=0, end_weight_version=0
            )
        assert count == await store.buffer.evict(Eviction(below=1))
        assert 0 == await store.buffer.size()
    assert [] == await runs.payload_keys()


async def test_a_rollout_that_outlived_its_window_is_told_to_stop_and_leaves_nothing(
    runs: Runs,
) -> None:
    async with runs.open(capacity=1) as store:
        sampler = create_sampler(store.buffer, WindowedSamplerConfig(max_staleness_versions=1))
        asked = [
            sampler.should_abort_inflight(start_weight_version=start, current_train_weight=version)
            for start, version in ((3, 4), (3, 5), (0, 1))
        ]
        assert [False, True, False] == asked
        await store.buffer.reserve(3, group_id="slow")
        await store.buffer.remove_group("slow")
        before = await store.stats()
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup):
                await store.buffer.commit(
                    "slow", rows(), start_weight_version=3, end_weight_version=5
                )
        assert (0, before.removed) == ((await store.stats()).occupancy, 1)
    assert [] == await runs.payload_keys()


async def test_ready_first_evicts_nothing_ever(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = create_sampler(store.buffer, ReadyFirstSamplerConfig(max_staleness_versions=1))
        await commit_ready(store, 0)
        assert 0 == await sampler.evict(current_train_weight=1000)
        assert (1, 0) == ((await store.stats()).ready, (await store.stats()).evicted)


async def test_the_verbs_of_a_closed_store_say_so(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
    for call in (
        store.buffer.abort("g"),
        store.buffer.remove(["g"]),
        store.buffer.evict(Eviction(below=1)),
        store.buffer.promote_ready_group(to_target_step=0),
    ):
        with pytest.raises(StoreClosed):
            await call
