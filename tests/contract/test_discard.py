"""The end of a store: what it leaves is said, and a run that is not wanted any more is deleted."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from redis_replay import ReplayStore
from redis_replay._redis.checkpoint_scripts import Discard
from redis_replay._redis.lua import load_script
from redis_replay.errors import RunInUse, StoreClosed, StoreMissing, StoreUnavailable
from tests.contract.interruptions import Break, Interruption
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def deleted_runs(runs: Runs) -> None:
    """Do not audit runs that are not there any more."""
    runs.audited = False


async def know_the_script(runs: Runs) -> None:
    """Have the server know the script, so that it is applied by the second exchange of a discard.

    The first reads which checkpoints there are, the next ones list payload and free it.
    """
    await runs.client.script_load(load_script(Discard).text)


async def fill(store: ReplayStore) -> None:
    """Bring groups into several states, one of them over several keys, with two checkpoints."""
    for number in range(3):
        await commit_ready(store, 0, group_id=f"g{number}")
    await store.buffer.reserve(0, group_id="r", prompt_ref=b"p")
    await store.checkpoints.create("one", pin=True)
    await store.buffer.claim_for_training(["g0"])
    await store.samples.put_samples(["g0_g0"], fields={"x": [1]})
    await store.buffer.remove_group("g1")
    await store.checkpoints.create("two")


@pytest.mark.parametrize("sessions", ["implicit", "named"])
async def test_a_run_that_is_discarded_leaves_no_key(runs: Runs, sessions: str) -> None:
    async with runs.open() as store:
        await fill(store)
        if sessions == "named":
            host = await store.rollout(owner="host").__aenter__()
            await host.buffer.reserve(0)
        await store.discard()
        assert [] == await runs.keys()
        with pytest.raises(StoreClosed):
            await store.stats()


async def test_a_run_is_discarded_on_exit_where_it_was_asked_for(runs: Runs) -> None:
    async with runs.open(discard_on_exit=True) as store:
        await fill(store)
    assert [] == await runs.keys()
    async with runs.open(create=True) as store:
        assert store.run.created


async def test_a_run_whose_block_failed_is_kept(runs: Runs) -> None:
    async def fail() -> None:
        async with runs.open(discard_on_exit=True) as store:
            await fill(store)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with runs.open(create=False) as store:
        assert 2 == (await store.stats()).ready


async def test_a_run_that_others_work_on_is_kept_unless_forced(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs.open() as other, other.rollout(owner="elsewhere") as host:
        slot = await host.buffer.reserve(0)
        async with runs.open(discard_on_exit=True) as store:
            before = await runs.keys()
            with pytest.raises(RunInUse, match="the rollout session 'elsewhere' works on the run"):
                await store.discard()
            assert before == await runs.keys()
            await store.buffer.reserve(0)  # the store goes on
        assert "works on the run" in caplog.text
        async with runs.open() as store:
            await store.discard(force=True)
        assert [] == await runs.keys()
        with pytest.raises(StoreMissing):
            await host.buffer.commit(
                slot.group_id, rows(), start_weight_version=0, end_weight_version=0
            )
        assert [] == await runs.payload_keys()


async def test_a_deletion_whose_answer_was_lost_is_finished(runs: Runs) -> None:
    async with runs.open() as store:
        await fill(store)
        await know_the_script(runs)
        link: Any = store.buffer.session.link
        exchanges = Interruption(store, at=2, kind=Break.NO_REPLY)
        await store.discard()
        exchanges.end()
        assert (True, True) == (exchanges.struck, link.closed)
        assert [] == await runs.keys()


@pytest.mark.parametrize(
    ("at", "kind"), [(2, Break.DOWN_NO_REPLY), (3, Break.DOWN_NOT_SENT), (4, Break.DOWN_NOT_SENT)]
)
async def test_payload_that_a_discard_left_is_freed_by_the_orphan_search_of_a_run_of_its_name(
    runs: Runs, at: int, kind: Break
) -> None:
    async with runs.open() as store:
        await fill(store)
        stored = await runs.payload_keys()
        await know_the_script(runs)
        exchanges = Interruption(store, at=at, kind=kind)
        with pytest.raises(StoreUnavailable):
            await store.discard()
        exchanges.end()
    left = await runs.payload_keys()
    assert left == await runs.keys()
    assert stored == left
    async with runs.open(create=True) as store:
        group_id = await commit_ready(store, 7, group_id="of the next run")
        assert [] == await store.find_orphans()
        assert sorted(left) == await store.find_orphans()
        [row] = await store.samples.get_samples([f"{group_id}_g0"])
        assert 7 == row["reward"]
        await store.buffer.remove_group(group_id)
    assert [] == await runs.payload_keys()


async def test_a_checkpoint_that_is_made_meanwhile_is_deleted_too(runs: Runs) -> None:
    async with runs.open() as other, runs.open() as store:
        await fill(store)

        async def make_one() -> None:
            await other.checkpoints.create("three")

        read = Interruption(store, at=1, kind=Break.CANCELLED_AFTER, meanwhile=make_one)
        await store.discard()
        assert read.struck
        assert [] == await runs.keys()


async def test_closing_says_what_is_left(runs: Runs, caplog: pytest.LogCaptureFixture) -> None:
    runs.audited = True
    caplog.set_level(logging.INFO, "redis_replay.ending")
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        for number in range(4):
            await commit_ready(store, 0, group_id=f"g{number}")
        await trainer.buffer.claim_for_training(["g0"])
        for _ in range(2):
            await store.buffer.reserve(0)
    assert "at step 0 with 4 groups ready, 2 in flight and 0 claimed" in caplog.text
