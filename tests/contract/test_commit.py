"""Committing a finished group: payload first, then visible wholly or not at all."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

from redis_replay import GroupState
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.scripts import Commit
from redis_replay.errors import PayloadMissing, StaleAttempt, StaleOwner, StoreClosed, UnknownGroup
from redis_replay.store import DEFAULT_PARTITION
from tests.contract.keyspace import attached, collected, nothing_changed, send
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def commit(store: Any, group_id: str, value: float = 0, **options: Any) -> None:
    """Commit the usual rows with version 0, or as the options say."""
    versions = {"start_weight_version": 0, "end_weight_version": 0}
    await store.buffer.commit(group_id, rows(value), **{**versions, **options})


async def test_a_committed_group_is_ready_with_its_versions_and_all_its_rows(runs: Runs) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(4, group_id="g", target_step=6)
        await commit(store, "g", 7, start_weight_version=4, end_weight_version=5)
        [slot] = await store.buffer.slots()
        assert (GroupState.READY, 4, 5, 6, made.fence, None) == (
            *(slot.state, slot.start_weight_version, slot.end_weight_version, slot.target_step),
            *(slot.payload_fence, slot.owner),
        )
        first, second = await store.samples.get_samples(["g_g0", "g_g1"])
        np.testing.assert_array_equal(np.full(3, 7, dtype=np.int32), first["input_ids"])
        assert (7.0, 8.0) == (first["reward"], second["reward"])
        [key] = await runs.payload_keys()
        assert await runs.client.strlen(key) == (await store.stats()).payload_bytes


async def test_tags_and_metrics_travel_with_the_group(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
        await commit(store, "g", tags=[{"k": 1}, {"k": 2}], rollout_metrics={"turns": 3.5})
        meta = await store.buffer.claim_for_training(["g"])
        assert meta.tags is not None
        assert [1, 2] == [tag["k"] for tag in meta.tags]
        assert [{"turns": 3.5}] == meta.extra_info["rollout_metrics"]
        assert [[0.0, 1.0]] == meta.extra_info["rewards"]


async def test_committing_twice_with_one_attempt_is_one_commit(runs: Runs) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(0, group_id="g")
        await commit(store, "g", 1)
        async with nothing_changed(runs):
            await commit(store, "g", 1)
            await commit(store, "g", 2, fence=made.fence)
        [row] = await store.samples.get_samples(["g_g0"])
        assert 1.0 == row["reward"]


async def test_a_repeated_commit_of_a_claimed_group_leaves_its_claim_alone(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
        await commit(store, "g", 1)
        await store.buffer.claim_for_training(["g"])
        async with nothing_changed(runs):
            await commit(store, "g", 2)
        assert ["g"] == await store.buffer.training_owned_group_ids()


async def test_commits_of_one_group_at_the_same_moment_are_one(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
        async with anyio.create_task_group() as tasks:
            for value in range(4):
                tasks.start_soon(commit, store, "g", value)
        first, second = await store.samples.get_samples(["g_g0", "g_g1"])
        assert first["reward"] + 1 == second["reward"]
        assert int(first["reward"]) == first["input_ids"][0]
        assert 1 == (await store.stats()).ready
    assert 1 == len(await runs.payload_keys())


async def test_a_group_that_was_never_reserved_cannot_be_committed(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup, match="'ghost'") as refused:
                await commit(store, "ghost")
        assert "ghost" == refused.value.group_id
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup):
                await commit(store, "ghost", fence=1)


@pytest.mark.parametrize("end", ["abort", "remove", "trained"])
async def test_a_commit_after_its_groups_end_is_refused_and_leaves_nothing(
    runs: Runs, end: str
) -> None:
    async with runs.open() as store:
        before = (await store.stats()).occupancy
        made = await store.buffer.reserve(0, group_id="g")
        if end == "abort":
            await store.buffer.abort("g")
        elif end == "remove":
            await store.buffer.remove_group("g")
        else:
            await commit(store, "g")
            await store.buffer.claim_for_training(["g"])
            await store.buffer.release_training_claims(["g"])
            await collected(store)
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup):
                await commit(store, "g", fence=made.fence)
            with pytest.raises(UnknownGroup):
                await commit(store, "g")
        stats = await store.stats()
        assert (before, 0) == (stats.occupancy, stats.payload_bytes)
    assert [] == await runs.payload_keys()


async def test_a_rollout_removed_by_another_host_commits_nothing(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as driver:
        await store.buffer.reserve(0, group_id="g")
        await driver.buffer.remove_group("g")
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup):
                await commit(store, "g")
        await store.buffer.reserve(0, group_id="g")
        await commit(store, "g")
        assert 1 == (await store.stats()).ready


@pytest.mark.parametrize("order", ["new first", "old first", "together"])
async def test_of_two_attempts_only_the_current_one_is_stored(runs: Runs, order: str) -> None:
    async with runs.open() as store, runs.open() as other:
        stalled, current = store.rollout(owner="host"), other.rollout(owner="host")
        async with stalled:
            first = await stalled.buffer.reserve(0, group_id="d", target_step=4)
            async with current:
                [second] = await current.take_tickets(max_tickets=1, weight_version=0)
                assert (1, 2, True) == (first.attempt, second.attempt, second.fence > first.fence)

                async def commit_new() -> None:
                    await commit(current, "d", 1)

                async def commit_old() -> None:
                    with pytest.raises(StaleOwner):
                        await commit(stalled, "d", 5, fence=first.fence)

                if order == "new first":
                    await commit_new()
                    await commit_old()
                elif order == "old first":
                    await commit_old()
                    await commit_new()
                else:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(commit_new)
                        tasks.start_soon(commit_old)
                read = await current.samples.get_samples(["d_g0", "d_g1"])
                assert [1.0, 2.0] == [row["reward"] for row in read]
                stats = await store.stats()
                assert (1, 1) == (stats.ready, stats.occupancy)
                assert 1 == len(await runs.payload_keys())


async def test_a_live_session_cannot_commit_an_attempt_that_is_not_its_own(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="host") as host:
        made = await host.buffer.reserve(0, group_id="g")
        await attached(store)
        for options in ({}, {"fence": made.fence}, {"fence": made.fence + 1}):
            async with nothing_changed(runs):
                with pytest.raises(StaleAttempt, match="'g'") as refused:
                    await commit(store, "g", **options)
            assert "g" == refused.value.group_id
        await commit(host, "g")


async def test_bytes_on_their_way_to_a_flip_are_not_touched_by_another_session(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="host") as host:
        made = await host.buffer.reserve(0, group_id="g")
        key = Keyspace(runs.name, DEFAULT_PARTITION).payload("g", made.fence)
        await runs.client.set(key, b"written by the host, whose flip is under way")
        await attached(store)
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt):
                await commit(store, "g", fence=made.fence)
        await commit(host, "g")


async def test_a_group_that_has_ended_is_forgotten_by_its_holder(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as driver:
        for group_id in ("committed", "aborted", "removed", "refused"):
            await store.buffer.reserve(0, group_id=group_id)
        await commit(store, "committed")
        await store.buffer.abort("aborted")
        await store.buffer.remove(["removed"])
        await driver.buffer.remove(["refused"])
        with pytest.raises(UnknownGroup):
            await commit(store, "refused")
        assert {} == store.buffer.holdings.reservations


async def test_a_ready_group_of_another_attempt_is_not_overwritten(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="host") as host:
        made = await host.buffer.reserve(0, group_id="g")
        await commit(host, "g", 1)
        await attached(store)
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt):
                await commit(store, "g", 2, fence=made.fence + 1)


@pytest.mark.parametrize("start", [2, 4])
async def test_a_first_attempt_keeps_the_start_version_it_was_reserved_with(
    runs: Runs, start: int
) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(3, group_id="g")
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=rf"weight version 3.* {start} "):
                await commit(store, "g", start_weight_version=start, end_weight_version=9)
        await commit(store, "g", start_weight_version=3, end_weight_version=3)


async def test_a_redispatched_group_may_start_with_a_newer_version_only(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        first = store.rollout(owner="host")
        await first.__aenter__()
        for group_id in ("a", "b"):
            await first.buffer.reserve(3, group_id=group_id)
        async with other.rollout(owner="host") as second:
            await second.take_tickets(max_tickets=2, weight_version=5)
            async with nothing_changed(runs):
                with pytest.raises(ValueError, match="weight version 5"):
                    await commit(second, "a", start_weight_version=4, end_weight_version=6)
            await commit(second, "a", start_weight_version=6, end_weight_version=6)
            await commit(second, "b", start_weight_version=5, end_weight_version=6)
            assert [6, 5] == [s.start_weight_version for s in await other.buffer.slots()]


async def test_a_group_whose_payload_did_not_arrive_stays_reserved(runs: Runs) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(0, group_id="g")
        call = Commit("g", made.fence, 0, 0, payload_bytes=10, blob=b"blob")
        async with nothing_changed(runs):
            reply = await send(store.buffer.session, call, number=1600)
            assert isinstance(reply, Refusal)
            assert "PAYLOAD" == reply.code
            assert isinstance(reply.error, PayloadMissing)
            assert "0 of 10 bytes" in str(reply.error)
        await commit(store, "g")


async def test_bytes_lost_between_payload_and_flip_leave_no_rest_behind(runs: Runs) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(0, group_id="g")
        gateway = store.buffer.session.link.gateway
        whole = gateway.call

        async def cut_short(call: Any, frame: Any = (), *, writes: Any = (), **rest: Any) -> Any:
            cut = [(key, bytes(part)[:-1]) for key, part in writes]
            return await whole(call, frame, writes=cut, **rest)

        gateway.call = cut_short  # type: ignore[method-assign]
        async with nothing_changed(runs):
            with pytest.raises(PayloadMissing, match="stays reserved"):
                await commit(store, "g")
        gateway.call = whole  # type: ignore[method-assign]
        await commit(store, "g", fence=made.fence)


async def test_a_payload_key_of_another_group_cannot_collide(runs: Runs) -> None:
    keyspace = Keyspace(runs.name, DEFAULT_PARTITION)
    assert keyspace.payload("a:1", 2) != keyspace.payload("a", 1, chunk=2)
    async with runs.open() as store:
        for group_id in ("a", "a:1", "a%3A1"):
            await store.buffer.reserve(0, group_id=group_id)
            await commit(store, group_id)
    assert 3 == len(await runs.payload_keys())


@pytest.mark.parametrize(
    ("error", "match", "changed"),
    [
        (ValueError, "expected 2 rows .* got 1", {"record_or_rows": rows(size=1)}),
        (ValueError, "expected 2 rows .* got 3", {"record_or_rows": rows(size=3)}),
        (ValueError, "expected 2 rows .* got 0", {"record_or_rows": []}),
        (ValueError, "1 tags for 2 rows", {"tags": [{}]}),
        (ValueError, "end_weight_version", {"end_weight_version": 2}),
        (ValueError, "start_weight_version", {"start_weight_version": -1}),
        (TypeError, "start_weight_version", {"start_weight_version": "3"}),
        (ValueError, "row 1.*nan", {"record_or_rows": [{"reward": 0.0}, {"reward": float("nan")}]}),
        (ValueError, "row 0.*inf", {"record_or_rows": [{"reward": float("inf")}, {"reward": 1.0}]}),
        (TypeError, "x", {"record_or_rows": [{"x": object()}, {"x": 1}]}),
        (ValueError, "row 1: reward is missing", {"record_or_rows": [{"reward": 1.0}, {"x": 1}]}),
        (TypeError, "tags", {"tags": [{"t": object()}, {}]}),
    ],
)
async def test_rows_that_cannot_be_stored_leave_the_group_reserved(
    runs: Runs, error: type[Exception], match: str, changed: dict[str, Any]
) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(3, group_id="g")
        good: dict[str, Any] = {
            "record_or_rows": rows(),
            "start_weight_version": 3,
            "end_weight_version": 3,
        }
        async with nothing_changed(runs):
            with pytest.raises(error, match=match):
                await store.buffer.commit("g", **{**good, **changed})
        await store.buffer.commit("g", **good)
        assert 1 == (await store.stats()).ready


async def test_a_large_group_is_stored_in_chunks_that_end_with_it(runs: Runs) -> None:
    async with runs.open() as store:
        store.buffer.session.link.chunk_bytes = 1000
        await store.buffer.reserve(0, group_id="g")
        big = [{"x": np.arange(600, dtype=np.int32) + row} for row in range(2)]
        await store.buffer.commit("g", big, start_weight_version=0, end_weight_version=0)
        assert 5 == len(await runs.payload_keys())
        read = await store.samples.get_samples(["g_g1", "g_g0"])
        np.testing.assert_array_equal(big[1]["x"], read[0]["x"])
        np.testing.assert_array_equal(big[0]["x"], read[1]["x"])
        await store.buffer.remove_group("g")
    assert [] == await runs.payload_keys()


async def test_a_commit_of_a_closed_store_says_so(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
    with pytest.raises(StoreClosed):
        await commit(store, "g")


async def test_other_rows_from_a_session_that_never_held_the_group_are_refused(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as stranger:
        group_id = await commit_ready(store, 0)
        await attached(stranger)
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt, match="committed with other rows"):
                await stranger.buffer.commit(
                    group_id, rows(7.0), start_weight_version=0, end_weight_version=0
                )
