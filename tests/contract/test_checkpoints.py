"""Checkpoints: what they hold, what they keep alive, what dropping them frees."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay import InOrderSamplerConfig, ReplayStore, create_sampler
from redis_replay.errors import (
    CheckpointExists,
    CheckpointMissing,
    StepMismatch,
)
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
        info = await store.checkpoints.create("first", extra={"model": "a.npz"}, pin=True)
        assert {"reserved": 1, "ready": 1, "claimed": 0, "quarantined": 0} == dict(info.groups)
        assert ("first", 0, -1, True) == (info.name, info.step, info.dispatch_index, info.pinned)
        assert {"model": "a.npz"} == info.extra
        assert 16 == len(info.digest)
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
