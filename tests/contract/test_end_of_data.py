"""The end of the data: said in a cut, kept over restarts, and told to who waits for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from redis_replay import RolloutSession, TrainerSession, create_sampler
from redis_replay.end_of_data import Tail
from redis_replay.errors import DataExhausted
from tests.contract.waits import Waits
from tests.harness import Runs, rows

pytestmark = pytest.mark.anyio

PROMPTS = 5
PER_STEP = 2
POLICIES = {
    "in_order": {"name": "in_order"},
    "ready_first": {"name": "ready_first"},
    "windowed": {"name": "windowed", "max_staleness_versions": 3},
    "weight_fifo": {"name": "weight_fifo", "max_staleness_versions": 3},
}
WAKES_WITHIN_SECONDS = 0.8
"""Less than the second after which a waiter looks again by itself."""


async def dispatch(
    rollout: RolloutSession, *, prompts: int = PROMPTS, policy: str = "in_order"
) -> list[str]:
    """Dispatch the next batch of the one epoch in a cut that says whether it is the last."""
    sampler: Any = create_sampler(rollout.buffer, POLICIES[policy])
    await sampler.wait_until_admissible(trainer_version_fn=lambda: 10)
    async with rollout.mutation() as cut:
        first = int(cut.loader_state or b"0")
        assert not cut.is_exhausted
        target = sampler.commit_admission(cut)
        stop = min(first + PER_STEP, prompts)
        for prompt in range(first, stop):
            cut.reserve(0, target_step=target, group_id=f"p{prompt}", prompt_ref=b"%d" % prompt)
        cut.set_loader_state(b"%d" % stop, exhausted=stop == prompts)
    return [made.group_id for made in cut.reservations]


async def finish(rollout: RolloutSession, group_ids: Sequence[str]) -> None:
    """Commit groups."""
    for group_id in group_ids:
        await rollout.buffer.commit(group_id, rows(), start_weight_version=0, end_weight_version=0)


async def take(trainer: TrainerSession, policy: str = "in_order") -> list[str]:
    """Wait for a batch, and return its groups."""
    sampler = create_sampler(trainer.buffer, POLICIES[policy])
    with anyio.fail_after(5):
        meta, _ = await trainer.select(
            sampler, min_prompt_groups=PER_STEP, max_prompt_groups=PER_STEP
        )
    return list(meta.extra_info["group_ids"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("tail", ["train", "drop"])
async def test_a_run_of_one_epoch_trains_its_tail_or_says_that_it_is_left(
    runs: Runs, policy: str, tail: Tail
) -> None:
    options = {"groups_per_step": PER_STEP, "capacity": 16}
    async with (
        runs.open(**options) as store,
        store.rollout(owner="host") as rollout,
        store.trainer(owner="job", tail=tail) as trainer,
    ):
        for _ in range(3):
            await finish(rollout, await dispatch(rollout, policy=policy))
        steps = {
            "train": [["p0", "p1"], ["p2", "p3"], ["p4"]],
            "drop": [["p0", "p1"], ["p2", "p3"]],
        }
        for step, expected in enumerate(steps[tail]):
            assert expected == await take(trainer, policy)
            await trainer.commit_step(step)
        left = {"train": 0, "drop": 1}[tail]
        with pytest.raises(DataExhausted, match=f"{left} ready groups are no batch") as told:
            await take(trainer, policy)
        assert (left, left) == (told.value.left_over, (await store.stats()).ready)


async def test_a_dataset_smaller_than_a_batch_is_trained_once(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=PER_STEP) as store,
        store.rollout(owner="host") as rollout,
        store.trainer(owner="job") as trainer,
    ):
        await finish(rollout, await dispatch(rollout, prompts=1))
        assert ["p0"] == await take(trainer)
        await trainer.commit_step(0)
        with pytest.raises(DataExhausted, match="0 ready groups"):
            await take(trainer)


async def test_a_trainer_that_waits_is_told_at_once(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=PER_STEP) as store,
        store.rollout(owner="host") as rollout,
        store.trainer(owner="job", tail="drop") as trainer,
        anyio.create_task_group() as tasks,
    ):
        sampler: Any = create_sampler(rollout.buffer, POLICIES["in_order"])
        await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
        async with rollout.mutation() as cut:
            cut.reserve(0, target_step=sampler.commit_admission(cut), group_id="p0")
        await finish(rollout, ["p0"])
        waits, ended = Waits(store), list[float]()

        async def end_the_data() -> None:
            await waits.begun()
            async with rollout.mutation() as last:
                last.set_loader_state(b"1", exhausted=True)
            ended.append(anyio.current_time())

        tasks.start_soon(end_the_data)
        with pytest.raises(DataExhausted, match="1 ready groups"):
            await take(trainer)
        assert anyio.current_time() - ended[0] < WAKES_WITHIN_SECONDS


async def test_groups_in_flight_are_waited_for(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=PER_STEP) as store,
        store.rollout(owner="host") as rollout,
        store.trainer(owner="job") as trainer,
        anyio.create_task_group() as tasks,
    ):
        first, second = await dispatch(rollout, prompts=2)
        await finish(rollout, [first])
        waits = Waits(store)

        async def finish_the_last() -> None:
            await waits.begun()
            await finish(rollout, [second])

        tasks.start_soon(finish_the_last)
        assert [first, second] == await take(trainer)


async def test_the_end_is_kept_over_restarts_and_restores_and_may_be_taken_back(runs: Runs) -> None:
    async with runs.open(groups_per_step=PER_STEP) as store, store.rollout(owner="host") as host:
        await finish(host, await dispatch(host, prompts=2))
        await store.checkpoints.create("kept")
        async with host.mutation() as cut:
            assert cut.is_exhausted
            cut.set_loader_state(b"0")  # another epoch
        assert not (await store.resume()).exhausted
        await store.checkpoints.restore("kept")
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        report = await store.resume()
        assert (True, b"2") == (report.exhausted, report.loader_state)
        assert ["p0", "p1"] == await take(trainer)
        await trainer.commit_step(0)
        with pytest.raises(DataExhausted):
            await take(trainer)


async def test_another_dataset_has_an_end_of_its_own(runs: Runs) -> None:
    async with runs.open(dataset="one") as store, store.mutation() as cut:
        cut.set_loader_state(b"9", exhausted=True)
    async with runs.open(dataset="two", new_dataset=True) as store:
        assert not (await store.resume()).exhausted


async def test_a_tail_that_is_neither_trained_nor_dropped_is_refused(runs: Runs) -> None:
    async with runs.open() as store:
        with pytest.raises(ValueError, match="tail must be 'train' or 'drop', got 'keep'"):
            store.trainer(owner="job", tail="keep")
