"""Samplers without training claims: what they select has ended, and is read to the end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redis_replay._redis.keys import Key
from redis_replay._redis.selecting_scripts import LetGo, SelectForGood
from redis_replay.errors import (
    ClaimLost,
    StoreUnavailable,
    UnknownGroup,
    WrongState,
)
from redis_replay.heart import end_owner
from tests.contract.keyspace import control_key, nothing_changed, send
from tests.contract.without_claims import cancelled_select, sampler_on, select, trainer_with
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["FirstReady", "Window"])
async def test_selected_groups_leave_the_buffer_at_once_and_end_as_trained(
    runs: Runs, name: str
) -> None:
    async with trainer_with(runs, *"abc", capacity=3) as (store, trainer):
        before = (await store.stats()).payload_bytes
        assert ["a", "b"] == await select(sampler_on(trainer.buffer, name), 1, 2)
        stats = await store.stats()
        assert (1, 0, 2) == (stats.ready, stats.claimed, stats.trained)
        assert {"trained:selected": 2} == stats.ends
        assert before == 3 * stats.payload_bytes
        assert ["c"] == [slot.group_id for slot in await store.buffer.slots()]
        await store.buffer.reserve(1)  # a place is free, although nothing is committed
        assert [] == await trainer.buffer.training_owned_group_ids()


async def test_a_class_that_declares_claims_keeps_what_it_selects_claimed(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        assert ["a"] == await select(sampler_on(trainer.buffer, "Claiming"), 1, 1)
        assert ["a"] == await trainer.buffer.training_owned_group_ids()
        assert 0 == (await store.stats()).trained


async def test_rows_are_read_until_the_step_commits_and_are_freed_then(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        await select(sampler_on(trainer.buffer), 1, 1)
        await store.collect_garbage()
        for samples in (trainer.samples, store.samples):
            [row] = await samples.get_samples(["a_g0"])
            assert 1 == int(np.asarray(row["input_ids"])[0])
        assert 2 == len(await runs.payload_keys())
        commit = await trainer.commit_step(0)
        assert ((), 1) == (commit.trained, trainer.trainer_version)
        await store.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        for samples in (trainer.samples, store.samples):
            with pytest.raises(UnknownGroup):
                await samples.get_samples(["a_g0"])


async def test_a_later_group_of_the_same_id_is_not_read_in_its_place(runs: Runs) -> None:
    async with trainer_with(runs, "a") as (store, trainer):
        await select(sampler_on(trainer.buffer), 1, 1)
        await commit_ready(store, 7, group_id="a")
        [row] = await trainer.samples.get_samples(["a_g0"])
        assert 1 == int(np.asarray(row["input_ids"])[0])
        [later] = await store.samples.get_samples(["a_g0"])
        assert 7 == int(np.asarray(later["input_ids"])[0])


async def test_clearing_samples_lets_groups_go_one_by_one(runs: Runs) -> None:
    async with trainer_with(runs, *"abc") as (store, trainer):
        await select(sampler_on(trainer.buffer), 1, 2)
        with pytest.raises(UnknownGroup):  # somebody else's to clear
            await store.samples.clear_samples(["a_g0", "a_g1"])
        assert 2 == await trainer.samples.clear_samples(["a_g0", "a_g1", "c_g0", "c_g1"])
        assert 1 == len(await runs.payload_keys())
        assert 1 == len(await trainer.samples.get_samples(["b_g0"]))
        assert {"trained:selected": 2, "removed:cleared": 1} == (await store.stats()).ends
        with pytest.raises(UnknownGroup):
            await trainer.buffer.session.call(LetGo(("b", "a")))
        assert 1 == len(await runs.payload_keys())
        await trainer.commit_step(0)
        await store.collect_garbage()
        assert [] == await runs.payload_keys()


@pytest.mark.parametrize("end", ["detach", "silence", "replaced", "takeover"])
async def test_the_end_of_a_session_frees_what_it_read(runs: Runs, end: str) -> None:
    async with runs.open() as store:
        await commit_ready(store, 1, group_id="a")
        trainer = await store.trainer(owner="job").__aenter__()
        await select(sampler_on(trainer.buffer), 1, 1)
        link = store.buffer.session.link
        if end == "detach":
            await trainer.__aexit__(None, None, None)
        elif end == "silence":
            await end_owner(link.gateway, link.run.frame, "job", trainer.epoch)
        elif end == "replaced":
            async with store.trainer(owner="job"):
                pass
        else:
            async with store.trainer(owner="other", takeover=True):
                pass
        await store.collect_garbage()
        assert [] == await runs.payload_keys()
        assert 0 == await runs.client.hlen(control_key(runs, Key.SELECTED))
        if end != "detach":
            with pytest.raises(ClaimLost):
                await trainer.samples.get_samples(["a_g0"])


async def test_a_repeated_selection_has_the_first_answer_and_selects_nothing_more(
    runs: Runs,
) -> None:
    async with trainer_with(runs, *"abc") as (store, trainer):
        call = SelectForGood("buffer", 0, 9, 1, 2)
        first: Any = await send(trainer.buffer.session, call, number=1600)
        async with nothing_changed(runs):
            again: Any = await send(trainer.buffer.session, call, number=1600)
        assert (first.number, first.slots) == (again.number, again.slots)
        assert ["c"] == [slot.group_id for slot in await store.buffer.slots()]


@pytest.mark.parametrize("exact", [False, True])
async def test_what_a_lost_answer_selected_is_handed_out_by_the_next_selection(
    runs: Runs, exact: bool
) -> None:
    async with trainer_with(runs, *"abcd") as (_, trainer):
        session = trainer.buffer.session
        sampler = sampler_on(trainer.buffer, "FirstReady" if exact else "Window")
        sampler_call = session.call_now

        async def lose(call: Any) -> Any:
            await sampler_call(call)
            raise StoreUnavailable("the answer never came")

        session.call_now = lose  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable):
            await select(sampler, 1, 2)
        session.call_now = sampler_call  # type: ignore[method-assign]
        if exact:
            assert [[0.0 + 1, 1.0 + 1]] == [
                list(found or ()) for found in await sampler._buffer.rewards(["a"])
            ]
        assert ["a"] == await select(sampler, 1, 1)
        assert [] == await select(sampler, 4, 4)
        assert ["b", "c"] == await select(sampler, 2, 2)
        assert 2 * 3 == len(
            await trainer.samples.get_samples([f"{i}_g{row}" for i in "abc" for row in (0, 1)])
        )


async def test_what_a_cancelled_caller_selected_is_handed_out_by_the_next_selection(
    runs: Runs,
) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        sampler = sampler_on(trainer.buffer, "Window")
        await sampler.flush()
        await cancelled_select(trainer, sampler)
        assert ["b"] == [slot.group_id for slot in await store.buffer.slots()]
        meta, groups = await trainer.select(
            sampler, min_prompt_groups=2, max_prompt_groups=2, current_train_weight=1
        )
        assert (["a", "b"], 2) == (meta.extra_info["group_ids"], groups)
        await trainer.commit_step(0)
        await store.collect_garbage()
        assert [] == await runs.payload_keys()


async def test_a_step_does_not_let_go_of_what_nobody_received(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (_, trainer):
        sampler = sampler_on(trainer.buffer, "Window")
        assert ["a"] == await select(sampler, 1, 1)
        await cancelled_select(trainer, sampler)
        await trainer.commit_step(0)
        assert ["b"] == await select(sampler, 1, 1)
        assert 1 == len(await trainer.samples.get_samples(["b_g0"]))


async def test_nothing_is_selected_of_named_groups_if_one_is_not_ready(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        view = trainer.buffer.selecting_for_good()
        await store.buffer.reserve(1, group_id="r")
        for named, error in ((["a", "r"], WrongState), (["a", "x"], UnknownGroup)):
            async with nothing_changed(runs):
                with pytest.raises(error):
                    await view.claim_for_training(named)
        with pytest.raises(ValueError, match="more than once"):
            await view.claim_for_training(["a", "a"])
        assert ["b", "a"] == (await view.claim_for_training(["b", "a"])).extra_info["group_ids"]


async def test_below_the_minimum_nothing_is_selected(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (_, trainer):
        sampler = sampler_on(trainer.buffer, "Window")
        await sampler.flush()
        async with nothing_changed(runs):
            assert [] == await select(sampler, 3, 4)
