"""Sessions: one holder a name, leases by observed silence, and what an ended one may still do."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import anyio
import pytest

from redis_replay import Eviction, GroupState, ReplayStore
from redis_replay._redis.keys import Key
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import EndOwner, Heartbeat
from redis_replay.errors import ClaimError, StaleOwner, StoreClosed
from redis_replay.session import CALLS_IN_FLIGHT, MAX_OWNER_BYTES, Session
from tests.contract.keyspace import attached, control_key, nothing_changed, send_plain, snapshot
from tests.harness import Runs, commit_ready, rows, until

pytestmark = pytest.mark.anyio

SHORT_LEASE_SECONDS = 0.2
BLOCKED_SECONDS = 1.0
"""How long an optimizer step is imitated that does not let the event loop run."""


def session_of(place: Any) -> Session:
    """Return the session of a store, trainer or rollout."""
    session: Session = place.buffer.session
    return session


def fall_silent(place: Any) -> None:
    """Let a session beat no more, as if its process had died."""
    session = session_of(place)
    assert session.pulse is not None
    session.link.heart.remove(session.pulse)


async def owners(runs: Runs) -> set[str]:
    """Return the names of the attached sessions."""
    return {name.decode() for name in await runs.client.hkeys(control_key(runs, Key.OWNERS))}


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


@pytest.mark.parametrize("planned", [False, True])
async def test_a_newer_session_of_a_name_takes_over_at_once(runs: Runs, planned: bool) -> None:
    async with runs.open() as store, runs.open() as other:
        ready = await commit_ready(store, 0)
        async with store.trainer(owner="job") as older:
            await older.buffer.claim_for_training([ready])
            async with other.trainer(owner="job", planned_takeover=planned) as newer:
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
        async with other.rollout(owner="host", planned_takeover=planned) as newer:
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


async def test_a_silent_session_is_ended_by_whoever_watches(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as other,
        other.rollout(owner="watcher", lease_seconds=SHORT_LEASE_SECONDS),
    ):
        trainer = store.trainer(owner="job", lease_seconds=SHORT_LEASE_SECONDS)
        await trainer.__aenter__()
        host = store.rollout(owner="host", lease_seconds=SHORT_LEASE_SECONDS)
        await host.__aenter__()
        ready = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([ready])
        await host.buffer.reserve(0, group_id="r", prompt_ref=b"p")
        fall_silent(trainer)
        fall_silent(host)

        async def are_ended() -> bool:
            return not {"job", "host"} & await owners(runs)

        await until(are_ended, what="the silent sessions were ended")
        first, second = await other.buffer.slots()
        assert (GroupState.READY, 1, None) == (
            *(first.state, first.training_requeues),
            first.owner,
        )
        assert (GroupState.RESERVED, 2, None) == (second.state, second.attempt, second.owner)
        for call in (trainer.commit_step(0), host.buffer.reserve(0)):
            with pytest.raises(StaleOwner):
                await call


async def test_heartbeats_keep_a_session_while_the_event_loop_is_blocked(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as other,
        other.rollout(owner="watcher", lease_seconds=SHORT_LEASE_SECONDS),
        store.trainer(owner="job", lease_seconds=BLOCKED_SECONDS / 2) as trainer,
    ):
        ready = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([ready])
        time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251
        assert {"job", "watcher"} <= await owners(runs)
        assert (ready,) == (await trainer.commit_step(0)).trained


async def test_a_short_lease_is_kept_in_a_store_whose_other_sessions_have_long_ones(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0)

        async def has_beaten(owner: str, count: int) -> bool:
            record = await runs.client.hget(control_key(runs, Key.OWNERS), owner)
            return record is not None and int(record.split(b" ")[1]) >= count

        long = partial(has_beaten, session_of(store).owner, 1)
        await until(long, what="the session with the long lease beat")
        async with store.trainer(owner="job", lease_seconds=SHORT_LEASE_SECONDS):
            short = partial(has_beaten, "job", 3)
            await until(short, what="the session with the short lease beat three times")


async def test_a_run_without_sessions_is_cleared_by_the_next_one_after_a_lease(runs: Runs) -> None:
    async with runs.open() as store:
        host = store.rollout(owner="host", lease_seconds=SHORT_LEASE_SECONDS)
        await host.__aenter__()
        await host.buffer.reserve(0, group_id="r")
        fall_silent(host)
        await store._opened().heart.stop()
        async with (
            runs.open() as other,
            other.rollout(owner="next", lease_seconds=SHORT_LEASE_SECONDS) as rollout,
        ):
            found: list[str] = []

            async def is_there() -> bool:
                tickets = await rollout.take_tickets(max_tickets=1, weight_version=0)
                found.extend(ticket.group_id for ticket in tickets)
                return bool(found)

            await until(is_there, what="the lost reservation became a ticket")
            assert ["r"] == found


async def test_a_session_that_has_beaten_since_is_not_ended(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        link = store._opened()
        await link.heart.stop()
        ready = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([ready])
        beat = Heartbeat("job", trainer.epoch)
        reply = await send_plain(session_of(store), beat)
        assert not isinstance(reply, Refusal)
        seen = int(reply[0]["job"].split(b" ")[1])
        await send_plain(session_of(store), beat)
        async with nothing_changed(runs):
            refused = await send_plain(
                session_of(store), EndOwner("job", trainer.epoch, seen, planned=0)
            )
        assert isinstance(refused, Refusal)
        assert "ALIVE" == refused.code
        assert isinstance(refused.error, ClaimError)
        assert f"heartbeat {seen + 1}" in str(refused.error)
        assert (ready,) == (await trainer.commit_step(0)).trained


async def test_a_heartbeat_never_revives_a_session_that_has_ended(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.trainer(owner="job") as trainer:
            epoch = trainer.epoch
        await attached(store)
        async with store.trainer(owner="job"):
            async with nothing_changed(runs):
                reply = await send_plain(session_of(store), Heartbeat("job", epoch))
            assert isinstance(reply, Refusal)
            assert "FENCED" == reply.code
        reply = await send_plain(session_of(store), Heartbeat("job", epoch))
        assert isinstance(reply, Refusal)
        assert isinstance(reply.error, StaleOwner)


async def test_a_session_learns_from_its_heartbeat_that_it_was_replaced(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        older = store.trainer(owner="job", lease_seconds=SHORT_LEASE_SECONDS)
        await older.__aenter__()
        async with other.trainer(owner="job"):

            async def has_learned() -> bool:
                pulse = session_of(older).pulse
                return pulse is not None and pulse.lost

            await until(has_learned, what="the older session learned of its end")
            before = await snapshot(runs)
            with pytest.raises(StaleOwner, match="'job'"):
                await older.buffer.evict(Eviction(below=1))
            assert before == await snapshot(runs)


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


async def test_what_an_interrupted_take_over_left_is_drained_by_a_heartbeat(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        host = store.rollout(owner="host")
        await host.__aenter__()
        await host.buffer.reserve(0, group_id="r")
        await host.buffer.reserve(0, group_id="s")
        await store._opened().heart.stop()
        slice_of_one = EndOwner("host", host.epoch, None, planned=1, limit=1)
        reply = await send_plain(session_of(other), slice_of_one)
        assert (1, 0, 0, True) == reply
        async with other.rollout(owner="next", lease_seconds=SHORT_LEASE_SECONDS):

            async def is_drained() -> bool:
                return not await runs.client.exists(control_key(runs, Key.LOST))

            await until(is_drained, what="the lost session was drained")
            assert [None, None] == [slot.owner for slot in await other.buffer.slots()]


async def test_more_calls_at_once_than_the_window_holds_all_succeed(runs: Runs) -> None:
    async with runs.open() as store:
        gateway, running, most = store._opened().gateway, 0, 0
        call = gateway.call

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
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
