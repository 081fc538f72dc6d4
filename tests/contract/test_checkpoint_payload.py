"""The payload that a checkpoint refers to stays, whatever ends, collects or fails meanwhile."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import Eviction
from redis_replay._redis.checkpoint_scripts import Condemn
from redis_replay._redis.keys import Key
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import EndOwner
from redis_replay.errors import StaleOwner
from tests.contract.interruptions import Break, Interruption
from tests.contract.keyspace import control_key, nothing_changed, send_plain, stop_collecting
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_a_refused_repetition_of_a_commit_frees_nothing_a_checkpoint_refers_to(
    runs: Runs,
) -> None:
    async with (
        runs.open() as store,
        runs.open() as other,
        store.rollout(owner="host") as host,
        other.trainer(owner="job") as trainer,
    ):
        await commit_ready(host, 0)  # so that the server knows the script
        await host.buffer.reserve(0, group_id="g")

        async def train_and_end_the_host() -> None:
            await other.checkpoints.create("kept")
            await trainer.buffer.claim_for_training(["g"])
            await trainer.commit_step(0)
            end = EndOwner("host", host.epoch, None, planned=0)
            await send_plain(other.buffer.session, end)

        lost = Interruption(store, at=1, kind=Break.NO_REPLY, meanwhile=train_and_end_the_host)
        with pytest.raises(StaleOwner):
            await host.buffer.commit("g", rows(), start_weight_version=0, end_weight_version=0)
        lost.end()
        assert (await other.checkpoints.verify("kept", deep=True)).is_whole
        assert 2 == (await other.checkpoints.restore("kept")).ready


def hold_before_freeing(store: Any) -> tuple[anyio.Event, anyio.Event]:
    """Have a store's collector stop once between its decision and the freeing.

    Returns the event that it has stopped, and the one that lets it go on.
    """
    collector = store.buffer.session.link.collector
    stopped, go_on, free = anyio.Event(), anyio.Event(), collector._free

    async def held(entries: list[str]) -> None:
        if not stopped.is_set():
            stopped.set()
            await go_on.wait()
        await free(entries)

    collector._free = held
    return stopped, go_on


async def test_a_collection_that_a_restore_overtakes_frees_nothing_that_came_back(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        for name in ("kept", "gone"):
            await commit_ready(store, 0, group_id=name)
        await store.buffer.remove(["gone"])
        await store.checkpoints.create("c")
        await commit_ready(store, 0, group_id="later")
        stopped, go_on = hold_before_freeing(store)
        async with anyio.create_task_group() as group:
            group.start_soon(store.buffer.remove, ["kept", "later"])
            await stopped.wait()
            report = await other.checkpoints.restore("c")
            go_on.set()
        assert 1 == report.ready
        await other.collect_garbage()
        assert (await other.checkpoints.verify("c", deep=True)).is_whole
        assert 1 == len(await runs.payload_keys())
        await other.buffer.claim_for_training(["kept"])


@pytest.mark.parametrize("verb", ["create", "drop"])
async def test_a_collection_looks_again_when_checkpoints_came_or_went(
    runs: Runs, verb: str
) -> None:
    async with runs.open() as store, runs.open() as other:
        await commit_ready(store, 0, group_id="kept")
        await store.checkpoints.create("c")
        await commit_ready(store, 0, group_id="free")
        stop_collecting(other)
        await other.buffer.remove(["kept", "free"])
        name = {"create": "new", "drop": "c"}[verb]

        async def change() -> None:
            await getattr(other.checkpoints, verb)(name)

        looked = Interruption(store, at=1, kind=Break.CANCELLED_AFTER, meanwhile=change)
        assert {"create": 1, "drop": 2}[verb] == await store.collect_garbage()
        looked.end()
        assert {"create": 1, "drop": 0}[verb] == len(await runs.payload_keys())


async def test_every_way_to_end_a_finished_group_leaves_its_rows_to_the_checkpoint(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        for name in ("trained", "removed", "evicted", "released"):
            await commit_ready(store, 0, group_id=name)
        await trainer.buffer.claim_for_training(["trained"])
        await trainer.samples.put_samples(["trained_g0"], fields={"x": [1]})
        await store.checkpoints.create("c")
        await trainer.commit_step(0)
        await store.buffer.claim_for_training(["released"])
        await store.buffer.release_training_claims(["released"])
        await store.buffer.remove(["removed"])
        assert 1 == await store.buffer.evict(Eviction(below=1))
        await store.collect_garbage()
        assert 4 == len(await runs.payload_keys())
        assert 4 == await runs.client.zcard(control_key(runs, Key.PINNED))
        assert not await runs.client.exists(control_key(runs, Key.DEAD))
        assert (await store.checkpoints.verify("c", deep=True)).is_whole
        assert 4 == (await store.checkpoints.restore("c")).ready


async def test_what_an_unfinished_group_left_is_freed_although_a_checkpoint_knows_it(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(0, group_id="g", prompt_ref=b"p")
        await store.checkpoints.create("c")
        await store.buffer.commit("g", rows(), start_weight_version=0, end_weight_version=0)
        await store.buffer.remove(["g"])
        assert [] == await runs.payload_keys()
        await store.checkpoints.restore("c")
        async with store.rollout(owner="host") as host:
            [ticket] = await host.take_tickets(max_tickets=1, weight_version=0)
            assert ticket.fence > made.fence
            await host.buffer.commit("g", rows(3), start_weight_version=0, end_weight_version=0)
        await store.collect_garbage()
        [row, _] = await store.samples.get_samples(["g_g0", "g_g1"])
        assert 3 == row["input_ids"][0]


async def test_columns_written_back_end_with_the_claim_that_a_restore_ends(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g")
        await store.buffer.claim_for_training(["g"])
        await store.samples.put_samples(["g_g0", "g_g1"], fields={"x": [1, 2]})
        await store.checkpoints.create("c")
        assert 2 == len(await runs.payload_keys())
        await store.checkpoints.restore("c")
        await store.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        await store.buffer.claim_for_training(["g"])
        [row, _] = await store.samples.get_samples(["g_g0", "g_g1"])
        assert "x" not in row


async def test_orphans_are_not_sought_among_what_a_checkpoint_refers_to(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g")
        await store.checkpoints.create("c")
        await store.buffer.remove(["g"])
        for _ in range(3):
            assert [] == await store.find_orphans()
        assert 1 == (await store.checkpoints.restore("c")).ready


async def test_nothing_is_condemned_by_who_does_not_know_the_checkpoints(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0)
        await store.checkpoints.create("c")
        record = await store.checkpoints.record("c")
        stop_collecting(store)
        await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])
        [entry] = await runs.client.zrange(control_key(runs, Key.DEAD), 0, -1)
        async with nothing_changed(runs):
            for known in ((), ("other",), (record.saved_id, "other")):
                call = Condemn((entry.decode(),), known)
                refused = await send_plain(store.buffer.session, call)
                assert isinstance(refused, Refusal)
                assert "CHECKPOINTS_MOVED" == refused.code
        knowing = Condemn((entry.decode(),), (record.saved_id,))
        assert (0, []) == await send_plain(store.buffer.session, knowing)
