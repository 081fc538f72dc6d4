"""Resuming: a model and a store that were stopped together go on together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from redis_replay import (
    Bookmark,
    InOrderSamplerConfig,
    ReplayStore,
    RolloutSession,
    TrainerSession,
    TransactionalAdmissionSampler,
    WindowedSamplerConfig,
    create_sampler,
    recovery,
)
from redis_replay._redis.keys import Key
from redis_replay._redis.records import unpack_items
from redis_replay.errors import CheckpointMissing, ResumeRefused, RunMismatch, StaleOwner
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

IN_ORDER = InOrderSamplerConfig(max_lookahead_versions=1)


async def dispatch(rollout: RolloutSession, *, prompts: int = 2) -> list[str]:
    """Admit a batch, reserve its groups with prompts, and move the loader, in one cut."""
    sampler = create_sampler(rollout.buffer, IN_ORDER)
    assert isinstance(sampler, TransactionalAdmissionSampler)
    await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
    async with rollout.mutation() as cut:
        target = sampler.commit_admission(cut)
        for number in range(prompts):
            name = f"s{target}p{number}"
            cut.reserve(0, target_step=target, group_id=name, prompt_ref=name.encode())
        cut.set_loader_state(f"after batch {target}".encode())
    return [reservation.group_id for reservation in cut.reservations]


async def commit(rollout: RolloutSession, group_ids: Sequence[str]) -> None:
    """Commit groups, each with rows of its own."""
    for group_id in group_ids:
        value = float(sum(group_id.encode()))
        await rollout.buffer.commit(
            group_id, rows(value), start_weight_version=0, end_weight_version=0
        )


async def select(trainer: TrainerSession) -> list[str]:
    """Claim the step's batch and return its groups."""
    sampler = create_sampler(trainer.buffer, IN_ORDER)
    meta, _ = await trainer.select(
        sampler, min_prompt_groups=2, max_prompt_groups=2, deadline_seconds=5
    )
    return list(meta.extra_info["group_ids"])


async def train(store: ReplayStore, steps: range, **options: str) -> None:
    """Train steps; a checkpoint is kept with the last of them if one is named."""
    async with store.rollout(owner="host") as rollout, store.trainer(owner="job") as trainer:
        for step in steps:
            await commit(rollout, await dispatch(rollout))
            await select(trainer)
            last = options if step == steps[-1] else {}
            await trainer.commit_step(step, **last)


async def test_a_store_at_the_models_step_goes_on(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await train(store, range(2))
        report = await store.resume(model_step=2, bookmark=await store.bookmark())
        assert ("continue", 2, 1) == (report.action, report.step, report.dispatch_index)
        assert (b"after batch 1", (), None) == (
            report.loader_state,
            report.warnings,
            report.blocked,
        )


async def test_a_store_ahead_of_the_model_restores_the_checkpoint_of_its_step(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await train(store, range(2), checkpoint="step-2")
        await train(store, range(2, 4))
        report = await store.resume(model_step=2)
        assert ("restore", "step-2", 2) == (report.action, report.checkpoint, report.step)
        assert (2, 1) == (store.trainer_version, report.dispatch_index)
        assert b"after batch 1" == report.loader_state
        await train(store, range(2, 3))


async def test_what_was_trained_after_the_checkpoint_comes_back_and_is_not_generated_again(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store:
        await train(store, range(1))
        async with store.rollout(owner="host") as rollout, store.trainer(owner="job") as trainer:
            await commit(rollout, await dispatch(rollout))
            await store.checkpoints.create("step-1", step=1)
            first = await select(trainer)
            before = await trainer.samples.get_samples([f"{first[0]}_g0"])
            await trainer.commit_step(1)
        report = await store.resume(model_step=1)
        assert (0, 2) == (report.redispatched, (await store.stats()).ready)
        async with store.trainer(owner="job") as trainer:
            assert first == await select(trainer)
            after = await trainer.samples.get_samples([f"{first[0]}_g0"])
            assert before[0]["input_ids"].tobytes() == after[0]["input_ids"].tobytes()
            await trainer.commit_step(1)


async def test_a_store_ahead_without_a_checkpoint_refuses_and_says_what_there_is(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store:
        await train(store, range(1), checkpoint="step-1")
        await train(store, range(1, 3))
        with pytest.raises(ResumeRefused, match=r"step 2, the store of step 3.*there are \[1\]"):
            await store.resume(model_step=2)
        assert 3 == store.trainer_version


async def test_a_step_that_was_trained_and_never_committed_is_settled(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, runs.open() as dead:
        await train(store, range(1))
        async with store.rollout(owner="host") as rollout:
            await commit(rollout, await dispatch(rollout))
        trainer = dead.trainer(owner="job")
        await trainer.__aenter__()
        trained = await select(trainer)
        saved = (await trainer.bookmark()).to_bytes()
        report = await store.resume(
            model_step=2, bookmark=Bookmark.from_bytes(saved), take_over=True
        )
        assert ("settle", 2, tuple(trained)) == (report.action, report.step, report.settled)
        assert (2, 2) == (store.trainer_version, report.requeued)
        assert 4 == (await store.stats()).trained
        with pytest.raises(StaleOwner):
            await trainer.commit_step(1)


async def test_without_take_over_a_bookmark_of_claimed_groups_is_refused(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.rollout(owner="host") as rollout,
        store.trainer(owner="job") as trainer,
    ):
        await commit(rollout, await dispatch(rollout))
        await select(trainer)
        bookmark = await trainer.bookmark()
        with pytest.raises(ResumeRefused, match="are not ready"):
            await store.resume(model_step=1, bookmark=bookmark)


async def test_a_store_behind_the_model_catches_up_and_ends_what_has_passed(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await train(store, range(1))
        async with store.rollout(owner="host") as rollout:
            await commit(rollout, (await dispatch(rollout))[:1])
        report = await store.resume(model_step=5)
        assert ("catch_up", 5, 2) == (report.action, report.step, report.evicted)
        assert (5, 4) == (store.trainer_version, report.dispatch_index)
        assert "4 steps behind" in report.warnings[-1]
        async with store.rollout(owner="host") as rollout:
            assert ["s5p0", "s5p1"] == await dispatch(rollout)


async def test_an_empty_store_takes_the_models_step_and_nobody_waits(runs: Runs) -> None:
    lost = Bookmark("0000", 3, 700, 100)
    async with runs.open(groups_per_step=2) as store:
        report = await store.resume(model_step=100, bookmark=lost)
        assert ("catch_up", 100, 99) == (report.action, report.step, report.dispatch_index)
        assert "saved with the history 0000" in report.warnings[0]
        await train(store, range(100, 102))
        assert 102 == store.trainer_version


async def test_taking_over_turns_what_the_dead_held_into_tickets_and_ready_groups(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store, runs.open() as dead:
        rollout, trainer = dead.rollout(owner="host"), dead.trainer(owner="job")
        await rollout.__aenter__()
        await trainer.__aenter__()
        await commit(rollout, await dispatch(rollout))
        await select(trainer)
        flying = await dispatch(rollout)
        seen = await store.resume(dry_run=True)
        assert ({"host": 2, "job": 2}, 0, 0) == (seen.held, seen.requeued, seen.redispatched)
        report = await store.resume(take_over=True)
        assert ({}, 2, 2) == (report.held, report.requeued, report.redispatched)
        async with store.rollout(owner="other") as other:
            taken = await other.take_tickets(max_tickets=8, weight_version=0)
        assert [(name, name.encode(), 1, 1) for name in flying] == [
            (ticket.group_id, ticket.prompt_ref, ticket.target_step, ticket.attempt)
            for ticket in taken
        ]


async def test_taking_over_ends_all_others_in_one_script_and_nobody_of_its_own(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as dead, store.rollout(owner="mine") as mine:
        own = await mine.buffer.reserve(0)
        for owner in ("one", "two", "three"):
            await (await dead.rollout(owner=owner).__aenter__()).buffer.reserve(0, group_id=owner)
        await dead.buffer.claim_for_training([await commit_ready(dead, 0, group_id="c")])
        known = await runs.client.xlen(control_key(runs, Key.EVENTS))
        report = await store.resume(take_over=True)
        assert ({"mine": 1}, 1, 3) == (report.held, report.requeued, report.redispatched)
        entries = await runs.client.xrange(control_key(runs, Key.EVENTS))
        [written] = [entry for _, entry in entries[known:]]
        assert b"end_owner" == written[b"kind"]
        assert {"one", "two", "three", "c"} == {
            name.decode() for name in unpack_items(written[b"groups"])
        }
        await mine.buffer.abort(own.group_id)
        with pytest.raises(StaleOwner):
            await dead.buffer.release_training_claims(["c"])
        async with nothing_changed(runs):
            assert 0 == (await store.resume(take_over=True)).requeued


async def test_taking_over_gives_back_more_than_one_script_does(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_SLICE", 2)
    async with runs.open() as store, runs.open() as dead:
        names = [await commit_ready(dead, 0) for _ in range(5)]
        await dead.buffer.claim_for_training(names)
        for _ in range(3):
            await (await dead.rollout(owner="host").__aenter__()).buffer.reserve(0)
        report = await store.resume(take_over=True)
        assert (5, 5, 3) == (report.requeued, (await store.stats()).ready, report.redispatched)


async def test_a_dry_run_changes_nothing_and_says_what_would_be_done(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        await train(store, range(1), checkpoint="step-1")
        await train(store, range(1, 3))
        before = await store.bookmark()
        assert "restore" == (await store.resume(model_step=1, dry_run=True)).action
        assert "catch_up" == (await store.resume(model_step=9, dry_run=True)).action
        assert before == await store.bookmark()


async def test_a_step_without_groups_that_nobody_dispatches_is_named(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        async with store.rollout(owner="host") as rollout:
            gone = await dispatch(rollout)
            await rollout.buffer.remove(gone)
        report = await store.resume()
        assert report.blocked is not None
        assert "skip_step(0)" in report.blocked


async def test_a_preview_is_of_what_a_restore_would_bring_back(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        async with store.rollout(owner="host") as rollout:
            await commit(rollout, kept := await dispatch(rollout))
            async with store.trainer(owner="job") as trainer:
                await select(trainer)
                await store.checkpoints.create("step-0")
                await trainer.commit_step(0)
            await commit(rollout, await dispatch(rollout))
        report = await store.resume(model_step=0, dry_run=True)
        assert ("restore", "step-0") == (report.action, report.checkpoint)
        for mode, expected in (("all", tuple(kept)), ("prompts_only", ()), ("none", ())):
            found = await store.preview(IN_ORDER, step=0, checkpoint="step-0", mode=mode)
            assert (expected, ()) == (found.selected, found.evicted)
        assert () == (await store.preview(IN_ORDER, step=0)).selected
        with pytest.raises(CheckpointMissing, match="no checkpoint 'other'"):
            await store.preview(IN_ORDER, step=0, checkpoint="other")


async def test_a_preview_names_what_each_policy_would_take(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        for weight in (0, 1, 2):
            await commit_ready(store, weight, group_id=f"w{weight}")
        windowed = WindowedSamplerConfig(max_staleness_versions=1)
        found = await store.preview(windowed, step=2)
        assert (("w1", "w2"), ("w0",)) == (found.selected, found.evicted)
        assert 3 == (await store.stats()).ready


async def test_another_dataset_is_refused_or_starts_the_loader_anew(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=2, dataset="prompts-a") as store,
        store.rollout(owner="host") as rollout,
    ):
        await commit(rollout, await dispatch(rollout))
    with pytest.raises(RunMismatch, match="'prompts-a', asked is 'prompts-b'"):
        await runs.open(dataset="prompts-b").__aenter__()
    async with runs.open(dataset="prompts-b", new_dataset=True) as store:
        assert "2 buffered groups" in store.run.changes[-1]
        report = await store.resume()
        assert (None, 0, 2) == (
            report.loader_state,
            report.dispatch_index,
            report.found["ready"],
        )
        assert report.warnings


def test_a_bookmark_survives_a_model_file_and_nothing_else_is_one() -> None:
    bookmark = Bookmark("abcd", 2, 2**40, 7, ("a", "b"))
    assert bookmark == Bookmark.from_bytes(bookmark.to_bytes())
    for broken in (b"", b"\x93\x01", b"\x96\x09\x00\x00\x00\x00\x00"):
        with pytest.raises(ValueError, match="bookmark"):
            Bookmark.from_bytes(broken)
