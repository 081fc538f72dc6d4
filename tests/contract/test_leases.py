"""Leases: a session lives as long as others see it beat, by their own clocks."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import pytest

from redis_replay import Eviction, GroupState
from redis_replay._redis.keys import Key
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import EndOwner, Heartbeat
from redis_replay.errors import ClaimError, StaleOwner
from tests.contract.keyspace import (
    attached,
    control_key,
    nothing_changed,
    owners,
    send_plain,
    session_of,
    snapshot,
)
from tests.harness import Runs, commit_ready, until

pytestmark = pytest.mark.anyio

SHORT_LEASE_SECONDS = 0.2
BLOCKED_SECONDS = 1.0
"""How long an optimizer step is imitated that does not let the event loop run."""


def fall_silent(place: Any) -> None:
    """Let a session beat no more, as if its process had died."""
    session = session_of(place)
    assert session.pulse is not None
    session.link.heart.remove(session.pulse)


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


async def test_an_owner_is_missed_when_its_own_lease_is_over_and_not_when_the_watchers_is(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        host = store.rollout(owner="host", lease_seconds=SHORT_LEASE_SECONDS)
        await host.__aenter__()
        await other.rollout(owner="watcher").__aenter__()

        async def is_watched() -> bool:
            record = await runs.client.hget(control_key(runs, Key.OWNERS), "watcher")
            return int(record.split(b" ")[1]) > 2

        await until(is_watched, what="the watcher, whose lease is a minute, beat three times")
        fall_silent(host)

        async def is_ended() -> bool:
            return "host" not in await owners(runs)

        await until(is_ended, what="the silent host was ended", seconds=5 * SHORT_LEASE_SECONDS)


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
        ready = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([ready])
        await store._opened().heart.stop()  # no session is added below, which would start it again
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
