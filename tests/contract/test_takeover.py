"""Take-over: another trainer host ends those before it at once, and each call of theirs says so."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest

from redis_replay import GroupState, InOrderSampler, TrainerSession, WindowedSampler
from redis_replay._redis.keys import Key
from redis_replay._redis.run_scripts import Attach, EndedSession
from redis_replay.errors import ClaimLost, StaleOwner, UnacknowledgedRanks
from redis_replay.heart import end_owner
from tests.contract.keyspace import (
    attached,
    control_key,
    nothing_changed,
    owners,
    send_plain,
    session_of,
)
from tests.contract.lost_trainer import CALLS, LostTrainer
from tests.contract.waits import Waits
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

NEWER = {"owner": "newer", "takeover": True}


async def test_a_takeover_ends_every_other_trainer_whatever_its_name(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as other,
        store.trainer(owner="a") as first,
        store.trainer(owner="b") as second,
        store.rollout(owner="host") as host,
    ):
        ids = [await commit_ready(store, 0, group_id=f"g{at}") for at in range(3)]
        await first.buffer.claim_for_training(ids[:2])
        await second.buffer.claim_for_training(ids[2:])
        made = await host.buffer.reserve(0, group_id="r")
        async with other.trainer(**NEWER) as newer:
            assert newer.epoch > max(first.epoch, second.epoch)
            assert {"newer", "host", session_of(store).owner} == await owners(runs)
            slots = await other.buffer.slots()
            assert [(GroupState.READY, 0, None)] * 3 == [
                (slot.state, slot.training_requeues, slot.owner) for slot in slots[:3]
            ]
            for ended in (first, second):
                async with nothing_changed(runs):
                    with pytest.raises(ClaimLost, match="another session took over"):
                        await ended.commit_step(0)
            sampler = WindowedSampler(newer.buffer, max_staleness_versions=1)
            meta, _ = await newer.select(sampler, min_prompt_groups=3, max_prompt_groups=3)
            assert ids == meta.extra_info["group_ids"]
            assert tuple(ids) == (await newer.commit_step(0)).trained
            await host.buffer.commit(
                "r", rows(), start_weight_version=0, end_weight_version=0, fence=made.fence
            )
        assert 3 == (await store.stats()).trained


async def test_a_trainer_of_another_name_works_beside_the_first_without_a_takeover(
    runs: Runs,
) -> None:
    async with (
        runs.open() as store,
        runs.open() as other,
        store.trainer(owner="a") as first,
        other.trainer(owner="b") as second,
    ):
        await commit_ready(store, 0, group_id="mine")
        await first.buffer.claim_for_training(["mine"])
        await commit_ready(store, 0, group_id="theirs")
        sampler = WindowedSampler(second.buffer, max_staleness_versions=1)
        meta, groups = await sampler.select(
            current_train_weight=0, min_prompt_groups=1, max_prompt_groups=9
        )
        assert meta is not None
        assert (["theirs"], 1) == (meta.extra_info["group_ids"], groups)
        assert ["mine"] == await first.buffer.training_owned_group_ids()
        assert ("mine",) == (await first.commit_step(0)).trained


async def test_a_rollout_host_takes_over_its_own_name_alone(runs: Runs) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="job") as trainer,
        store.rollout(owner="a") as first,
        store.rollout(owner="b") as second,
    ):
        for name, host in (("r", first), ("s", second)):
            await host.buffer.reserve(0, group_id=name)
        async with store.rollout(owner="a", takeover=True) as newer:
            [ticket] = await newer.take_tickets(max_tickets=9, weight_version=0)
            assert ("r", 1) == (ticket.group_id, ticket.attempt)
            with pytest.raises(StaleOwner) as refused:
                await first.buffer.reserve(0)
            assert StaleOwner is refused.type
            await second.buffer.commit("s", rows(), start_weight_version=0, end_weight_version=0)
            await trainer.buffer.claim_for_training(["s"])


async def test_of_two_that_take_over_at_once_one_holds_the_run(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="a") as first:
        await commit_ready(store, 0, group_id="g")
        await first.buffer.claim_for_training(["g"])
        rivals = [
            place.trainer(owner=name, takeover=True) for place, name in ((store, "b"), (other, "c"))
        ]

        async def enter(rival: TrainerSession) -> None:
            with suppress(ClaimLost):
                await rival.__aenter__()

        async with anyio.create_task_group() as tasks:
            for rival in rivals:
                tasks.start_soon(enter, rival)
        names = await owners(runs)
        [survivor] = [rival for rival in rivals if rival.owner in names]
        [loser] = [rival for rival in rivals if rival is not survivor]
        assert survivor.epoch > loser.epoch
        async with nothing_changed(runs):
            for ended in (first, loser):
                with pytest.raises(ClaimLost):
                    await ended.buffer.claim_for_training(["g"])
        await survivor.buffer.claim_for_training(["g"])
        assert ("g",) == (await survivor.commit_step(0)).trained


async def test_columns_written_under_a_claim_end_with_it(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="a") as first:
        await commit_ready(store, 0, group_id="g")
        await first.buffer.claim_for_training(["g"])
        await first.samples.put_samples(["g_g0"], fields={"advantage": [1.0]})
        async with store.trainer(**NEWER) as newer:
            await newer.buffer.claim_for_training(["g"])
            [row] = await newer.samples.get_samples(["g_g0"])
            assert {"input_ids", "reward"} == row.keys()
            await store.collect_garbage()
            assert [key for key in await runs.payload_keys() if ":w" in key] == []


@asynccontextmanager
async def lost_trainer(runs: Runs) -> AsyncIterator[LostTrainer]:
    """Let a trainer hold a claimed and a reserved group, and another take both from it."""
    async with (
        runs.open(groups_per_step=1) as store,
        runs.open() as other,
        store.trainer(owner="older") as trainer,
    ):
        sampler = InOrderSampler(trainer.buffer, max_lookahead_versions=2)
        await sampler.flush()
        claimed = await commit_ready(store, 0, target_step=0)
        await trainer.buffer.claim_for_training([claimed])
        reserved = await trainer.buffer.reserve(0, target_step=1)
        async with other.trainer(**NEWER) as newer:
            await newer.buffer.claim_for_training([claimed])
            await commit_ready(store, 0, target_step=1)
            yield LostTrainer(trainer, sampler, claimed, reserved)


def forget_the_end(place: Any) -> None:
    """Let a session believe that it lives, so that its next call asks the store."""
    pulse = session_of(place).pulse
    assert pulse is not None
    pulse.lost = False


@pytest.mark.parametrize("cls", CALLS)
async def test_each_call_of_a_trainer_that_was_taken_over_says_so_and_changes_nothing(
    runs: Runs, cls: type
) -> None:
    silent: list[str] = []
    async with lost_trainer(runs) as lost, nothing_changed(runs):
        for name, call in CALLS[cls].items():
            forget_the_end(lost.trainer)
            with suppress(ClaimLost):
                await call(lost)
                silent.append(name)
    assert [] == silent


def test_the_calls_that_are_tried_are_all_that_there_are() -> None:
    for cls, calls in CALLS.items():
        methods = inspect.getmembers(cls, inspect.iscoroutinefunction)
        public = {name for name, _ in methods if not name.startswith("_")}
        assert public - {"flush", "cut"} == set(calls) - {"flush", "cut"}, cls


async def test_a_trainer_that_waits_for_a_batch_learns_that_it_was_taken_over(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="older") as older:
        waits = Waits(store)
        sampler = WindowedSampler(older.buffer, max_staleness_versions=1)
        told: list[bool] = []

        async def select() -> None:
            with pytest.raises(ClaimLost):
                await older.select(sampler, min_prompt_groups=1, max_prompt_groups=1)
            told.append(True)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(select)
                await waits.begun()
                async with other.trainer(**NEWER):
                    pass
        assert [True] == told


async def test_ranks_of_a_leader_that_was_taken_over_cannot_complete_its_step(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as other,
        store.trainer(owner="older", world=2) as older,
    ):
        await commit_ready(store, 0, group_id="g")
        await older.buffer.claim_for_training(["g"])
        [batch] = older.batches
        ranks = [store.trainer_rank(owner="older", epoch=older.epoch, rank=at) for at in range(2)]
        await ranks[0].acknowledge(batch)
        async with other.trainer(owner="newer", world=2, takeover=True) as newer:
            async with nothing_changed(runs):
                for call in (ranks[1].acknowledge(batch), older.commit_step(0)):
                    with pytest.raises(ClaimLost):
                        await call
            await newer.buffer.claim_for_training(["g"])
            with pytest.raises(UnacknowledgedRanks) as refused:
                await newer.commit_step(0)
            assert (0, 1) == refused.value.ranks
            for rank in range(2):
                fresh = other.trainer_rank(owner="newer", epoch=newer.epoch, rank=rank)
                await fresh.acknowledge(newer.batches[0])
            assert ("g",) == (await newer.commit_step(0)).trained


async def held_by(place: Any) -> list[str]:
    """Return the groups whose record still names a session, by anybody's reading."""
    epoch = session_of(place).epoch
    slots = session_of(place).link.gateway
    [stored] = await slots.pipeline([("HGETALL", slots.keyspace.control(Key.SLOTS))])
    return sorted(
        i.decode() for i, record in stored.items() if record.split(b" ")[7] == b"%d" % epoch
    )


async def test_a_session_that_holds_more_than_one_script_gives_back_is_fenced_at_once(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="older") as older:
        for at in range(3):
            await commit_ready(store, 0, group_id=f"g{at}")
        await older.buffer.claim_for_training(["g0", "g1", "g2"])
        await attached(other)
        for place in (store, other):
            await place._opened().heart.stop()  # else it drains what this test looks at
        attach = Attach("newer", "trainer", 1, 60_000, "here", takeover=1, limit=2)
        reply = await send_plain(session_of(other), attach)
        assert isinstance(reply, tuple)
        assert [EndedSession(older.epoch, "older", holds_more=True)] == reply[1]
        assert ["g2"] == await held_by(older)
        assert 1 == await runs.client.hlen(control_key(runs, Key.LOST))
        with pytest.raises(ClaimLost):
            await older.commit_step(0)
        link = other._opened()
        await end_owner(link.gateway, link.run.frame, "older", older.epoch)
        assert [] == await held_by(older)
        assert (3, 0) == ((await other.stats()).ready, (await other.stats()).claimed)
        assert [0, 0, 0] == [slot.training_requeues for slot in await other.buffer.slots()]


async def test_repeating_an_attach_that_took_over_ends_only_its_own_first_try(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="older") as older:
        await commit_ready(store, 0, group_id="g")
        await older.buffer.claim_for_training(["g"])
        attach = Attach("newer", "trainer", 1, 60_000, "here", takeover=1)
        first = await send_plain(session_of(store), attach)
        second = await send_plain(session_of(store), attach)
        assert isinstance(first, tuple)
        assert isinstance(second, tuple)
        assert (["older"], ["newer"]) == tuple(
            [e.owner for e in reply[1]] for reply in (first, second)
        )
        assert 1 == (await store.stats()).requeued


async def test_a_takeover_of_nobody_is_an_attach(runs: Runs) -> None:
    async with runs.open() as store:
        session: TrainerSession = store.trainer(**NEWER)
        async with session as trainer:
            await commit_ready(store, 0, group_id="g")
            await trainer.buffer.claim_for_training(["g"])
            assert ("g",) == (await trainer.commit_step(0)).trained
