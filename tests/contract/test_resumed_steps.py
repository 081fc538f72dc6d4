"""Steps that a trainer left in the middle, and runs that ended early: what the next one finds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest

from redis_replay import GroupState, InOrderSampler, ReplayStore, TrainerSession
from redis_replay.errors import ClaimLost, StoreClosed
from tests.contract.waits import Waits
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

CLOSE_SECONDS = 1.0


async def commit_reserved(place: Any, group_id: str, *, value: float = 0.0) -> None:
    """Commit a group that a session has reserved with the weights of version 0."""
    await place.buffer.commit(group_id, rows(value), start_weight_version=0, end_weight_version=0)


async def take(trainer: TrainerSession, step: int, *, most: int) -> list[str]:
    """Claim what is there for a step and return the groups."""
    sampler = InOrderSampler(trainer.buffer, max_lookahead_versions=1)
    meta, _ = await sampler.select(
        current_train_weight=step, min_prompt_groups=1, max_prompt_groups=most
    )
    return [] if meta is None else list(meta.extra_info["group_ids"])


async def test_a_step_resumed_with_another_number_of_ranks_has_the_same_rows(runs: Runs) -> None:
    async with runs.open(group_size=4, groups_per_step=2) as store:
        for at in range(2):
            made = await store.buffer.reserve(0, group_id=f"g{at}", target_step=0)
            await store.buffer.commit(
                made.group_id, rows(10 * at, size=4), start_weight_version=0, end_weight_version=0
            )
        whole = [f"g{group}_g{row}" for group in range(2) for row in range(4)]
        for world, shares in ((4, 2), (3, None), (6, None), (2, 4)):
            async with store.trainer(owner="job", world=world) as trainer:
                assert ["g0", "g1"] == await take(trainer, 0, most=2)
                [batch] = trainer.batches
                read: list[str] = []
                for at in range(world):
                    rank = store.trainer_rank(owner="job", epoch=trainer.epoch, rank=at)
                    if shares is None:
                        with pytest.raises(ValueError, match=f"8 rows, .* by {world} ranks"):
                            await rank.read_slice(batch)
                        continue
                    part = await rank.read_slice(batch)
                    assert shares == part.size
                    read += part.sample_ids
                    await rank.acknowledge(batch)
                assert read == ([] if shares is None else whole)
                if world == 2:
                    assert ("g0", "g1") == (await trainer.commit_step(0)).trained


async def test_a_streamed_step_that_was_cut_off_is_trained_whole_by_the_next_session(
    runs: Runs,
) -> None:
    async with (
        runs.open(groups_per_step=4, capacity=8) as store,
        store.rollout(owner="host") as host,
    ):
        await store.publish_trainer_version(8)
        for name in ("a", "b", "c", "d"):
            await host.buffer.reserve(0, group_id=name, target_step=8)
        for at, name in enumerate(("a", "b", "c")):
            await commit_reserved(host, name, value=at)
        killed = store.trainer(owner="job")
        await killed.__aenter__()
        assert ["a", "b"] == await take(killed, 8, most=2)
        sampler = InOrderSampler(killed.buffer, max_lookahead_versions=1)
        assert 0 == await sampler.evict(current_train_weight=8)
        assert 4 == await store.buffer.size()

        async with store.trainer(owner="job") as trainer:
            assert 4 == await store.buffer.size()
            slots = await store.buffer.slots()
            assert [8] * 4 == [slot.target_step for slot in slots]
            states = [slot.state for slot in slots]
            assert [GroupState.READY] * 3 + [GroupState.RESERVED] == states
            with pytest.raises(ClaimLost):
                await killed.commit_step(8)
            trained: list[str] = []
            for most in (2, 1):
                trained += await take(trainer, 8, most=most)
            await commit_reserved(host, "d", value=3)
            trained += await take(trainer, 8, most=4)
            assert ["a", "b", "c", "d"] == trained
            stored = await trainer.samples.get_samples([f"{name}_g0" for name in trained])
            assert [0.0, 1.0, 2.0, 3.0] == [row["reward"] for row in stored]
            evicting = InOrderSampler(trainer.buffer, max_lookahead_versions=1)
            assert 0 == await evicting.evict(current_train_weight=9)
            assert tuple(trained) == (await trainer.commit_step(8)).trained
        assert (9, 0) == (store.trainer_version, await store.buffer.size())


async def blocked_until_closed(call: Callable[[], Awaitable[object]], told: list[str]) -> None:
    """Make a call that waits, and note that the store's end ended it."""
    with pytest.raises(StoreClosed):
        await call()
    told.append("closed")


async def dispatch(store: ReplayStore, steps: range) -> None:
    """Admit the batches of steps and reserve their two groups each."""
    sampler = InOrderSampler(store.buffer, max_lookahead_versions=2)
    for step in steps:
        async with store.mutation() as cut:
            await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
            assert step == sampler.commit_admission(cut)
            for at in range(2):
                cut.reserve(0, group_id=f"g{step}-{at}", target_step=step)


async def train_five_steps(store: ReplayStore) -> None:
    """Dispatch, generate and train steps 0 to 4, then dispatch three batches and finish four
    groups of theirs."""
    async with store.trainer(owner="job") as trainer:
        for step in range(5):
            await dispatch(store, range(step, step + 1))
            for at in range(2):
                await commit_reserved(store, f"g{step}-{at}")
            assert 2 == len(await take(trainer, step, most=2))
            await trainer.commit_step(step)
    await dispatch(store, range(5, 8))
    for name in ("g5-0", "g5-1", "g6-0", "g7-1"):
        await commit_reserved(store, name)


async def test_a_run_that_ends_early_leaves_its_batches_to_the_next(runs: Runs) -> None:
    options = {"capacity": 6, "groups_per_step": 2}
    told: list[str] = []
    async with anyio.create_task_group() as tasks:
        async with runs.open(**options) as store:
            await train_five_steps(store)
            sampler = InOrderSampler(store.buffer, max_lookahead_versions=2)
            admit = partial(sampler.admit, trainer_version_fn=lambda: 5)
            waits = Waits(store)
            for call in (admit, partial(store.buffer.reserve_when_free, 0)):
                tasks.start_soon(blocked_until_closed, call, told)
            await waits.begun(2)
            begun = anyio.current_time()
        assert anyio.current_time() - begun < CLOSE_SECONDS
    assert ["closed", "closed"] == told
    async with runs.open(**options) as store:
        stats = await store.stats()
        assert (7, 4, 2) == (stats.dispatch_index, stats.ready, stats.reserved)
        async with store.trainer(owner="job") as trainer, store.rollout(owner="host") as host:
            for ticket in await host.take_tickets(max_tickets=9, weight_version=5):
                assert ticket.group_id in ("g6-1", "g7-0")
                await host.buffer.commit(
                    ticket.group_id, rows(), start_weight_version=5, end_weight_version=5
                )
            for step in range(5, 8):
                assert [f"g{step}-0", f"g{step}-1"] == await take(trainer, step, most=2)
                await trainer.commit_step(step)
        stats = await store.stats()
        assert (8, 16, 0) == (stats.trainer_version, stats.trained, stats.occupancy)


async def test_a_group_that_was_claimed_when_its_step_passed_is_not_evicted(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        claimed = await commit_ready(store, 0, target_step=0)
        await trainer.buffer.claim_for_training([claimed])
        waiting = await commit_ready(store, 0, target_step=0)
        sampler = InOrderSampler(trainer.buffer, max_lookahead_versions=1)
        assert 1 == await sampler.evict(current_train_weight=1)
        assert [claimed] == [slot.group_id for slot in await store.buffer.slots()]
        assert waiting != claimed
        [row] = await trainer.samples.get_samples([f"{claimed}_g0"])
        assert 0.0 == row["reward"]
