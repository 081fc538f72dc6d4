"""Sessions: one holder a name, what they give back at their end, and what they may do after it."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest

from redis_replay import GroupState, ReplayStore
from redis_replay._redis.keys import Key
from redis_replay._redis.run_scripts import EndOwner
from redis_replay._redis.scripts import Requeue
from redis_replay.call_numbers import CALLS_IN_FLIGHT
from redis_replay.errors import StaleOwner, StoreClosed
from redis_replay.session import MAX_OWNER_BYTES
from tests.contract.keyspace import (
    control_key,
    nothing_changed,
    owners,
    send_plain,
    session_of,
)
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_a_session_attaches_when_it_is_entered_and_leaves_with_its_block(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.trainer(owner="job") as trainer, store.rollout(owner="host") as host:
            assert {"job", "host"} == await owners(runs)
            assert trainer.epoch != host.epoch
            assert ("job", "host") == (trainer.owner, host.owner)
        assert set() == await owners(runs)
        assert {} == await runs.client.hgetall(control_key(runs, Key.SESSIONS))
        assert {} == await runs.client.hgetall(control_key(runs, Key.LOST))


async def test_a_store_attaches_its_own_session_at_its_first_call_only(runs: Runs) -> None:
    async with runs.open() as store:
        await store.stats()
        await store.buffer.slots()
        assert set() == await owners(runs)
        await store.buffer.reserve(0)
        [name] = await owners(runs)
        assert session_of(store).owner == name
    assert set() == await owners(runs)


async def test_leaving_gives_everything_back_and_counts_no_attempt(runs: Runs) -> None:
    async with runs.open() as store:
        ready = await commit_ready(store, 0)
        async with store.trainer(owner="job") as trainer, store.rollout(owner="host") as host:
            await trainer.buffer.claim_for_training([ready])
            await host.buffer.reserve(0, group_id="r", target_step=2)
        first, second = await store.buffer.slots()
        assert (GroupState.READY, 0, None) == (first.state, first.training_requeues, first.owner)
        assert (GroupState.RESERVED, 1, None) == (second.state, second.attempt, second.owner)
        assert 1 == (await store.stats()).requeued


async def test_closing_the_store_gives_back_what_all_its_sessions_hold(runs: Runs) -> None:
    async with runs.open() as other:
        async with runs.open() as store:
            ready = await commit_ready(store, 0)
            trainer = store.trainer(owner="job")
            await trainer.__aenter__()
            await trainer.buffer.claim_for_training([ready])
            await store.buffer.reserve(0)
        assert [(GroupState.READY, None), (GroupState.RESERVED, None)] == [
            (slot.state, slot.owner) for slot in await other.buffer.slots()
        ]
        assert set() == await owners(runs)


async def test_a_session_that_left_cannot_be_used_or_entered_again(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.trainer(owner="job") as trainer:
            pass
        async with nothing_changed(runs):
            with pytest.raises(StoreClosed, match="detached"):
                await trainer.commit_step(0)
            with pytest.raises(StoreClosed, match="detached"):
                await trainer.__aenter__()


async def test_a_call_that_is_overtaken_by_the_end_of_its_own_session_was_closed_and_not_replaced(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        async with store.trainer(owner="job") as trainer:
            session = session_of(trainer)
        async with nothing_changed(runs):
            with pytest.raises(StoreClosed, match="detached"):
                await session.run_numbered(Requeue(all=1, failed=1, group_ids=()))


@pytest.mark.parametrize("planned", [False, True])
async def test_a_newer_session_of_a_name_takes_over_at_once(runs: Runs, planned: bool) -> None:
    async with runs.open() as store, runs.open() as other:
        ready = await commit_ready(store, 0)
        async with store.trainer(owner="job") as older:
            await older.buffer.claim_for_training([ready])
            async with other.trainer(owner="job", takeover=planned) as newer:
                assert newer.epoch > older.epoch
                [slot] = await other.buffer.slots()
                expected = (GroupState.READY, 0 if planned else 1)
                assert expected == (slot.state, slot.training_requeues)
                async with nothing_changed(runs):
                    for call in (
                        older.commit_step(0),
                        older.buffer.reserve(0),
                        older.requeue(),
                        older.samples.put_samples([f"{ready}_g0"], fields={"x": [1]}),
                    ):
                        with pytest.raises(StaleOwner, match="attach again"):
                            await call
                await newer.buffer.claim_for_training([ready])
                assert (ready,) == (await newer.commit_step(0)).trained


@pytest.mark.parametrize("planned", [False, True])
async def test_a_takeover_turns_reservations_into_tickets(runs: Runs, planned: bool) -> None:
    async with runs.open() as store, runs.open() as other, store.rollout(owner="host") as older:
        made = await older.buffer.reserve(0, group_id="r")
        async with other.rollout(owner="host", takeover=planned) as newer:
            [ticket] = await newer.take_tickets(max_tickets=5, weight_version=0)
            assert ("r", 1 if planned else 2) == (ticket.group_id, ticket.attempt)
            with pytest.raises(StaleOwner):
                await older.buffer.commit(
                    "r", rows(), start_weight_version=0, end_weight_version=0, fence=made.fence
                )


async def test_leaving_after_a_takeover_takes_nothing_from_the_newer_session(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        ready = await commit_ready(store, 0)
        older = store.trainer(owner="job")
        await older.__aenter__()
        async with other.trainer(owner="job") as newer:
            await newer.buffer.claim_for_training([ready])
            async with nothing_changed(runs):
                await older.__aexit__(None, None, None)
            assert (ready,) == (await newer.commit_step(0)).trained


async def test_a_large_session_is_given_back_in_slices(runs: Runs) -> None:
    count = 300
    async with runs.open(capacity=count) as store:
        async with store.rollout(owner="host") as host, host.mutation() as cut:
            for at in range(count):
                cut.reserve(0, group_id=f"g{at:03}")
        slots = await store.buffer.slots()
        assert ({None}, count) == ({slot.owner for slot in slots}, len(slots))
        assert {} == await runs.client.hgetall(control_key(runs, Key.LOST))
        async with store.rollout(owner="next") as rollout:
            tickets = await rollout.take_tickets(max_tickets=1000, weight_version=0)
            assert [f"g{at:03}" for at in range(count)] == [t.group_id for t in tickets]


async def test_the_end_of_a_session_says_what_became_of_its_groups(runs: Runs) -> None:
    async with runs.open(max_attempts=1, max_requeues=1) as store:
        host = store.rollout(owner="host")
        await host.__aenter__()
        for group_id in ("fresh", "poison"):
            await commit_ready(store, 0, group_id=group_id)
        await host.buffer.claim_for_training(["poison"])
        await host.buffer.claims.requeue(["poison"], failed=True)
        await host.buffer.claim_for_training(["fresh", "poison"])
        for group_id in ("r", "s"):
            await host.buffer.reserve(0, group_id=group_id)
        died = EndOwner("host", host.epoch, None, planned=0)
        assert (2, 2, 3, False) == await send_plain(session_of(store), died)
        states = {slot.group_id: slot.state.value for slot in await store.buffer.slots()}
        expected = {**dict.fromkeys(("poison", "r", "s"), "quarantined"), "fresh": "ready"}
        assert expected == states
        async with nothing_changed(runs):
            assert (0, 0, 0, False) == await send_plain(session_of(store), died)


async def test_more_calls_at_once_than_the_window_holds_all_succeed(runs: Runs) -> None:
    async with runs.open() as store:
        gateway, running, most = store._opened().gateway, 0, 0
        call = gateway.call

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await anyio.lowlevel.checkpoint()  # the fake server never lets others in
            try:
                return await call(*arguments, **options)
            finally:
                running -= 1

        await store.buffer.session.attach()
        gateway.call = counted  # type: ignore[method-assign]
        async with anyio.create_task_group() as tasks:
            for at in range(3 * CALLS_IN_FLIGHT):
                tasks.start_soon(reserve_named, store, f"g{at}")
        assert CALLS_IN_FLIGHT == most
        assert 3 * CALLS_IN_FLIGHT == await store.buffer.size()


async def reserve_named(store: ReplayStore, group_id: str) -> None:
    """Reserve a group under the store's session."""
    await store.buffer.reserve(0, group_id=group_id)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"owner": ""}, "owner"),
        ({"owner": "x" * (MAX_OWNER_BYTES + 1)}, "owner"),
        ({"owner": "job", "lease_seconds": 0}, "lease_seconds"),
        ({"owner": "job", "lease_seconds": -1.0}, "lease_seconds"),
        ({"owner": "job", "lease_seconds": float("nan")}, "lease_seconds"),
    ],
)
async def test_a_session_that_cannot_be_is_refused_before_it_attaches(
    runs: Runs, options: dict[str, Any], match: str
) -> None:
    async with runs.open() as store, nothing_changed(runs):
        for make in (store.trainer, store.rollout):
            with pytest.raises(ValueError, match=match):
                make(**options)
        with pytest.raises(ValueError, match="world"):
            store.trainer(owner="job", world=0)


async def test_an_owner_name_may_hold_any_text(runs: Runs) -> None:
    name = 'job 7: "a"\n%41 {x} \N{GREEK SMALL LETTER PI}'
    async with runs.open() as store, runs.open() as other, store.rollout(owner=name) as host:
        await host.buffer.reserve(0, group_id="r")
        [slot] = await store.buffer.slots()
        assert name == slot.owner
        async with other.rollout(owner=name) as newer:
            [ticket] = await newer.take_tickets(max_tickets=1, weight_version=0)
            assert "r" == ticket.group_id
