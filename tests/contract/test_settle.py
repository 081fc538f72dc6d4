"""Settling: a step's claims are consumed and the trainer version rises, in one script."""

from __future__ import annotations

import pytest

from redis_replay import InOrderSamplerConfig, WindowedSamplerConfig, create_sampler
from redis_replay._redis.scripts import Settle
from redis_replay.errors import (
    ClaimMismatch,
    StaleOwner,
    StepMismatch,
    UnknownGroup,
)
from tests.contract.keyspace import attached, collected, nothing_changed, send
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_a_step_consumes_its_claims_and_raises_the_version_by_one(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(3)]
        await trainer.buffer.claim_for_training(ids[:2])
        commit = await trainer.commit_step(0)
        assert (0, tuple(ids[:2]), 0) == (commit.step, commit.trained, commit.aborted)
        stats = await store.stats()
        assert (1, 2, 1, 1) == (stats.trainer_version, stats.trained, stats.ready, stats.occupancy)
        assert {"trained:trained": 2} == stats.ends
        await collected(store)
        assert 1 == len(await runs.payload_keys())
        assert 1 == trainer.trainer_version


async def test_a_step_that_is_repeated_gives_its_first_answer(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(2)]
        await trainer.buffer.claim_for_training(ids)
        batches = trainer.batches
        first = await trainer.commit_step(0)
        await collected(store)
        trainer.buffer.claims.batches = list(batches)
        async with nothing_changed(runs):
            assert first == await trainer.commit_step(0)


async def test_another_session_that_names_the_batch_gets_the_same_answer(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        group_id = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([group_id])
        [batch] = trainer.batches
        await trainer.commit_step(0)
        await collected(store)
        call = Settle(step=0, exact=0, empty=0, batches=(batch,), group_ids=())
        await attached(store)
        async with nothing_changed(runs):
            reply = await send(store.buffer.session, call, number=1600)
        assert (0, (group_id,)) == reply


async def test_a_step_that_was_trained_is_not_answered_to_who_holds_other_claims(
    runs: Runs,
) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        store.trainer(owner="a") as trainer,
        second.trainer(owner="b") as late,
    ):
        ids = [await commit_ready(store, 0) for _ in range(2)]
        await trainer.buffer.claim_for_training(ids[:1])
        await late.buffer.claim_for_training(ids[1:])
        await trainer.commit_step(0)
        await collected(store)
        async with nothing_changed(runs):
            with pytest.raises(StepMismatch):
                await late.commit_step(0)
        assert (ids[1],) == (await late.commit_step(1)).trained
        with pytest.raises(StepMismatch):
            await late.commit_step(0)


@pytest.mark.parametrize("step", [0, 2, 7])
async def test_a_step_that_is_not_the_trainer_version_is_refused(runs: Runs, step: int) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await store.publish_trainer_version(1)
        group_id = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([group_id])
        async with nothing_changed(runs):
            with pytest.raises(StepMismatch, match=f"step {step} .* version is 1") as refused:
                await trainer.commit_step(step)
            with pytest.raises(StepMismatch):
                await trainer.skip_step(step)
        assert (step, 1) == (refused.value.step, refused.value.trainer_version)
        assert (group_id,) == (await trainer.commit_step(1)).trained


@pytest.mark.parametrize("step", [-1, 2**53, "0", True])
async def test_a_step_that_is_no_version_is_refused_at_the_door(runs: Runs, step: object) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer, nothing_changed(runs):
        with pytest.raises((ValueError, TypeError), match="step"):
            await trainer.commit_step(step)  # type: ignore[arg-type]


async def test_an_empty_step_is_refused_unless_it_is_skipped_on_purpose(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_ready(store, 0)
        async with nothing_changed(runs):
            with pytest.raises(ClaimMismatch, match="skip_step"):
                await trainer.commit_step(0)
        skipped = await trainer.skip_step(0)
        assert (0, (), 0) == (skipped.step, skipped.trained, skipped.aborted)
        stats = await store.stats()
        assert (1, 1, 0) == (stats.trainer_version, stats.ready, stats.trained)


async def test_a_step_never_settles_claims_that_its_trainer_has_not_seen(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(2)]
        await trainer.buffer.claim_for_training(ids[:1])
        await trainer.buffer.claim_for_training(ids[1:])
        seen = trainer.buffer.claims.batches.pop()
        async with nothing_changed(runs):
            with pytest.raises(ClaimMismatch) as refused:
                await trainer.commit_step(0)
        assert ((), (ids[1],)) == (refused.value.unknown, refused.value.missing)
        trainer.buffer.claims.batches.append(seen)
        assert tuple(ids) == (await trainer.commit_step(0)).trained


async def test_a_replaced_trainer_settles_nothing(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="job") as older:
        group_id = await commit_ready(store, 0)
        await older.buffer.claim_for_training([group_id])
        async with other.trainer(owner="job") as newer:
            async with nothing_changed(runs):
                with pytest.raises(StaleOwner):
                    await older.commit_step(0)
            await newer.buffer.claim_for_training([group_id])
            assert (group_id,) == (await newer.commit_step(0)).trained
            await collected(other)
            async with nothing_changed(runs):
                with pytest.raises(StaleOwner):
                    await older.commit_step(0)


async def test_releasing_consumes_exactly_the_named_claims(runs: Runs) -> None:
    async with runs.open() as store:
        ids = [await commit_ready(store, 0) for _ in range(3)]
        await store.buffer.claim_for_training(ids[:2])
        await store.buffer.release_training_claims([ids[1], ids[0]])
        stats = await store.stats()
        assert (2, 1, 0, 0) == (stats.trained, stats.ready, stats.claimed, stats.trainer_version)
        assert () == tuple(store.buffer.claims.batches)


@pytest.mark.parametrize(
    ("named", "unknown", "missing"),
    [
        (["a"], (), ("b",)),
        (["a", "b", "c"], ("c",), ()),
        (["a", "ghost"], ("ghost",), ("b",)),
        (["c", "ghost"], ("c", "ghost"), ("a", "b")),
    ],
)
async def test_releasing_names_every_unknown_and_every_missing_claim(
    runs: Runs, named: list[str], unknown: tuple[str, ...], missing: tuple[str, ...]
) -> None:
    async with runs.open() as store:
        for group_id in ("a", "b", "c"):
            await commit_ready(store, 0, group_id=group_id)
        await store.buffer.claim_for_training(["a", "b"])
        async with nothing_changed(runs):
            with pytest.raises(ClaimMismatch, match="nothing was changed") as refused:
                await store.buffer.release_training_claims(named)
        assert (unknown, missing) == (refused.value.unknown, refused.value.missing)
        await store.buffer.release_training_claims(["a", "b"])


async def test_a_released_claim_cannot_be_released_again(runs: Runs) -> None:
    async with runs.open() as store:
        group_id = await commit_ready(store, 0)
        await store.buffer.claim_for_training([group_id])
        await store.buffer.release_training_claims([group_id])
        await collected(store)
        async with nothing_changed(runs):
            with pytest.raises(ClaimMismatch) as refused:
                await store.buffer.release_training_claims([group_id])
        assert (group_id,) == refused.value.unknown


async def test_in_order_aborts_late_reservations_when_their_step_closes(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=1))
        await sampler.select(current_train_weight=0, min_prompt_groups=1, max_prompt_groups=1)
        sampler.set_dispatch_index(2)
        await sampler.flush()
        await store.publish_trainer_version(1)
        for group_id, target in (("passed", 0), ("now", 1), ("ahead", 2)):
            await store.buffer.reserve(0, group_id=group_id, target_step=target)
        ready = await commit_ready(store, 0, target_step=1)
        await trainer.buffer.claim_for_training([ready])
        closed = await trainer.commit_step(1)
        assert (2, (ready,)) == (closed.aborted, closed.trained)
        assert ["ahead"] == [slot.group_id for slot in await store.buffer.slots()]
        stats = await store.stats()
        assert (2, 0, 1) == (stats.aborted, stats.evicted, stats.occupancy)
        assert 2 == stats.ends["aborted:stale"]
        await collected(store)
        async with nothing_changed(runs):
            for group_id in ("passed", "now"):
                with pytest.raises(UnknownGroup):
                    await store.buffer.commit(
                        group_id, rows(), start_weight_version=0, end_weight_version=0
                    )


async def test_other_policies_leave_reservations_of_passed_steps_alone(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, WindowedSamplerConfig())
        await sampler.evict(current_train_weight=0)
        await store.buffer.reserve(0, group_id="slow", target_step=0)
        assert 0 == (await trainer.skip_step(0)).aborted
        assert 1 == await store.buffer.size()


@pytest.mark.parametrize("closing", ["settled", "published"])
async def test_a_rollout_that_returns_after_its_step_is_never_trained(
    runs: Runs, closing: str
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=1))
        sampler.set_dispatch_index(4)
        await sampler.flush()
        await store.publish_trainer_version(3)
        before = (await store.stats()).occupancy
        await store.buffer.reserve(3, group_id="x", target_step=3)
        if closing == "settled":
            assert 1 == (await trainer.skip_step(3)).aborted
            await trainer.skip_step(4)
        else:
            await store.publish_trainer_version(5)
        assert 0 == await sampler.evict(current_train_weight=5)
        if closing == "settled":
            with pytest.raises(UnknownGroup):
                await store.buffer.commit("x", rows(), start_weight_version=3, end_weight_version=3)
        else:
            await store.buffer.commit("x", rows(), start_weight_version=3, end_weight_version=3)
        selected = await sampler.select(
            current_train_weight=5, min_prompt_groups=1, max_prompt_groups=4
        )
        assert (None, 0) == selected
        dropped = await sampler.evict(current_train_weight=5)
        assert (0 if closing == "settled" else 1) == dropped
        assert 0 == await sampler.evict(current_train_weight=5)
        assert before == (await store.stats()).occupancy
        assert 0 == await store.buffer.count_for_target_step(3)
    assert [] == await runs.payload_keys()
