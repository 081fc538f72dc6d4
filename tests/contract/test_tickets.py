"""Redispatch tickets: reserved groups whose holder is gone, given to exactly one session each."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import GroupState, Rule, Selection
from redis_replay._redis.keys import Key
from redis_replay.errors import DuplicateGroup, StaleAttempt, StoreCorrupted
from tests.contract.keyspace import attached, control_key, nothing_changed
from tests.harness import Runs, rows

pytestmark = pytest.mark.anyio


async def leave(store: Any, *group_ids: str, weight: int = 2) -> None:
    """Reserve groups under a host that then detaches."""
    async with store.rollout(owner="gone") as host:
        for at, group_id in enumerate(group_ids):
            await host.buffer.reserve(
                weight, group_id=group_id, target_step=at, prompt_ref=group_id.encode()
            )


async def test_a_ticket_keeps_order_step_and_prompt_and_gets_a_new_fence(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        await leave(store, "a", "b", "c")
        before = await store.buffer.slots()
        assert [None] * 3 == [slot.owner for slot in before]
        tickets = await rollout.take_tickets(max_tickets=2, weight_version=5)
        assert [("a", 5, 0, 1, b"a"), ("b", 5, 1, 1, b"b")] == [
            (t.group_id, t.weight_version, t.target_step, t.attempt, t.prompt_ref) for t in tickets
        ]
        after = await store.buffer.slots()
        assert [slot.order for slot in before] == [slot.order for slot in after]
        assert ["next", "next", None] == [slot.owner for slot in after]
        assert [5, 5, 2] == [slot.start_weight_version for slot in after]
        for old, new in zip(before[:2], after[:2], strict=True):
            assert new.fence > old.fence


async def test_a_ticket_holds_its_place_and_is_no_new_reservation(runs: Runs) -> None:
    async with runs.open(capacity=2) as store, store.rollout(owner="next") as rollout:
        await leave(store, "a", "b")
        assert (2, 2) == ((await store.stats()).occupancy, (await store.stats()).reserved_total)
        async with nothing_changed(runs):
            with pytest.raises(DuplicateGroup):
                await rollout.buffer.reserve(0, group_id="a")
        await rollout.take_tickets(max_tickets=9, weight_version=2)
        assert (2, 2) == ((await store.stats()).occupancy, (await store.stats()).reserved_total)


async def test_a_ticket_is_committed_and_selected_at_its_old_place(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        await leave(store, "a")
        await rollout.buffer.reserve(2, group_id="b")
        [ticket] = await rollout.take_tickets(max_tickets=1, weight_version=2)
        for group_id in ("b", "a"):
            await rollout.buffer.commit(
                group_id, rows(), start_weight_version=2, end_weight_version=3
            )
        assert 1 == ticket.attempt
        meta, _ = await store.buffer.claim(Selection(Rule.BUFFER, 0, 9, 2, 2))
        assert meta is not None
        assert ["a", "b"] == meta.extra_info["group_ids"]


async def test_a_ticket_never_gets_an_older_weight_than_it_had(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        await leave(store, "a", weight=7)
        [ticket] = await rollout.take_tickets(max_tickets=1, weight_version=3)
        assert 7 == ticket.weight_version


async def test_where_there_is_no_ticket_nothing_changes(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        await rollout.buffer.reserve(0)
        await attached(store)
        async with nothing_changed(runs):
            assert [] == await rollout.take_tickets(max_tickets=1, weight_version=0)


@pytest.mark.parametrize(
    ("maximum", "weight", "match"),
    [(0, 0, "max_tickets"), (1025, 0, "1024"), (1, -1, "weight_version"), (1, 2**53, "2")],
)
async def test_numbers_outside_their_limits_are_refused_at_the_door(
    runs: Runs, maximum: int, weight: int, match: str
) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        await leave(store, "a")
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=match):
                await rollout.take_tickets(max_tickets=maximum, weight_version=weight)


async def test_many_hosts_at_once_never_take_one_ticket_twice(runs: Runs) -> None:
    async with runs.open() as store:
        names = [f"g{at:02}" for at in range(30)]
        await leave(store, *names)
        taken: list[str] = []

        async def take(owner: str) -> None:
            async with runs.open() as own, own.rollout(owner=owner) as rollout:
                while tickets := await rollout.take_tickets(max_tickets=4, weight_version=2):
                    for ticket in tickets:
                        taken.append(ticket.group_id)
                        await rollout.buffer.abort(ticket.group_id, fence=ticket.fence)

        async with anyio.create_task_group() as tasks:
            for at in range(4):
                tasks.start_soon(take, f"host-{at}")
        assert names == sorted(taken)
        assert 0 == await store.buffer.size()


async def test_a_taken_ticket_goes_back_when_its_new_holder_leaves(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="last") as rollout:
        await leave(store, "a")
        async with store.rollout(owner="second") as second:
            [first] = await second.take_tickets(max_tickets=1, weight_version=2)
        [again] = await rollout.take_tickets(max_tickets=1, weight_version=2)
        assert again.fence > first.fence
        assert 1 == again.attempt
        await attached(store)
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt):
                await store.buffer.abort("a", fence=first.fence)


async def test_reservations_of_a_cancelled_cut_come_before_other_tickets(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        await leave(store, "ticket")
        async with rollout.mutation() as cut:
            cut.reserve(2, group_id="mine", prompt_ref=b"m")
        rollout.buffer.holdings.undelivered.extend(cut.reservations)
        first = await rollout.take_tickets(max_tickets=1, weight_version=2)
        assert ["mine"] == [ticket.group_id for ticket in first]
        second = await rollout.take_tickets(max_tickets=1, weight_version=2)
        assert ["ticket"] == [ticket.group_id for ticket in second]


async def test_generation_attempts_past_their_limit_set_the_group_apart(runs: Runs) -> None:
    async with runs.open(max_attempts=2) as store:
        first = store.rollout(owner="crashing")
        await first.__aenter__()
        await first.buffer.reserve(0, group_id="g", prompt_ref=b"p")
        second = store.rollout(owner="crashing")
        await second.__aenter__()
        [ticket] = await second.take_tickets(max_tickets=1, weight_version=0)
        assert 2 == ticket.attempt
        third = store.rollout(owner="crashing")
        await third.__aenter__()
        assert [] == await third.take_tickets(max_tickets=1, weight_version=0)
        [slot] = await store.buffer.slots()
        assert (GroupState.QUARANTINED, 3, None) == (slot.state, slot.attempt, slot.owner)
        stats = await store.stats()
        assert (1, 0) == (stats.quarantined, stats.occupancy)
        async with nothing_changed(runs):
            with pytest.raises(StaleAttempt):
                await third.buffer.commit(
                    "g", rows(), start_weight_version=0, end_weight_version=0, fence=ticket.fence
                )
        assert 1 == await store.buffer.remove(["g"])


async def test_a_ticket_that_does_not_fit_its_record_is_given_to_nobody(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="next") as rollout:
        await leave(store, "a")
        stray = "0000000000000000:ghost"
        await runs.client.zadd(control_key(runs, Key.TICKETS), {stray: 0})
        async with nothing_changed(runs):
            with pytest.raises(StoreCorrupted):
                await rollout.take_tickets(max_tickets=4, weight_version=2)
        await runs.client.zrem(control_key(runs, Key.TICKETS), stray)
        assert 1 == len(await rollout.take_tickets(max_tickets=4, weight_version=2))
