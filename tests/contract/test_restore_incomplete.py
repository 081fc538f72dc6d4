"""Restored batches that are not full, rows that are gone, checkpoints that do not fit the run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redis_replay import ReadyFirstSamplerConfig, ReplayStore, create_sampler
from redis_replay._redis.keys import Key
from redis_replay.errors import CheckpointDamaged, CheckpointMismatch
from tests.contract.job import Job, opened_job, prompts_of
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def short_batches(runs: Runs, **options: Any) -> AsyncIterator[ReplayStore]:
    """Open a run of three groups a step with the checkpoint ``kept``.

    Step 0 has all three groups, step 1 two of which one is in flight, step 2 was lost wholly.
    """
    async with runs.open(groups_per_step=3, **options) as store:
        async with opened_job(store, lookahead=3, per_step=3) as job:
            await job.finish(await job.dispatch())
            second, third = await job.dispatch(), await job.dispatch()
            await job.finish(second[:1])
            for made in (second[2], *third):
                await job.rollout.buffer.abort(made.group_id)
            await store.checkpoints.create("kept")
        yield store


async def dispatched_until_closed(job: Job) -> list[list[int]]:
    """Dispatch what the gate lets through, and return the targets of each batch."""
    found: list[list[int]] = []
    while await job.may_dispatch():
        made = await job.dispatch()
        found.append([reservation.target_step or 0 for reservation in made])
        await job.finish(made)
    return found


async def test_kept_batches_are_short_as_they_were_and_their_steps_know_it(runs: Runs) -> None:
    async with short_batches(runs) as store:
        report = await store.checkpoints.restore("kept")
        assert (4, 1, 0, {}) == (
            *(report.ready, report.tickets, report.reopened),
            report.left_out,
        )
        assert [3, 2, 0] == [(await store.step_target(step)).reachable for step in range(3)]
        async with opened_job(store, lookahead=3, per_step=3) as job:
            assert [[3, 3, 3]] == await dispatched_until_closed(job)


async def test_filled_batches_are_handed_out_for_what_is_missing(runs: Runs) -> None:
    async with short_batches(runs) as store:
        report = await store.checkpoints.restore("kept", incomplete="fill")
        assert (4, 1, 2, {}) == (
            *(report.ready, report.tickets, report.reopened),
            report.left_out,
        )
        assert [3, 3, 3] == [(await store.step_target(step)).reachable for step in range(3)]
        async with opened_job(store, lookahead=3, per_step=3) as job:
            assert [[1], [2, 2, 2], [3, 3, 3]] == await dispatched_until_closed(job)
            await job.redispatch()
            for step in range(4):
                await job.train(step)
            assert [3, 3, 3, 3] == [len(prompts) for prompts in job.trained.values()]


async def test_a_batch_that_lent_a_group_is_filled_and_no_longer_counts_as_short(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store:
        async with opened_job(store, lookahead=2) as job:
            first = await job.dispatch()
            await job.finish(first[:1])
            await job.rollout.buffer.abort(first[1].group_id)
            await job.finish(await job.dispatch())
            assert 1 == await store.buffer.promote_ready_group(to_target_step=0)
            await store.checkpoints.create("kept")
        await store.checkpoints.restore("kept", incomplete="fill")
        assert [2, 2] == [(await store.step_target(step)).reachable for step in range(2)]
        async with opened_job(store, lookahead=2) as job:
            assert [[1], [2, 2]] == await dispatched_until_closed(job)


async def test_dropped_batches_end_as_removed_and_are_dispatched_again(runs: Runs) -> None:
    async with short_batches(runs) as store:
        report = await store.checkpoints.restore("kept", incomplete="drop")
        assert (3, 0, 2) == (report.ready, report.tickets, report.reopened)
        assert [b"3", b"4"] == sorted(prompt or b"" for prompt in report.left_out.values())
        assert 2 == (await store.stats()).removed
        async with opened_job(store, lookahead=3, per_step=3) as job:
            expected = [[1, 1, 1], [2, 2, 2], [3, 3, 3]]
            assert expected == await dispatched_until_closed(job)
        await store.checkpoints.drop("kept")
        assert (await store.audit()).is_clean


async def test_batches_without_stamps_are_not_dispatched_again(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        cfg = ReadyFirstSamplerConfig(max_staleness_versions=1)
        sampler = create_sampler(store.buffer, cfg)
        for _ in range(2):
            await sampler.admit(trainer_version_fn=lambda: 0)
            for _ in range(2):
                await commit_ready(store, 0)
        await store.checkpoints.create("kept")
        for incomplete in ("fill", "drop"):
            report = await store.checkpoints.restore("kept", incomplete=incomplete)
            assert (4, 0, 0) == (report.ready, report.reopened, len(report.left_out))
            assert 1 == sampler.dispatch_index


@pytest.mark.parametrize("trained", [0, 1, 2])
async def test_without_groups_no_step_waits_for_those_of_passed_batches(
    runs: Runs, trained: int
) -> None:
    async with runs.open(groups_per_step=2) as store:
        cfg = ReadyFirstSamplerConfig(max_staleness_versions=1)
        sampler = create_sampler(store.buffer, cfg)
        for _ in range(2):
            await sampler.admit(trainer_version_fn=lambda: 0)
            ids = [await commit_ready(store, 0) for _ in range(2)]
        async with store.trainer(owner="job") as trainer:
            if trained:
                await trainer.buffer.claim_for_training(ids[:trained])
            await (trainer.commit_step(0) if trained else trainer.skip_step(0))
        await store.checkpoints.create("kept")
        report = await store.checkpoints.restore("kept", mode="none")
        assert 1 == report.reopened
        assert (2, 0) == (
            (await store.step_target(1)).reachable,
            (await store.step_target(1)).short,
        )


async def test_rows_that_are_gone_refuse_the_restore_or_are_generated_again(runs: Runs) -> None:
    async with short_batches(runs) as store:
        lost, *_ = await runs.payload_keys()
        group_id = lost.split(":")[-2]
        await runs.client.delete(lost)
        runs.audited = False
        async with nothing_changed(runs):
            with pytest.raises(CheckpointDamaged, match=f"1 groups .*{group_id}.* 0 of "):
                await store.checkpoints.restore("kept")
        report = await store.checkpoints.restore("kept", regenerate_damaged=True)
        assert [group_id] == list(report.regenerated)
        assert (3, 2) == (report.ready, report.tickets)
        assert (await store.audit()).is_clean
        async with opened_job(store, lookahead=3, per_step=3) as job:
            tickets = await job.redispatch()
            assert group_id in {ticket.group_id for ticket in tickets}
            assert 2 == len(prompts_of(tickets))


async def test_a_quarantined_group_whose_rows_are_gone_stays_quarantined_without_them(
    runs: Runs,
) -> None:
    async with runs.open(max_requeues=1) as store, store.trainer(owner="job") as trainer:
        await commit_ready(store, 0, group_id="poison")
        for _ in range(2):
            await trainer.buffer.claim_for_training(["poison"])
            await trainer.abort_step()
        await store.checkpoints.create("kept")
        await store.checkpoints.restore("kept", mode="prompts_only")
        assert (await store.audit()).is_clean
        await runs.client.delete(*await runs.payload_keys())
        report = await store.checkpoints.restore("kept", regenerate_damaged=True)
        assert (1, 0, ["poison"]) == (
            *(report.quarantined, report.tickets),
            list(report.regenerated),
        )
        await store.buffer.remove(["poison"])


async def test_more_groups_than_places_are_refused_unless_dropping_makes_them_fit(
    runs: Runs,
) -> None:
    async with short_batches(runs) as store:
        await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])
        async with runs.open(capacity=3):
            pass
        await store.collect_garbage()
        async with nothing_changed(runs):
            with pytest.raises(CheckpointMismatch, match=r"5 groups .* capacity of 3"):
                await store.checkpoints.restore("kept")
        assert 3 == (await store.checkpoints.restore("kept", incomplete="drop")).ready


@pytest.mark.parametrize("part", [Key.META, Key.SLOTS, Key.COUNTERS])
async def test_a_checkpoint_that_is_not_what_was_written_is_refused(runs: Runs, part: Key) -> None:
    async with short_batches(runs) as store:
        record = await store.checkpoints.record("kept")
        keyspace = store.buffer.session.link.gateway.keyspace
        await runs.client.delete(keyspace.saved(record.saved_id, part))
        async with nothing_changed(runs):
            with pytest.raises(CheckpointDamaged, match=r"digest is .* written was"):
                await store.checkpoints.restore("kept")
            with pytest.raises(CheckpointDamaged):
                await store.checkpoints.restore("kept", mode="none")


async def test_a_control_record_that_is_gone_is_noticed_without_a_digest(runs: Runs) -> None:
    async with short_batches(runs) as store:
        record = await store.checkpoints.record("kept")
        keyspace = store.buffer.session.link.gateway.keyspace
        await runs.client.delete(keyspace.saved(record.saved_id, Key.META))
        packed = await runs.client.hget(control_key(runs, Key.CHECKPOINTS), "kept")
        digest = b"16:%s" % record.digest.encode()
        assert digest in packed
        undigested = packed.replace(digest, b"0:")
        await runs.client.hset(control_key(runs, Key.CHECKPOINTS), "kept", undigested)
        with pytest.raises(CheckpointDamaged, match=r"lacks \['dispatch_index', 'trainer_version'"):
            await store.checkpoints.restore("kept")


async def test_unknown_modes_are_refused_before_anything_is_read(runs: Runs) -> None:
    async with short_batches(runs) as store, nothing_changed(runs):
        for options in ({"mode": "some"}, {"incomplete": "some"}):
            with pytest.raises(ValueError, match="got 'some'"):
                await store.checkpoints.restore("absent", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("record", [b"x", b"ready 1 2", b"eaten - - - - - - - - - - - - - -"])
async def test_a_damaged_run_is_mended_by_a_restore(runs: Runs, record: bytes) -> None:
    runs.audited = False
    async with short_batches(runs) as store:
        slots = control_key(runs, Key.SLOTS)
        damaged = next(slot for slot in await store.buffer.slots() if slot.state == "ready")
        await runs.client.hset(slots, damaged.group_id, record)
        await runs.client.hset(slots, "ghost", record)
        assert not (await store.audit()).is_clean
        assert 4 == (await store.checkpoints.restore("kept")).ready
        await store.collect_garbage()
        assert (await store.audit()).is_clean
        await store.buffer.claim_for_training([damaged.group_id])
