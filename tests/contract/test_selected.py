"""Groups selected for good: what refuses them, what keeps their rows, how they are counted."""

from __future__ import annotations

import anyio
import pytest

from redis_replay import (
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import (
    CheckpointError,
    ClaimMismatch,
    PayloadMissing,
    TooManyClaims,
)
from tests.contract.keyspace import control_key, nothing_changed
from tests.contract.without_claims import cancelled_select, sampler_on, select, trainer_with
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


async def test_verbs_of_claims_refuse_groups_that_have_none(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        await select(sampler_on(trainer.buffer), 1, 1)
        await trainer.buffer.claim_for_training(["b"])
        async with store.trainer(owner="other"), nothing_changed(runs):
            for verb, doing in (
                (trainer.abort_step(), "given back"),
                (trainer.requeue(), "given back"),
                (trainer.buffer.requeue(["a"]), "given back"),
                (trainer.buffer.release_training_claims(["a", "b"]), "released"),
                (trainer.transfer_claims(to="other"), "handed over"),
                (
                    trainer.samples.put_samples(["a_g0"], fields={"advantage": [1.0]}),
                    "written back to",
                ),
            ):
                with pytest.raises(ClaimMismatch, match=f"'a'.*for good.*be {doing}"):
                    await verb
        commit = await trainer.commit_step(0)
        assert ("b",) == commit.trained


async def test_a_checkpoint_of_a_step_that_trains_selected_groups_is_made_by_its_commit(
    runs: Runs,
) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        await trainer.buffer.selecting_for_good().claim_for_training(["a"])
        async with nothing_changed(runs):
            with pytest.raises(CheckpointError, match="neither in its buffer nor in a model"):
                await store.checkpoints.create("early")
        async with store.trainer(owner="other") as other:
            with pytest.raises(CheckpointError, match="when their step is committed"):
                await other.skip_step(0, checkpoint="early")
        await trainer.commit_step(0, checkpoint="after")
        kept = await store.checkpoints.show("after")
        assert (1, 1) == (kept.step, kept.groups["ready"])


async def test_a_restore_brings_selected_groups_back_or_frees_them(runs: Runs) -> None:
    async with trainer_with(runs, *"a") as (store, trainer):
        await store.checkpoints.create("kept")
        await commit_ready(store, 1, group_id="later")
        await trainer.buffer.selecting_for_good().claim_for_training(["a", "later"])
        await store.checkpoints.restore("kept")
        await store.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        async with store.trainer(owner="job") as again:
            await again.buffer.selecting_for_good().claim_for_training(["a"])
            assert 1 == len(await again.samples.get_samples(["a_g0"]))


async def test_a_checkpoint_keeps_rows_that_were_selected_after_it(runs: Runs) -> None:
    async with trainer_with(runs, *"a") as (store, trainer):
        await store.checkpoints.create("kept")
        await trainer.buffer.selecting_for_good().claim_for_training(["a"])
        await trainer.commit_step(0)
        await store.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        await store.checkpoints.drop("kept")
        await store.collect_garbage()
        assert [] == await runs.payload_keys()


async def test_a_session_reads_at_most_as_many_groups_as_a_step_settles(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (_, trainer):
        await select(sampler_on(trainer.buffer), 1, 1)
        [number] = await runs.client.hkeys(control_key(runs, Key.SELECTED))
        full = await runs.client.hget(control_key(runs, Key.SELECTED), number)
        epoch, entry = full[: full.index(b"1:a")], full[full.index(b"1:a") :]
        await runs.client.hset(control_key(runs, Key.SELECTED), number, epoch + 1024 * entry)
        async with nothing_changed(runs):
            with pytest.raises(TooManyClaims, match="1024"):
                await trainer.buffer.selecting_for_good().claim_for_training(["b"])
        await runs.client.hset(control_key(runs, Key.SELECTED), number, epoch + 1023 * entry)
        await trainer.buffer.selecting_for_good().claim_for_training(["b"])
        await runs.client.hset(control_key(runs, Key.SELECTED), number, full)


@pytest.mark.parametrize("what", ["record", "payload"])
async def test_a_damaged_group_is_named_and_the_others_are_handed_out(
    runs: Runs, what: str
) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        sampler = sampler_on(trainer.buffer, "Window")
        runs.audited = False
        if what == "record":
            field, *_ = await runs.client.hkeys(control_key(runs, Key.GROUPS))
            damaged = field.decode()[-1]
            await runs.client.hdel(control_key(runs, Key.GROUPS), field)
            with pytest.raises(PayloadMissing, match=f"'{damaged}'"):
                await select(sampler, 1, 2)
            assert [name for name in "ab" if name != damaged] == await select(sampler, 1, 2)
        else:
            await select(sampler, 1, 2)
            [key] = [key for key in await runs.payload_keys() if ":a:" in key]
            await runs.client.delete(key)
            with pytest.raises(PayloadMissing, match="'a'"):
                await trainer.samples.get_samples(["a_g0", "b_g0"])
        assert 0 == (await store.stats()).quarantined


async def test_a_bookmark_of_a_step_that_trained_selected_groups_names_the_next_step(
    runs: Runs,
) -> None:
    async with trainer_with(runs, *"a") as (_, trainer):
        assert 0 == (await trainer.bookmark()).step
        await select(sampler_on(trainer.buffer), 1, 1)
        bookmark = await trainer.bookmark()
        assert (1, ()) == (bookmark.step, bookmark.trained)


async def test_selected_groups_count_as_trained_for_the_batch_they_came_from(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, store.trainer(owner="job") as trainer:
        fifo = create_sampler(store.buffer, {"name": "weight_fifo"})
        assert await fifo.admit(trainer_version_fn=lambda: 0) is None
        for name in "ab":
            await commit_ready(store, 0, group_id=name)
        await trainer.buffer.selecting_for_good().claim_for_training(["a"])
        assert 1 == (await store.step_target(0)).reachable
        await trainer.buffer.selecting_for_good().claim_for_training(["b"])
        await trainer.commit_step(0)
        assert 2 == (await store.step_target(1)).reachable


async def test_a_place_that_a_selection_frees_wakes_who_waits_for_it(runs: Runs) -> None:
    async with trainer_with(runs, "a", capacity=1) as (store, trainer):
        async with anyio.create_task_group() as group:
            group.start_soon(store.buffer.reserve_when_free, 1)
            await anyio.lowlevel.checkpoint()
            await select(sampler_on(trainer.buffer), 1, 1)
        assert 1 == (await store.stats()).reserved


async def test_the_audit_looks_at_what_is_selected(runs: Runs) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        await trainer.buffer.selecting_for_good().claim_for_training(["a"])
        selected, groups = control_key(runs, Key.SELECTED), control_key(runs, Key.GROUPS)
        [number] = await runs.client.hkeys(selected)
        packed = await runs.client.hget(selected, number)
        [entry] = [name for name in await runs.client.hkeys(groups) if name.endswith(b":a")]
        record = await runs.client.hget(groups, entry)

        async def violated() -> list[tuple[int, str]]:
            return [(v.invariant, v.message) for v in (await store.audit()).violations]

        assert [] == await violated()
        epoch, rest = packed.split(b":", 1)[1].partition(b"1:a")[::2]
        await runs.client.hset(selected, number, b"3:999" + b"1:a" + rest)
        assert [(6, f"selection {number!r} is read by epoch 999, which is nobody")] == (
            await violated()
        )
        await runs.client.hset(selected, number, packed)
        await runs.client.hdel(groups, entry)
        assert [(7, f"the record of {entry.decode()!r} is missing")] == await violated()
        await runs.client.hset(groups, entry, record)
        await runs.client.zadd(control_key(runs, Key.DEAD), {entry: 1})
        assert [13] == [number for number, _ in await violated()]
        await runs.client.zrem(control_key(runs, Key.DEAD), entry)
        await runs.client.hdel(selected, number)
        assert [10] == [number for number, _ in await violated()]
        await runs.client.hset(selected, number, packed)
        assert int(epoch) == trainer.epoch


async def test_a_step_does_not_settle_a_claim_whose_caller_was_cancelled_at_its_end(
    runs: Runs,
) -> None:
    async with trainer_with(runs, *"ab") as (store, trainer):
        sampler = sampler_on(trainer.buffer, "Claiming")
        assert ["a"] == await select(sampler, 1, 1)
        await cancelled_select(trainer, sampler)
        commit = await trainer.commit_step(0)
        assert (("a",), 1) == (commit.trained, (await store.stats()).ready)


async def test_of_several_selections_only_what_is_named_is_let_go(runs: Runs) -> None:
    async with trainer_with(runs, *"abc") as (_, trainer):
        view = trainer.buffer.selecting_for_good()
        for names in (["a", "b"], ["c"]):
            await view.claim_for_training(names)
        assert 1 == await trainer.samples.clear_samples(["a_g0", "a_g1"])
        assert 2 == len(await trainer.samples.get_samples(["b_g0", "c_g0"]))
        assert 2 == len(await runs.payload_keys())
