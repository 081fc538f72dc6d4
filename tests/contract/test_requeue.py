"""Giving claims back: ready again at the old place, and past a number of failures set apart."""

from __future__ import annotations

import pytest

from redis_replay import GroupState, InOrderSamplerConfig, Rule, Selection, create_sampler
from redis_replay.errors import ClaimMismatch, StaleOwner, UnknownGroup, WrongState
from tests.contract.keyspace import collected, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_a_requeued_group_is_ready_at_its_old_place_with_its_old_versions(runs: Runs) -> None:
    async with runs.open() as store:
        ids = [await commit_ready(store, weight, target_step=weight) for weight in (2, 1, 3)]
        before = await store.buffer.slots()
        await store.buffer.claim_for_training([ids[2], ids[1], ids[0]])
        claimed = await store.buffer.slots()
        assert 3 == await store.buffer.requeue([ids[1], ids[2], ids[0]])
        after = await store.buffer.slots()
        for old, held, new in zip(before, claimed, after, strict=True):
            assert (old.group_id, old.order, old.payload_fence) == (
                *(new.group_id, new.order),
                new.payload_fence,
            )
            assert (GroupState.READY, old.start_weight_version, old.target_step) == (
                *(new.state, new.start_weight_version),
                new.target_step,
            )
            assert (None, None, 0) == (new.owner, new.batch, new.training_requeues)
            assert old.fence < held.fence < new.fence
        assert 3 == (await store.stats()).requeued


async def test_the_group_that_was_given_back_is_selected_first_again(runs: Runs) -> None:
    async with runs.open() as store:
        ids = [await commit_ready(store, 0) for _ in range(3)]
        await store.buffer.claim_for_training(ids[:1])
        await store.buffer.requeue(ids[:1])
        meta, _ = await store.buffer.claim(Selection(Rule.ARRIVAL, 0, 9, 1, 3))
        assert meta is not None
        assert ids == meta.extra_info["group_ids"]


async def test_the_groups_of_a_batch_that_were_kept_are_still_one_claim(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(3)]
        await trainer.buffer.claim_for_training(ids)
        batch = trainer.batches
        assert 1 == await trainer.buffer.requeue([ids[1]])
        assert batch == trainer.batches
        assert (ids[0], ids[2]) == (await trainer.commit_step(0)).trained
        assert [ids[1]] == [slot.group_id for slot in await store.buffer.slots()]


async def test_when_all_groups_of_a_batch_are_back_there_is_no_claim_left(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(2)]
        await trainer.buffer.claim_for_training(ids)
        assert 2 == await trainer.requeue()
        assert () == trainer.batches
        with pytest.raises(ClaimMismatch, match="no claims"):
            await trainer.commit_step(0)
        assert 0 == await trainer.requeue()


async def test_an_old_claim_settles_nothing_after_its_groups_were_claimed_anew(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as second, second.trainer(owner="b") as other:
        group_id = await commit_ready(store, 0)
        await store.buffer.claim_for_training([group_id])
        await store.buffer.requeue([group_id])
        await other.buffer.claim_for_training([group_id])
        async with nothing_changed(runs):
            for verb in (store.buffer.release_training_claims, store.buffer.requeue):
                with pytest.raises(ClaimMismatch) as refused:
                    await verb([group_id])
                assert (group_id,) == refused.value.unknown
        assert (group_id,) == (await other.commit_step(0)).trained


@pytest.mark.parametrize("state", ["absent", "reserved", "ready", "foreign"])
async def test_if_one_named_group_is_not_a_claim_of_the_session_none_comes_back(
    runs: Runs, state: str
) -> None:
    async with runs.open() as store, runs.open() as other:
        good = await commit_ready(store, 0)
        await store.buffer.claim_for_training([good])
        bad = "ghost"
        if state == "reserved":
            bad = (await store.buffer.reserve(0)).group_id
        elif state != "absent":
            bad = await commit_ready(store, 0)
        if state == "foreign":
            await other.buffer.claim_for_training([bad])
        expected = {"absent": UnknownGroup, "foreign": ClaimMismatch}.get(state, WrongState)
        async with nothing_changed(runs):
            with pytest.raises(expected) as refused:
                await store.buffer.requeue([good, bad])
        if state == "foreign":
            assert (bad,) == getattr(refused.value, "unknown", None)
        else:
            assert bad == getattr(refused.value, "group_id", None)
        assert [good] == await store.buffer.training_owned_group_ids()


async def test_a_failed_step_counts_against_each_of_its_groups(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(2)]
        await trainer.buffer.claim_for_training(ids)
        assert 2 == await trainer.abort_step()
        assert [1, 1] == [slot.training_requeues for slot in await store.buffer.slots()]
        await trainer.buffer.claim_for_training(ids[:1])
        await trainer.requeue()
        assert [1, 1] == [slot.training_requeues for slot in await store.buffer.slots()]
        assert 0 == (await store.stats()).trainer_version


async def test_a_group_that_fails_too_often_is_set_apart_and_gives_its_place_back(
    runs: Runs,
) -> None:
    async with runs.open(max_requeues=2) as store, store.trainer(owner="job") as trainer:
        poison = await commit_ready(store, 0, group_id="poison")
        other = await commit_ready(store, 0)
        for _ in range(2):
            await trainer.buffer.claim_for_training([poison])
            await trainer.abort_step()
        assert 0 == (await store.stats()).quarantined
        await trainer.buffer.claim_for_training([poison])
        await trainer.abort_step()
        stats = await store.stats()
        assert (1, 1, 0, 1) == (stats.quarantined, stats.ready, stats.claimed, stats.occupancy)
        [slot, _] = await store.buffer.slots()
        assert ("poison", GroupState.QUARANTINED, 3) == (
            *(slot.group_id, slot.state),
            slot.training_requeues,
        )
        meta, _ = await trainer.buffer.claim(Selection(Rule.ARRIVAL, 0, 9, 1, 9))
        assert meta is not None
        assert [other] == meta.extra_info["group_ids"]
        async with nothing_changed(runs):
            with pytest.raises(WrongState) as refused:
                await trainer.buffer.claim_for_training([poison])
        assert "quarantined" == refused.value.state


async def test_a_quarantined_group_can_be_read_and_removed(runs: Runs) -> None:
    async with runs.open(max_requeues=1) as store, store.trainer(owner="job") as trainer:
        group_id = await commit_ready(store, 7)
        for _ in range(2):
            await trainer.buffer.claim_for_training([group_id])
            await trainer.abort_step()
        [row] = await store.samples.get_samples([f"{group_id}_g1"])
        assert 8.0 == row["reward"]
        assert 1 == await store.buffer.remove([group_id])
        stats = await store.stats()
        assert (0, 1) == (stats.quarantined, stats.removed)
    assert [] == await runs.payload_keys()


async def test_written_columns_end_with_the_claim(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        group_id = await commit_ready(store, 0)
        await trainer.buffer.claim_for_training([group_id])
        await trainer.samples.put_samples([f"{group_id}_g0"], fields={"advantage": [0.5]})
        assert 2 == len(await runs.payload_keys())
        await trainer.requeue()
        await collected(store)
        assert 1 == len(await runs.payload_keys())
        [row] = await store.samples.get_samples([f"{group_id}_g0"])
        assert ["input_ids", "reward"] == list(row)


async def test_what_one_step_did_to_tags_and_metrics_is_not_in_the_next(runs: Runs) -> None:
    async with runs.open() as store:
        made = await store.buffer.reserve(0)
        await store.buffer.commit(
            made.group_id,
            rows(),
            start_weight_version=0,
            end_weight_version=0,
            tags=[{"turns": [1, 2], "of": {"task": ["a"]}}, {"turns": [3], "of": {}}],
            rollout_metrics={"histogram": [4, 5]},
        )
        first = await store.buffer.claim_for_training([made.group_id])
        assert first.tags is not None
        first.tags[0]["turns"].append(6)
        first.tags[0]["of"]["task"].clear()
        first.extra_info["rollout_metrics"][0]["histogram"].append(7)
        await store.buffer.requeue([made.group_id])
        again = await store.buffer.claim_for_training([made.group_id])
        assert again.tags is not None
        assert [[1, 2], [3]] == [tag["turns"] for tag in again.tags]
        assert [{"task": ["a"]}, {}] == [tag["of"] for tag in again.tags]
        assert [{"histogram": [4, 5]}] == again.extra_info["rollout_metrics"]


async def test_a_replaced_trainer_gives_nothing_back(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="job") as older:
        group_id = await commit_ready(store, 0)
        await older.buffer.claim_for_training([group_id])
        async with other.trainer(owner="job") as newer:
            await newer.buffer.claim_for_training([group_id])
            async with nothing_changed(runs):
                with pytest.raises(StaleOwner):
                    await older.requeue()
                with pytest.raises(StaleOwner):
                    await older.abort_step()


async def test_a_requeued_group_of_a_passed_step_is_dropped_by_the_next_eviction(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=1))
        ids = [await commit_ready(store, 0, target_step=0) for _ in range(2)]
        await sampler.select(current_train_weight=0, min_prompt_groups=2, max_prompt_groups=2)
        await trainer.buffer.requeue(ids[:1])
        await trainer.commit_step(0)
        selected = await sampler.select(
            current_train_weight=1, min_prompt_groups=1, max_prompt_groups=2
        )
        assert (None, 0) == selected
        assert 1 == await sampler.evict(current_train_weight=1)
