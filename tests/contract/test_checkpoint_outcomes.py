"""Creating, restoring and dropping whose exchanges with the server break off at any point."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from redis_replay import ReplayStore
from redis_replay._redis.keys import Key
from redis_replay.errors import CheckpointMissing, StaleStore, StoreUnavailable
from tests.contract.interruptions import Break, Interruption
from tests.contract.keyspace import control_key, snapshot
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

OFTEN = (Break.NO_REPLY, Break.DOWN_NO_REPLY, Break.CANCELLED_AFTER)
kinds = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.slow) for kind in Break]
)


@asynccontextmanager
async def interrupted(store: Any, at: int, kind: Break) -> AsyncIterator[Interruption]:
    """Break off one exchange of the block; what is left of it has ended when the block has."""
    interruption = Interruption(store, at=at, kind=kind)
    try:
        with interruption.scope:
            yield interruption
    except StoreUnavailable:
        assert kind in (Break.DOWN_NOT_SENT, Break.DOWN_NO_REPLY)
    finally:
        await store.buffer.session.link.tasks.idle()
        interruption.end()


async def ids(store: ReplayStore) -> set[str]:
    """Return the live groups."""
    return {slot.group_id for slot in await store.buffer.slots()}


async def saved_keys(runs: Runs) -> list[str]:
    """Return the keys of all checkpoints' copies."""
    return [key for key in await runs.keys() if ":saved:" in key]


@kinds
async def test_a_restore_that_broke_off_is_done_once_or_repeated(runs: Runs, kind: Break) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="ready")
        await store.buffer.reserve(0, group_id="reserved")
        await store.checkpoints.create("kept")
        at, struck = 1, True
        while struck:
            await store.buffer.reserve(0, group_id="later")
            epoch = store.run.store_epoch
            report = None
            async with interrupted(store, at, kind) as interruption:
                report = await store.checkpoints.restore("kept")
            struck, at = interruption.struck, at + 1
            if report is None and store.run.store_epoch == epoch:
                report = await store.checkpoints.restore("kept")
                assert (1, 1) == (report.ready, report.tickets)
            assert epoch + 1 == store.run.store_epoch
            assert {"ready", "reserved"} == await ids(store)


@kinds
async def test_a_creation_that_broke_off_has_made_a_whole_checkpoint_or_none(
    runs: Runs, kind: Break
) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g")
        at, struck = 1, True
        while struck:
            async with interrupted(store, at, kind) as interruption:
                await store.checkpoints.create("mine")
            struck, at = interruption.struck, at + 1
            listed = [info.name for info in await store.checkpoints.list()]
            assert len(saved_parts(await saved_keys(runs))) == len(listed)
            await store.checkpoints.create("mine", replace=True)
            assert (await store.checkpoints.verify("mine")).is_whole
            assert (await store.checkpoints.show("mine")).digest
            assert 1 == len(saved_parts(await saved_keys(runs)))
            await store.checkpoints.drop("mine")


def saved_parts(keys: list[str]) -> set[str]:
    """Return the ids that copies lie under."""
    return {key.split(":saved:")[1].partition(":")[0] for key in keys}


@kinds
async def test_a_drop_that_broke_off_is_finished_by_the_next(runs: Runs, kind: Break) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("other")
        at, struck = 1, True
        while struck:
            await commit_ready(store, 0, group_id="g")
            await store.checkpoints.create("kept")
            await store.buffer.remove(["g"])
            assert 1 == len(await runs.payload_keys())
            async with interrupted(store, at, kind) as interruption:
                await store.checkpoints.drop("kept")
            struck, at = interruption.struck, at + 1
            with suppress(CheckpointMissing):
                await store.checkpoints.drop("kept")
            await store.checkpoints.drop("other")
            await store.collect_garbage()
            assert [] == await runs.payload_keys()
            assert [] == await saved_keys(runs)
            await store.checkpoints.create("other")


async def test_of_two_hosts_that_restore_at_once_the_second_must_reopen(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        await commit_ready(store, 0, group_id="g")
        await store.checkpoints.create("kept")

        async def restore_first() -> None:
            await other.checkpoints.restore("kept")

        applied = Interruption(store, at=1, kind=Break.CANCELLED_AFTER, meanwhile=restore_first)
        with pytest.raises(StaleStore, match="store epoch 2"):
            await store.checkpoints.restore("kept")
        applied.end()
        assert b"2" == await runs.client.hget(control_key(runs, Key.META), "store_epoch")


async def test_an_unanswered_restore_is_not_taken_for_that_of_another_host(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        await commit_ready(store, 0, group_id="g")
        await store.checkpoints.create("kept")
        exchanges = Interruption(store, at=10**6, kind=Break.NO_REPLY)
        await store.checkpoints.restore("kept")
        exchanges.end()
        assert {"g"} == await ids(store)
        with pytest.raises(StaleStore):
            await other.checkpoints.restore("kept")
        before = await snapshot(runs)
        with pytest.raises(StaleStore):
            await other.checkpoints.restore("kept")
        assert before == await snapshot(runs)


async def test_a_checkpoint_that_was_replaced_after_its_verification_is_not_restored(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        await commit_ready(store, 0, group_id="g")
        await store.checkpoints.create("kept")

        verify = store.checkpoints.verify

        async def verify_and_lose(name: str) -> Any:
            found = await verify(name)
            await commit_ready(other, 0, group_id="later")
            await other.checkpoints.create("kept", replace=True)
            return found

        store.checkpoints.verify = verify_and_lose  # type: ignore[method-assign, assignment]
        with pytest.raises(CheckpointMissing, match="no checkpoint 'kept'"):
            await store.checkpoints.restore("kept")
        assert {"g", "later"} == await ids(store)
        assert 1 == store.run.store_epoch
