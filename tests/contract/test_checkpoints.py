"""Checkpoints: what they hold, what they keep alive, what dropping them frees."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay import InOrderSamplerConfig, ReplayStore, create_sampler
from redis_replay._redis.checkpoint_scripts import MarkCheckpoint
from redis_replay._redis.refusals import Refusal
from redis_replay.errors import (
    CheckpointExists,
    CheckpointMissing,
    StepMismatch,
)
from tests.contract.interruptions import Break, Interruption
from tests.contract.job import opened_job
from tests.contract.keyspace import attached, collected, nothing_changed, send_plain
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


async def train_one(store: ReplayStore, step: int, **options: Any) -> str:
    """Commit one group for a step and train it."""
    group_id = await commit_ready(store, step, target_step=step)
    async with store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
        await trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)
        await trainer.commit_step(step, **options)
    return group_id


async def test_a_checkpoint_names_what_the_run_holds(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="ready")
        await store.buffer.reserve(0, group_id="reserved")
        extra = {"model": "a.npz", "hash": b"\xff\x00:1"}
        info = await store.checkpoints.create("first", extra=extra, pin=True)
        assert {"reserved": 1, "ready": 1, "claimed": 0, "quarantined": 0} == dict(info.groups)
        assert ("first", 0, -1, True) == (info.name, info.step, info.dispatch_index, info.pinned)
        assert extra == info.extra
        assert 16 == len(info.digest)
        assert (await store.bookmark()).seq == info.seq
        assert [info] == await store.checkpoints.list()
        assert info == await store.checkpoints.show("first")


async def test_a_trained_group_comes_back_until_the_checkpoint_is_dropped(runs: Runs) -> None:
    async with runs.open() as store:
        group_id = await commit_ready(store, 0, target_step=0)
        await store.checkpoints.create("before")
        async with store.trainer(owner="job") as trainer:
            await trainer.buffer.claim_for_training([group_id])
            await trainer.commit_step(0)
        await store.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        report = await store.checkpoints.restore("before")
        assert (1, 0) == (report.ready, report.tickets)
        assert 0 == store.trainer_version
        meta = await store.buffer.claim_for_training([group_id])
        assert 2 == len(await store.samples.get_samples(meta))
        await store.buffer.release_training_claims([group_id])
        await store.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        assert 1 == await store.checkpoints.drop("before")
        assert [] == await runs.payload_keys()
        assert [] == [key for key in await runs.keys() if ":saved:" in key]


async def test_a_step_is_settled_and_kept_in_one_script(runs: Runs) -> None:
    async with runs.open() as store:
        await train_one(store, 0, checkpoint="step-1")
        info = await store.checkpoints.show("step-1")
        assert (1, 1) == (info.step, store.trainer_version)
        assert info.digest
        assert (await store.checkpoints.verify("step-1", deep=True)).is_whole


async def test_retention_drops_the_oldest_that_is_not_pinned(runs: Runs) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("pinned", pin=True)
        for number in range(4):
            await store.checkpoints.create(f"c{number}", keep=2)
        names = [info.name for info in await store.checkpoints.list()]
        assert ["pinned", "c2", "c3"] == names


async def test_a_taken_name_and_a_wrong_step_are_refused(runs: Runs) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("a")
        with pytest.raises(CheckpointExists, match="'a' already"):
            await store.checkpoints.create("a")
        await store.checkpoints.create("a", replace=True)
        with pytest.raises(StepMismatch, match=r"step 3 .* trainer version is 0"):
            await store.checkpoints.create("b", step=3)
        with pytest.raises(CheckpointMissing, match=r"no checkpoint 'b'; it has \['a'\]"):
            await store.checkpoints.show("b")
        assert 1 == len(await store.checkpoints.list())


async def test_a_step_is_settled_although_the_server_goes_away_before_older_ones_are_dropped(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await train_one(store, 0, checkpoint="step-1")
        await commit_ready(store, 1, group_id="g", target_step=1)
        async with store.trainer(owner="job") as trainer:
            await trainer.buffer.claim_for_training(["g"])
            away = Interruption(store, at=2, kind=Break.DOWN_NOT_SENT)
            settled = await trainer.commit_step(1, checkpoint="step-2", keep=1)
            away.end()
            assert (1, ("g",)) == (settled.step, settled.trained)
            assert ["step-1", "step-2"] == [info.name for info in await store.checkpoints.list()]
            assert (await store.checkpoints.verify("step-2", deep=True)).is_whole
            await commit_ready(store, 2, group_id="h", target_step=2)
            await trainer.buffer.claim_for_training(["h"])
            await trainer.commit_step(2, checkpoint="step-3", keep=1)
            assert ["step-3"] == [info.name for info in await store.checkpoints.list()]


@pytest.mark.parametrize("exchange", range(1, 6))
async def test_a_step_whose_caller_is_cancelled_keeps_its_checkpoint_whole(
    runs: Runs, exchange: int
) -> None:
    async with runs.open() as store:
        await train_one(store, 0, checkpoint="step-1")
        await commit_ready(store, 1, group_id="g", target_step=1)
        async with store.trainer(owner="job") as trainer:
            await trainer.buffer.claim_for_training(["g"])
            cancelled = Interruption(store, at=exchange, kind=Break.CANCELLED_AFTER)
            with cancelled.scope:
                await trainer.commit_step(1, checkpoint="step-2", keep=1)
            await collected(store)
            cancelled.end()
            assert 2 == (await store.stats()).trainer_version
            assert "step-2" in [info.name for info in await store.checkpoints.list()]


async def test_a_checkpoint_that_a_first_answer_does_not_have_is_missed(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await trainer.skip_step(0)
        with pytest.raises(CheckpointMissing, match="no checkpoint 'step-1'"):
            await trainer.skip_step(0, checkpoint="step-1")


async def test_a_checkpoint_that_another_host_dropped_at_once_was_created(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        await store.checkpoints.create("known")  # so that the server knows the script

        async def drop() -> None:
            await other.checkpoints.drop("mine")

        made = Interruption(store, at=1, kind=Break.CANCELLED_AFTER, meanwhile=drop)
        assert "" == (await store.checkpoints.create("mine")).digest
        made.end()
        assert ["known"] == [info.name for info in await store.checkpoints.list()]


async def test_a_refused_checkpoint_leaves_its_step_unsettled(runs: Runs) -> None:
    async with runs.open() as store:
        await train_one(store, 0, checkpoint="taken")
        await commit_ready(store, 1, group_id="g", target_step=1)
        async with store.trainer(owner="job") as trainer:
            await trainer.buffer.claim_for_training(["g"])
            async with nothing_changed(runs):
                with pytest.raises(CheckpointExists):
                    await trainer.commit_step(1, checkpoint="taken")
                for options in ({"checkpoint": "a/b"}, {"checkpoint": "a", "keep": 0}):
                    with pytest.raises(ValueError, match=r"name is 1 to 64|keep must be"):
                        await trainer.commit_step(1, **options)  # type: ignore[arg-type]
            assert ("g",) == (await trainer.commit_step(1, checkpoint="free")).trained


async def test_a_checkpoint_of_a_step_holds_what_the_step_left(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, opened_job(store) as job:
        await job.finish(await job.dispatch())
        await job.finish((await job.dispatch())[:1])
        await job.train(0, checkpoint="step-1")
        info = await store.checkpoints.show("step-1")
        assert {"reserved": 1, "ready": 1, "claimed": 0, "quarantined": 0} == dict(info.groups)
        assert (1, 1) == (info.step, info.dispatch_index)
        before = await store.stats()
        assert before.payload_bytes == info.payload_bytes
        await store.publish_trainer_version(7)
        await store.checkpoints.restore("step-1")
        after = await store.stats()
        assert (2, 1, 1) == (after.trained, after.trainer_version, after.dispatch_index)
        assert before.ends == after.ends


async def test_names_from_before_a_restore_are_given_away(runs: Runs) -> None:
    async with runs.open() as store:
        await train_one(store, 0, checkpoint="step-1")
        await train_one(store, 1, checkpoint="step-2")
        await store.checkpoints.restore("step-1")
        await train_one(store, 1, checkpoint="step-2")
        assert ["step-1", "step-2"] == [info.name for info in await store.checkpoints.list()]
        first, second = await store.checkpoints.list()
        assert (1, 2) == (first.store_epoch, second.store_epoch)
        with pytest.raises(CheckpointExists):
            await store.checkpoints.create("step-2")
        assert 2 == len({key.split(":")[4] for key in await runs.keys() if ":saved:" in key})


async def test_pins_are_set_and_taken_and_retention_obeys_them(runs: Runs) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("a")
        await store.checkpoints.create("b", pin=True)
        assert (await store.checkpoints.pin("a")).pinned
        await store.checkpoints.create("c", keep=1)
        assert ["a", "b", "c"] == [info.name for info in await store.checkpoints.list()]
        assert not (await store.checkpoints.unpin("b")).pinned
        await store.checkpoints.create("d", keep=1)
        assert ["a", "d"] == [info.name for info in await store.checkpoints.list()]


async def test_what_cannot_be_kept_is_refused_before_anything_is_sent(runs: Runs) -> None:
    async with runs.open() as store, nothing_changed(runs):
        for name in ("", "a/b", ".hidden", "-x", "ü", "x" * 65, "~a"):
            with pytest.raises(ValueError, match="name is 1 to 64"):
                await store.checkpoints.create(name)
        with pytest.raises(ValueError, match="at most 65536 are kept"):
            await store.checkpoints.create("a", extra=b"x" * 65536)
        with pytest.raises(TypeError, match="extra"):
            await store.checkpoints.create("a", extra=object())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="keep must be"):
            await store.checkpoints.create("a", keep=0)


async def test_a_checkpoint_of_an_empty_run_restores_an_empty_run(runs: Runs) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("empty")
        await commit_ready(store, 0)
        assert (await store.checkpoints.verify("empty", deep=True)).is_whole
        report = await store.checkpoints.restore("empty")
        assert (0, 0, -1) == (report.ready, report.tickets, store.buffer.admission.dispatch_index)
        await store.collect_garbage()
        assert [] == await runs.payload_keys()


async def test_a_mark_does_not_reach_a_checkpoint_that_took_the_name_since(runs: Runs) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("a")
        older = await store.checkpoints.record("a")
        await store.checkpoints.create("a", replace=True)
        await attached(store)
        async with nothing_changed(runs):
            mark = MarkCheckpoint("a", 1, "", "0" * 16, (older.saved_id,))
            refused = await send_plain(store.buffer.session, mark)
        assert isinstance(refused, Refusal)
        assert "NO_CHECKPOINT" == refused.code
