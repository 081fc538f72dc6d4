"""What sessions survive: damage that is not theirs, a block left early, too many claims."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from redis_replay import GroupState
from redis_replay._redis.keys import Key
from redis_replay.errors import StoreUnavailable, TooManyClaims
from tests.contract.keyspace import collected, control_key, nothing_changed, session_of
from tests.harness import Runs, commit_ready, rows, until

pytestmark = pytest.mark.anyio

SHORT_LEASE_SECONDS = 0.2


async def _beats_on(runs: Runs, owner: str) -> None:
    async def heartbeat() -> int:
        record = await runs.client.hget(control_key(runs, Key.OWNERS), owner)
        return int(record.split(b" ")[1])

    before = await heartbeat()

    async def has_beaten() -> bool:
        return await heartbeat() >= before + 3

    await until(has_beaten, what=f"{owner!r} beat three times more")


async def test_a_lost_session_that_cannot_be_cleared_leaves_all_others_their_heartbeats(
    runs: Runs,
) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="first", lease_seconds=SHORT_LEASE_SECONDS),
        store.rollout(owner="second", lease_seconds=SHORT_LEASE_SECONDS),
    ):
        held, lost = control_key(runs, Key.RESERVED_BY_OWNER), control_key(runs, Key.LOST)
        await runs.client.zadd(held, {"0000000000000001:nowhere": 999})
        await runs.client.hset(lost, "999", "1 ghost")
        for owner in ("first", "second"):
            await _beats_on(runs, owner)
        await runs.client.delete(held, lost)


async def test_a_damaged_owner_record_leaves_all_others_their_heartbeats(runs: Runs) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="first", lease_seconds=SHORT_LEASE_SECONDS),
        store.rollout(owner="second", lease_seconds=SHORT_LEASE_SECONDS),
    ):
        owners = control_key(runs, Key.OWNERS)
        await runs.client.hset(owners, "damaged", "x")
        for owner in ("first", "second"):
            await _beats_on(runs, owner)
        await runs.client.hdel(owners, "damaged")


async def test_a_commit_under_way_is_finished_before_its_session_ends(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open() as store, anyio.create_task_group() as observers:
        async with store.rollout(owner="host") as host:
            session, begun, go = session_of(host), anyio.Event(), anyio.Event()
            send = session.link.gateway.call

            async def held_up(call: Any, frame: Any = (), **options: Any) -> Any:
                if options.get("writes"):
                    begun.set()
                    await go.wait()
                return await send(call, frame, **options)

            async def go_on_when_the_block_is_left() -> None:
                async def is_left() -> bool:
                    return session.detached

                await until(is_left, what="the session began to end")
                go.set()

            monkeypatch.setattr(session.link.gateway, "call", held_up)
            observers.start_soon(go_on_when_the_block_is_left)
            await host.buffer.reserve(0, group_id="a")
            commit = partial(host.buffer.commit, start_weight_version=0, end_weight_version=0)
            async with anyio.create_task_group() as rollouts:
                rollouts.start_soon(partial(commit, "a", rows()))
                await begun.wait()
                rollouts.cancel_scope.cancel()
        await collected(store)
        [slot] = await store.buffer.slots()
        assert GroupState.READY is slot.state


async def test_claims_that_a_step_could_not_settle_are_not_handed_over(runs: Runs) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="giver") as giver,
        store.trainer(owner="taker") as taker,
    ):
        await giver.buffer.claim_for_training([await commit_ready(store, 0)])
        held = control_key(runs, Key.CLAIMED_BY_OWNER)
        await runs.client.zadd(held, {f"{at:016d}:filler": taker.epoch for at in range(1024)})
        async with nothing_changed(runs):
            with pytest.raises(TooManyClaims):
                await giver.transfer_claims(to="taker")
        await runs.client.zremrangebyscore(held, taker.epoch, taker.epoch)


async def test_an_ended_group_stays_ended_where_its_payload_cannot_be_freed_yet(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="a")

        async def cannot() -> int:
            raise StoreUnavailable("the server is away")

        monkeypatch.setattr(session_of(store).link.collector, "collect", cannot)
        await store.buffer.abort("a")
        assert 1 == await store.buffer.remove([await commit_ready(store, 0)])
