"""The reader of the event stream rests while nobody waits, and nobody is woken too late for it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
import redis.asyncio

from redis_replay import ReplayStore
from redis_replay._redis.events import Topic
from tests.harness import Runs, commit_ready, until

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 20.0


async def resting(store: ReplayStore) -> None:
    """Wait until the store's reader rests."""
    wakeups = store.buffer.session.link.wakeups

    async def is_resting() -> bool:
        return wakeups.is_resting

    await commit_ready(store, 0)  # the read that is under way ends
    await until(is_resting, what="the reader of events rested")


async def test_events_cost_a_process_nothing_while_nobody_in_it_waits(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    xread = redis.asyncio.Redis.xread

    async def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await xread(self, *arguments, **options)

    monkeypatch.setattr(redis.asyncio.Redis, "xread", counted)
    async with runs.open() as store:
        await resting(store)
        before = reads
        for _ in range(20):
            await commit_ready(store, 0)
        assert before == reads


@pytest.mark.parametrize("moment", ["before the ticket", "before the wait", "while waiting"])
async def test_an_event_wakes_whoever_waits_after_a_rest(runs: Runs, moment: str) -> None:
    async with runs.open() as store, runs.open() as other:
        await resting(store)
        wakeups = store.buffer.session.link.wakeups
        woken = 0

        async def wait_for_event() -> None:
            nonlocal woken
            ticket = await wakeups.ticket(Topic.READY)
            if moment == "before the wait":
                await commit_ready(other, 0)
            woken += await wakeups.wait(Topic.READY, ticket, at_most_seconds=PATIENCE_SECONDS)

        with anyio.fail_after(PATIENCE_SECONDS / 2):
            async with anyio.create_task_group() as tasks:
                if moment == "before the ticket":
                    await commit_ready(other, 0)
                tasks.start_soon(wait_for_event)
                if moment == "while waiting":
                    await commit_ready(other, 0)
        assert 1 == woken


async def test_a_waiter_is_woken_again_and_again(runs: Runs) -> None:
    async with runs.open(capacity=1) as store, runs.open() as other:
        await resting(store)
        await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])
        with anyio.fail_after(PATIENCE_SECONDS):
            for _ in range(5):
                made = await other.buffer.reserve(0)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(store.buffer.reserve_when_free, 0)
                    await other.buffer.remove_group(made.group_id)
                [slot] = await store.buffer.slots()
                await store.buffer.remove_group(slot.group_id)
