"""Training claims: which session owns which groups, atomically and alone."""

from __future__ import annotations

import random

import anyio
import pytest

from redis_replay import (
    Eviction,
    GroupState,
    KVBatchMeta,
    PromptGroupSampler,
    Rule,
    Selection,
    TrainerSession,
    WindowedSamplerConfig,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import StaleOwner, StoreCorrupted, TooManyClaims, UnknownGroup, WrongState
from tests.contract.keyspace import attached, control_key, nothing_changed
from tests.contract.waits import Waits
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 10.0
"""How long a waiting trainer may go without being woken."""


def pick(minimum: int, maximum: int, *, highest: int = 9) -> Selection:
    """Return a selection in buffer order of all versions up to the highest."""
    return Selection(Rule.BUFFER, 0, highest, minimum, maximum)


async def test_a_claim_passes_ready_groups_to_its_session_in_selection_order(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, weight) for weight in (3, 1, 2)]
        meta, groups = await trainer.buffer.claim(pick(1, 2))
        assert meta is not None
        assert (ids[:2], 2) == (meta.extra_info["group_ids"], groups)
        assert [f"{i}_g{row}" for i in ids[:2] for row in (0, 1)] == meta.sample_ids
        assert [6, 8] == meta.extra_info["lags"]
        assert [3, 3, 3, 3] == meta.sequence_lengths
        assert meta.tags is not None
        assert [3, 3, 1, 1] == [tag["start_weight_version"] for tag in meta.tags]
        slots = await store.buffer.slots()
        assert [("claimed", "job"), ("claimed", "job"), ("ready", None)] == [
            (slot.state, slot.owner) for slot in slots
        ]
        assert (slots[0].batch,) == trainer.batches


async def test_fewer_than_the_minimum_claims_nothing_and_changes_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        assert (None, 0) == await store.buffer.claim(pick(1, 4))
        await commit_ready(store, 0)
        await commit_ready(store, 0)
        async with nothing_changed(runs):
            assert (None, 0) == await store.buffer.claim(pick(3, 4))
        _, groups = await store.buffer.claim(pick(2, 4))
        assert 2 == groups


@pytest.mark.parametrize(
    ("minimum", "maximum", "match"),
    [
        (0, 1, "min_prompt_groups"),
        (-1, 1, "min_prompt_groups"),
        (2, 1, "at least"),
        (1, 1025, "1024"),
    ],
)
async def test_bounds_that_select_nothing_are_refused_before_anything_is_touched(
    runs: Runs, minimum: int, maximum: int, match: str
) -> None:
    async with runs.open() as store:
        sampler = create_sampler(store.buffer, WindowedSamplerConfig())
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=match):
                await sampler.select(
                    current_train_weight=0,
                    min_prompt_groups=minimum,
                    max_prompt_groups=maximum,
                )


async def test_named_groups_are_claimed_in_the_order_given(runs: Runs) -> None:
    async with runs.open() as store:
        ids = [await commit_ready(store, 0) for _ in range(3)]
        meta = await store.buffer.claim_for_training([ids[2], ids[0]])
        assert [ids[2], ids[0]] == meta.extra_info["group_ids"]
        assert "lags" not in meta.extra_info
        assert [ids[0], ids[2]] == await store.buffer.training_owned_group_ids()


@pytest.mark.parametrize("state", ["absent", "reserved", "claimed", "taken"])
async def test_if_one_named_group_is_not_ready_none_is_claimed(runs: Runs, state: str) -> None:
    async with runs.open() as store, runs.open() as other:
        good = await commit_ready(store, 0)
        bad = "ghost"
        if state == "reserved":
            bad = (await store.buffer.reserve(0)).group_id
        elif state != "absent":
            bad = await commit_ready(store, 0)
            await (store if state == "claimed" else other).buffer.claim_for_training([bad])
        async with nothing_changed(runs):
            if state == "absent":
                with pytest.raises(UnknownGroup) as unknown:
                    await store.buffer.claim_for_training([good, bad])
                assert bad == unknown.value.group_id
            else:
                with pytest.raises(WrongState) as wrong:
                    await store.buffer.claim_for_training([good, bad])
                expected = "reserved" if state == "reserved" else "claimed"
                assert (bad, expected) == (wrong.value.group_id, wrong.value.state)


@pytest.mark.parametrize(
    ("ids", "match"),
    [(["a", "b", "a"], r"more than once: \['a'\]"), ([], "0 groups")],
)
async def test_a_list_that_names_nothing_or_one_group_twice_is_refused(
    runs: Runs, ids: list[str], match: str
) -> None:
    async with runs.open() as store:
        for group_id in ("a", "b"):
            await commit_ready(store, 0, group_id=group_id)
        async with nothing_changed(runs):
            for verb in (
                store.buffer.claim_for_training,
                store.buffer.release_training_claims,
                store.buffer.requeue,
                store.buffer.remove,
            ):
                with pytest.raises(ValueError, match=match):
                    await verb(ids)


async def test_more_groups_than_one_call_takes_are_refused(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=r"1025 groups were named; .* 1 to 1024"):
                await store.buffer.claim_for_training([str(at) for at in range(1025)])


async def test_owned_groups_are_those_of_the_session_and_no_other(runs: Runs) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="a") as one,
        store.trainer(owner="b") as other,
    ):
        ids = [await commit_ready(store, 0) for _ in range(4)]
        await one.buffer.claim_for_training([ids[1], ids[0]])
        await other.buffer.claim_for_training([ids[3]])
        assert ids[:2] == await one.buffer.training_owned_group_ids()
        assert [ids[3]] == await other.buffer.training_owned_group_ids()
        assert [] == await store.buffer.training_owned_group_ids()
        metas = await one.buffer.training_owned_replay_groups()
        assert [KVBatchMeta] * 2 == [type(meta) for meta in metas]
        assert [[i] for i in ids[:2]] == [meta.extra_info["group_ids"] for meta in metas]


async def test_claims_of_the_stores_own_session_are_kept_apart_from_a_trainers(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(2)]
        await store.buffer.claim_for_training(ids[:1])
        await trainer.buffer.claim_for_training(ids[1:])
        await trainer.commit_step(0)
        assert ids[:1] == await store.buffer.training_owned_group_ids()


async def test_a_claimed_group_is_nobody_elses_and_is_never_evicted(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        group_id = await commit_ready(store, 0, target_step=0)
        await trainer.buffer.claim_for_training([group_id])
        async with nothing_changed(runs):
            assert (None, 0) == await trainer.buffer.claim(pick(1, 1))
            assert 0 == await store.buffer.evict(Eviction(below=100))
            assert 0 == await store.buffer.evict(Eviction(below=100, by_target_step=True))


async def test_two_trainers_that_select_at_once_never_share_a_group(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        store.trainer(owner="a") as one,
        second.trainer(owner="b") as other,
    ):
        draw = random.Random(8)
        for version in range(1, 11):
            order = [await commit_ready(store, version) for _ in range(6)]
            taken: dict[str, list[str]] = {}

            async def select(
                name: str, trainer: TrainerSession, into: dict[str, list[str]], highest: int
            ) -> None:
                meta, _ = await trainer.buffer.claim(pick(3, 3, highest=highest))
                assert meta is not None
                into[name] = meta.extra_info["group_ids"]

            jobs = [("a", one), ("b", other)]
            draw.shuffle(jobs)
            async with anyio.create_task_group() as tasks:
                for name, trainer in jobs:
                    tasks.start_soon(select, name, trainer, taken, version)
                tasks.start_soon(store.buffer.evict, Eviction(below=version))
                tasks.start_soon(commit_ready, store, version + 1)
            assert sorted(order) == sorted(taken["a"] + taken["b"])
            for ids in taken.values():
                assert ids == [group_id for group_id in order if group_id in ids]
            await one.buffer.release_training_claims(taken["a"])
            await other.buffer.release_training_claims(taken["b"])
            assert 1 == await store.buffer.evict(Eviction(below=version + 2))
        assert 0 == await store.buffer.size()


async def test_a_waiting_trainer_is_woken_by_the_commit_that_completes_its_batch(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as host, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, WindowedSamplerConfig())
        first = await commit_ready(host, 0)
        waits, taken = Waits(store), list[str]()

        async def wait_for_batch() -> None:
            meta, _ = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
            taken.extend(meta.extra_info["group_ids"])

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait_for_batch)
                await waits.begun()
                assert [] == await trainer.buffer.training_owned_group_ids()
                second = await commit_ready(host, 0)
        assert [first, second] == taken


async def test_a_cancelled_wait_for_a_batch_has_claimed_nothing(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, WindowedSamplerConfig())
        await commit_ready(store, 0)
        await sampler.evict(current_train_weight=0)
        waits = Waits(store)
        async with nothing_changed(runs), anyio.create_task_group() as tasks:
            tasks.start_soon(select_two, trainer, sampler)
            await waits.begun()
            tasks.cancel_scope.cancel()
        assert [] == await trainer.buffer.training_owned_group_ids()


async def select_two(trainer: TrainerSession, sampler: PromptGroupSampler) -> None:
    """Wait for a batch of two groups."""
    await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)


async def test_two_claims_of_one_step_are_settled_together(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        ids = [await commit_ready(store, 0) for _ in range(4)]
        await trainer.buffer.claim(pick(2, 2))
        await trainer.buffer.claim(pick(2, 2))
        assert 2 == len(set(trainer.batches))
        assert tuple(ids) == (await trainer.commit_step(0)).trained
        assert () == trainer.batches


async def test_a_session_holds_no_more_groups_than_one_step_settles(runs: Runs) -> None:
    async with runs.open() as store:
        ids = [await commit_ready(store, 0) for _ in range(3)]
        held = control_key(runs, Key.CLAIMED_BY_OWNER)
        strays = {f"stray-{at}": store.buffer.session.epoch for at in range(1022)}
        await runs.client.zadd(held, strays)
        async with nothing_changed(runs):
            with pytest.raises(TooManyClaims, match=r"1022 claims .* 3 more; .* 1024"):
                await store.buffer.claim(pick(1, 9))
            with pytest.raises(TooManyClaims, match="3 more"):
                await store.buffer.claim_for_training(ids)
        _, groups = await store.buffer.claim(pick(1, 2))
        assert 2 == groups
        async with nothing_changed(runs):
            with pytest.raises(TooManyClaims, match=r"1024 claims .* 1 more"):
                await store.buffer.claim(pick(1, 1))
        await runs.client.zrem(held, *strays)
        await store.buffer.claim_for_training(ids[2:])
        await store.buffer.release_training_claims(ids)


@pytest.mark.parametrize("state", [GroupState.READY, GroupState.RESERVED])
async def test_a_member_that_does_not_fit_its_record_stops_a_claim(
    runs: Runs, state: GroupState
) -> None:
    async with runs.open() as store:
        group_id = await commit_ready(store, 0)
        await store.buffer.reserve(0, group_id="other")
        slots = await store.buffer.slots()
        order = slots[0 if state is GroupState.READY else 1].order
        keys = [control_key(runs, key) for key in (Key.READY, Key.READY_BY_ORDER)]
        stray = f"{order + (5 if state is GroupState.READY else 0):016d}:" + (
            "ghost" if state is GroupState.READY else "other"
        )
        for key in keys:
            await runs.client.zadd(key, {stray: 0})
        async with nothing_changed(runs):
            with pytest.raises(StoreCorrupted, match="audit"):
                await store.buffer.claim(pick(1, 4))
        assert not (await store.audit()).is_clean
        for key in keys:
            await runs.client.zrem(key, stray)
        meta, _ = await store.buffer.claim(pick(1, 4))
        assert meta is not None
        assert [group_id] == meta.extra_info["group_ids"]


@pytest.mark.parametrize("word", range(1, 15))
async def test_a_damaged_record_stops_a_claim_before_it_writes(runs: Runs, word: int) -> None:
    async with runs.open() as store:
        healthy, damaged = await commit_ready(store, 0), await commit_ready(store, 0)
        key = control_key(runs, Key.SLOTS)
        record = await runs.client.hget(key, damaged)
        words = record.split(b" ")
        await runs.client.hset(key, damaged, b" ".join([*words[:word], *words[word + 1 :]]))
        async with nothing_changed(runs):
            with pytest.raises(StoreCorrupted, match=damaged):
                await store.buffer.claim(pick(1, 4))
            with pytest.raises(StoreCorrupted, match=damaged):
                await store.buffer.claim_for_training([healthy, damaged])
        await runs.client.hset(key, damaged, record)
        assert (await store.buffer.claim(pick(1, 4)))[1] == 2


async def test_a_session_that_was_replaced_claims_nothing(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="job") as older:
        await commit_ready(store, 0)
        async with other.trainer(owner="job"):
            with pytest.raises(StaleOwner):
                await older.buffer.claim(pick(1, 1))
            assert 1 == (await other.stats()).ready
