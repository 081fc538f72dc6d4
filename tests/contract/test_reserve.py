"""Reserving a place in the buffer: what it gives, what it refuses, how it waits."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import Eviction, GroupState
from redis_replay._redis.keys import Key
from redis_replay.errors import BufferFull, DuplicateGroup, StoreClosed
from redis_replay.types import MAX_GROUP_ID_BYTES, MAX_PROMPT_REF_BYTES
from tests.contract.interruptions import Break, Interruption
from tests.contract.keyspace import attached, collected, control_key, nothing_changed
from tests.contract.waits import Waits
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 10.0
"""How long a waiting caller may go without being woken."""


async def test_a_reservation_is_a_reserved_slot_of_its_session(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="host-3") as rollout:
        made = await rollout.buffer.reserve(7, target_step=9, group_id="g", prompt_ref=b"p")
        assert ("g", 7, 9, 1, b"p") == (
            *(made.group_id, made.weight_version, made.target_step, made.attempt),
            made.prompt_ref,
        )
        [slot] = await store.buffer.slots()
        assert (GroupState.RESERVED, 7, 9, "host-3", 1) == (
            *(slot.state, slot.start_weight_version, slot.target_step),
            *(slot.owner, slot.attempt),
        )
        assert (made.fence, None, None) == (slot.fence, slot.payload_fence, slot.batch)


async def test_a_reservation_without_an_id_gets_a_fresh_one(runs: Runs) -> None:
    async with runs.open() as store:
        made = [await store.buffer.reserve(0) for _ in range(20)]
    assert 20 == len({reservation.group_id for reservation in made})


async def test_buffer_order_is_the_order_of_reservation(runs: Runs) -> None:
    async with runs.open() as one, runs.open() as other:
        ids = ["c", "a", "b", "0"]
        for at, group_id in enumerate(ids):
            await (one if at % 2 else other).buffer.reserve(9 - at, group_id=group_id)
        slots = await one.buffer.slots()
    assert ids == [slot.group_id for slot in slots]
    assert [0, 1, 2, 3] == [slot.order - slots[0].order for slot in slots]


async def test_each_reservation_gets_a_fence_of_its_own(runs: Runs) -> None:
    async with runs.open() as one, runs.open() as other:
        fences = [(await s.buffer.reserve(0)).fence for s in (one, other) for _ in range(3)]
    assert 6 == len(set(fences))


async def test_a_live_id_is_refused_and_its_slot_is_not_touched(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(3, group_id="p1", target_step=4)
        async with nothing_changed(runs):
            with pytest.raises(DuplicateGroup, match="'p1'") as refused:
                await store.buffer.reserve(5, group_id="p1")
        assert "p1" == refused.value.group_id
        [slot] = await store.buffer.slots()
        assert (3, 4) == (slot.start_weight_version, slot.target_step)


@pytest.mark.parametrize("state", ["ready", "claimed"])
async def test_the_id_of_finished_work_is_refused_while_it_is_live(runs: Runs, state: str) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="p1")
        if state == "claimed":
            await store.buffer.claim_for_training(["p1"])
        async with nothing_changed(runs):
            with pytest.raises(DuplicateGroup):
                await store.buffer.reserve(0, group_id="p1")


async def test_the_same_prompt_in_the_next_epoch_is_another_group_by_default(runs: Runs) -> None:
    async with runs.open() as store:
        first = [await store.buffer.reserve(0, prompt_ref=b"%d" % p) for p in range(3)]
        second = [await store.buffer.reserve(1, prompt_ref=b"%d" % p) for p in range(3)]
        made = [*first, *second]
        for value, reservation in enumerate(made):
            await store.buffer.commit(
                reservation.group_id,
                rows(10 * value),
                start_weight_version=reservation.weight_version,
                end_weight_version=1,
            )
        assert 6 == len({reservation.group_id for reservation in made})
        for value, reservation in enumerate(made):
            read = await store.samples.get_samples([f"{reservation.group_id}_g1"])
            assert 10 * value + 1 == read[0]["reward"]


async def test_an_ended_id_may_be_reserved_anew_as_another_group(runs: Runs) -> None:
    async with runs.open() as store:
        first = await store.buffer.reserve(0, group_id="g", prompt_ref=b"old")
        await store.buffer.abort("g")
        again = await store.buffer.reserve(1, group_id="g")
        assert again.fence > first.fence
        assert {} == await runs.client.hgetall(control_key(runs, Key.PROMPTS))
        assert 2 == (await store.stats()).reserved_total


async def test_a_full_buffer_names_capacity_and_occupancy_and_takes_nothing(runs: Runs) -> None:
    async with runs.open(capacity=3) as store:
        await store.buffer.reserve(0)
        await commit_ready(store, 0)
        claimed = await commit_ready(store, 0)
        await store.buffer.claim_for_training([claimed])
        async with nothing_changed(runs):
            with pytest.raises(BufferFull, match=r"3 of 3 places .* 1 more") as full:
                await store.buffer.reserve(0)
        assert (3, 3, "groups") == (full.value.capacity, full.value.occupancy, full.value.unit)


async def test_payload_bytes_close_reserving_but_never_a_commit(runs: Runs) -> None:
    async with runs.open(max_payload_bytes=1) as store:
        early = [await store.buffer.reserve(0), await store.buffer.reserve(0)]
        for reservation in early:
            await store.buffer.commit(
                reservation.group_id, rows(), start_weight_version=0, end_weight_version=0
            )
        stored = (await store.stats()).payload_bytes
        async with nothing_changed(runs):
            with pytest.raises(BufferFull, match="payload bytes") as full:
                await store.buffer.reserve(0)
        assert (1, stored, "bytes") == (
            *(full.value.capacity, full.value.occupancy),
            full.value.unit,
        )
        await store.buffer.remove([reservation.group_id for reservation in early])
        await store.buffer.reserve(0)


@pytest.mark.parametrize(
    ("error", "match", "options"),
    [
        (ValueError, "weight_version", {"weight_version": -1}),
        (ValueError, r"2\*\*53", {"weight_version": 2**53}),
        (ValueError, r"2\*\*53", {"weight_version": 2**53 + 1}),
        (TypeError, "weight_version", {"weight_version": True}),
        (TypeError, "weight_version", {"weight_version": 1.0}),
        (ValueError, "target_step", {"target_step": -1}),
        (ValueError, "target_step", {"target_step": 2**53}),
        (TypeError, "target_step", {"target_step": "1"}),
        (ValueError, "empty", {"group_id": ""}),
        (TypeError, "group_id", {"group_id": b"g"}),
        (ValueError, "1025", {"group_id": "x" * (MAX_GROUP_ID_BYTES + 1)}),
        (ValueError, "Unicode", {"group_id": "\ud800"}),
        (TypeError, "prompt_ref", {"prompt_ref": "text"}),
        (ValueError, "65537", {"prompt_ref": b"x" * (MAX_PROMPT_REF_BYTES + 1)}),
    ],
)
async def test_what_no_slot_can_hold_is_refused_before_anything_is_sent(
    runs: Runs, error: type[Exception], match: str, options: dict[str, Any]
) -> None:
    async with runs.open() as store:
        weight, others = options.get("weight_version", 0), {**options}
        others.pop("weight_version", None)
        async with nothing_changed(runs):
            with pytest.raises(error, match=match):
                await store.buffer.reserve(weight, **others)
            with pytest.raises(error, match=match):
                await store.buffer.reserve_when_free(weight, **others)


async def test_the_largest_numbers_and_ids_are_kept_exactly(runs: Runs) -> None:
    longest, reference = "x" * MAX_GROUP_ID_BYTES, b"\x00\xff" * (MAX_PROMPT_REF_BYTES // 2)
    async with runs.open() as store:
        await store.buffer.reserve(
            2**53 - 1, target_step=2**53 - 1, group_id=longest, prompt_ref=reference
        )
        [slot] = await store.buffer.slots()
        assert (longest, 2**53 - 1, 2**53 - 1) == (
            *(slot.group_id, slot.start_weight_version),
            slot.target_step,
        )
        prompts = await runs.client.hgetall(control_key(runs, Key.PROMPTS))
    assert {longest.encode(): reference} == prompts


async def test_an_empty_prompt_reference_is_not_an_absent_one(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        async with store.rollout(owner="host") as host:
            await host.buffer.reserve(0, group_id="empty", prompt_ref=b"")
            await host.buffer.reserve(0, group_id="none")
        tickets = await rollout.take_tickets(max_tickets=2, weight_version=0)
    assert [b"", None] == [ticket.prompt_ref for ticket in tickets]


STRANGE_IDS = (
    *("a", "a:b", "a/b", "a:b:c", "../x", "with space", "new\nline", "0", "007", "7"),
    *("pi-π-группа-\N{SLIGHTLY SMILING FACE}", "x" * 300, "{tag}", "%41", "g_g0", "null\0byte"),
)


async def test_strange_ids_round_trip_and_end_alone(runs: Runs) -> None:
    async with runs.open() as store:
        for value, group_id in enumerate(STRANGE_IDS):
            await store.buffer.reserve(0, group_id=group_id)
            await store.buffer.commit(
                group_id,
                [{"x:y": value, "x/y": row} for row in range(2)],
                start_weight_version=0,
                end_weight_version=0,
            )
        assert list(STRANGE_IDS) == [slot.group_id for slot in await store.buffer.slots()]
        await store.buffer.remove(["a"])
        await store.buffer.remove(["a:b"])
        left = [group_id for group_id in STRANGE_IDS if group_id not in ("a", "a:b")]
        meta = await store.buffer.claim_for_training(left)
        assert left == meta.extra_info["group_ids"]
        read = await store.samples.get_samples(meta)
        assert [STRANGE_IDS.index(group_id) for group_id in left] == [
            row["x:y"] for row in read[::2]
        ]
        assert [{"x/y": 0}, {"x/y": 1}] == [{"x/y": row["x/y"]} for row in read[:2]]
        assert [f"{i}_g{r}" for i in left for r in (0, 1)] == await store.samples.list_sample_ids()
        await store.buffer.release_training_claims(left)
    assert [] == await runs.payload_keys()


@pytest.mark.parametrize("end", ["abort", "remove", "evict", "settle", "resize"])
async def test_a_waiting_reservation_gets_the_place_that_becomes_free(runs: Runs, end: str) -> None:
    async with runs.open(capacity=2) as store, runs.open(capacity=2) as other:
        held = await store.buffer.reserve(0)
        ready = await commit_ready(store, 0)
        got: list[str] = []

        async def wait_for_place() -> None:
            got.append((await other.buffer.reserve_when_free(1)).group_id)

        waits = Waits(other)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_place)
                await waits.begun()
                assert [] == got
                if end == "abort":
                    await store.buffer.abort(held.group_id)
                elif end == "remove":
                    await store.buffer.remove_group(ready)
                elif end == "evict":
                    assert 1 == await store.buffer.evict(Eviction(below=1))
                elif end == "settle":
                    await store.buffer.claim_for_training([ready])
                    await store.buffer.release_training_claims([ready])
                else:
                    async with runs.open(capacity=3):
                        pass
        assert 1 == len(got)


async def test_a_waiting_reservation_holds_nothing_when_it_is_cancelled(runs: Runs) -> None:
    async with runs.open(capacity=1) as store:
        await store.buffer.reserve(0, group_id="first")
        waits = Waits(store)
        async with nothing_changed(runs), anyio.create_task_group() as tasks:
            tasks.start_soon(store.buffer.reserve_when_free, 0)
            await waits.begun()
            tasks.cancel_scope.cancel()
        await store.buffer.abort("first")
        assert 0 == await store.buffer.size()


@pytest.mark.parametrize("verb", ["reserve", "reserve_when_free"])
async def test_a_reservation_whose_caller_was_cancelled_gives_its_place_back(
    runs: Runs, verb: str
) -> None:
    async with runs.open() as store:
        await attached(store)
        interruption = Interruption(store, at=1, kind=Break.CANCELLED_BEFORE)
        with interruption.scope:
            await getattr(store.buffer, verb)(0, group_id="g")
        interruption.end()
        assert interruption.scope.cancelled_caught
        await collected(store)
        stats = await store.stats()
        assert (0, {"aborted:cancelled": 1}) == (stats.occupancy, stats.ends)
        assert {} == store.buffer.holdings.reservations


async def test_a_full_buffer_drops_no_finished_work_and_stops_no_commit(runs: Runs) -> None:
    async with runs.open(capacity=4) as store:
        ready = [await commit_ready(store, 0) for _ in range(2)]
        flying = [(await store.buffer.reserve(0)).group_id for _ in range(2)]
        waits, got = Waits(store), anyio.Event()

        async def produce() -> None:
            await store.buffer.reserve_when_free(0, group_id="fifth")
            got.set()

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(produce)
                await waits.begun()
                await store.buffer.commit(
                    flying[0], rows(), start_weight_version=0, end_weight_version=0
                )
                assert not got.is_set()
                assert 4 == await store.buffer.size()
                await store.buffer.abort(flying[1])
        for _ in range(10):
            await store.buffer.abort("fifth")
            assert 3 == await store.buffer.size()
            await store.buffer.reserve_when_free(0, group_id="fifth")
            assert 4 == await store.buffer.size()
        meta = await store.buffer.claim_for_training(ready)
        assert ready == meta.extra_info["group_ids"]
        assert 4 == await store.buffer.size()


async def test_reserving_under_a_closed_store_says_so(runs: Runs) -> None:
    async with runs.open() as store:
        buffer = store.buffer
    with pytest.raises(StoreClosed):
        await buffer.reserve(0)
    with pytest.raises(StoreClosed):
        await buffer.reserve_when_free(0)
