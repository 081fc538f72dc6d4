"""Restoring a checkpoint: what comes back, in which state, and what a restored run goes on with."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from redis_replay import (
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    ReplayStore,
    WindowedSamplerConfig,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import CheckpointExists
from redis_replay.types import SlotView
from tests.contract.job import opened_job, prompts_of
from tests.contract.keyspace import collected, control_key, nothing_changed, snapshot
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

GOES_ON = (b"seq", b"store_epoch", b"next_fence", b"next_order", b"loader_revision")
"""Fields of the control record that a restore does not take back."""
FORGOTTEN = (b"restored", b"restored_by", b"last_step", b"last_claims", b"last_answer")


async def content(runs: Runs, store: ReplayStore) -> dict[str, Any]:
    """Return what a run holds, but for who holds it and for the numbers that only rise."""
    await collected(store)
    kept = await snapshot(runs)
    found = {key.value: kept.get(control_key(runs, key), {}) for key in (Key.PROMPTS, Key.STEPS)}
    for key in (Key.TALLY, Key.COUNTERS, Key.ENDS):
        found[key.value] = kept.get(control_key(runs, key), {})
    found["admissions"] = set(kept.get(control_key(runs, Key.ADMISSIONS), {}))
    dropped = (*GOES_ON, *FORGOTTEN)
    meta = kept[control_key(runs, Key.META)]
    found["meta"] = {name: value for name, value in meta.items() if name not in dropped}
    slots = kept.get(control_key(runs, Key.SLOTS), {})
    found["slots"] = {name: _at_rest(record) for name, record in slots.items()}
    return found


def _at_rest(record: bytes) -> list[bytes]:
    words = record.split(b" ")
    words[0] = b"ready" if words[0] == b"claimed" else words[0]
    for word in (2, 7, 9, 11):  # fence, epoch, batch, written columns
        words[word] = b"-"
    return words


async def by_id(store: ReplayStore) -> dict[str, SlotView]:
    """Return the live groups by id."""
    return {slot.group_id: slot for slot in await store.buffer.slots()}


async def fill_every_state(store: ReplayStore) -> None:
    """Bring one group into each state and end, with tallies, accounts, loader and open batch."""
    rollout = store.rollout(owner="host")
    await rollout.__aenter__()
    trainer = store.trainer(owner="job")
    await trainer.__aenter__()
    sampler = create_sampler(rollout.buffer, InOrderSamplerConfig(max_lookahead_versions=3))
    for index in range(3):
        assert index == await sampler.admit(trainer_version_fn=lambda: 0)
        for place in range(2):
            name = f"b{index}-{place}"
            await rollout.buffer.reserve(
                0, target_step=index, group_id=name, prompt_ref=name.encode()
            )
    for name in ("b0-0", "b0-1", "b1-0"):
        await rollout.buffer.commit(name, rows(7), start_weight_version=0, end_weight_version=0)
    await trainer.buffer.claim_for_training(["b0-0", "b0-1"])
    await trainer.samples.put_samples(["b0-0_g0"], fields={"x": [1]})
    await rollout.buffer.abort("b2-1")
    poison = await commit_ready(rollout, 0, group_id="poison")
    async with store.trainer(owner="failing") as failing:
        for _ in range(2):
            await failing.buffer.claim_for_training([poison])
            await failing.abort_step()
    async with rollout.mutation() as cut:
        cut.set_loader_state(b"6")
    assert 3 == await sampler.admit(trainer_version_fn=lambda: 0)  # nobody has reserved for it


async def disturb(store: ReplayStore) -> None:
    """Train, end, admit and add groups, so that little is what it was."""
    async with opened_job(store, lookahead=3) as job:
        await job.trainer.buffer.claim_for_training(["b0-0", "b0-1"])
        await job.trainer.commit_step(0)
        await store.buffer.remove(["b1-0", "poison"])
        await store.drain_step_reward_metrics(1)
        await store.buffer.reserve(1, group_id="b0-0", target_step=1)
        await job.dispatch()
        job.dispatcher.set_gate_window(5)
        await job.dispatcher.flush()


async def test_a_restored_run_is_what_it_was(runs: Runs) -> None:
    async with runs.open(groups_per_step=2, max_requeues=1, max_attempts=9) as store:
        await fill_every_state(store)
        before, seen = await content(runs, store), await by_id(store)
        await store.checkpoints.create("kept")
        await disturb(store)
        assert before != await content(runs, store)
        report = await store.checkpoints.restore("kept")
        assert before == await content(runs, store)
        assert (3, 2, 1, 0) == (report.ready, report.tickets, report.quarantined, report.reopened)
        now = await by_id(store)
        assert {"b0-0": "ready", "b1-1": "reserved", "b2-0": "reserved"}.items() <= {
            name: slot.state.value for name, slot in now.items()
        }.items()
        assert all(slot.owner is None for slot in now.values())
        assert now["b0-0"].fence > seen["b0-0"].fence
        assert now["b1-0"].fence == seen["b1-0"].fence
        await store.checkpoints.drop("kept")
        assert [] == [key for key in await runs.keys() if ":saved:" in key]


async def test_restoring_twice_is_restoring_once(runs: Runs) -> None:
    async with runs.open(groups_per_step=2, max_requeues=1) as store:
        await fill_every_state(store)
        before = await content(runs, store)
        await store.checkpoints.create("kept")
        await disturb(store)
        first = await store.checkpoints.restore("kept")
        await store.collect_garbage()
        keys = set(await runs.keys())
        second = await store.checkpoints.restore("kept")
        await store.collect_garbage()
        assert (before, keys) == (await content(runs, store), set(await runs.keys()))
        assert first.store_epoch + 1 == second.store_epoch
        assert (first.ready, first.tickets) == (second.ready, second.tickets)
        await disturb_again(store)
        await store.checkpoints.restore("kept")
        assert before == await content(runs, store)


async def disturb_again(store: ReplayStore) -> None:
    """Take the tickets and train the step once more."""
    async with opened_job(store, lookahead=3) as job:
        tickets = await job.rollout.take_tickets(max_tickets=9, weight_version=0)
        assert ["b1-1", "b2-0"] == [ticket.group_id for ticket in tickets]
        await job.trainer.buffer.claim_for_training(["b0-0", "b0-1"])
        await job.trainer.commit_step(0)


async def test_a_ticket_keeps_its_order_prompt_target_and_attempt(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.rollout(owner="host") as host:
            for name, target in (("later", 3), ("sooner", 1)):
                await host.buffer.reserve(
                    2, group_id=name, target_step=target, prompt_ref=name.encode()
                )
            await store.checkpoints.create("kept")
            await host.buffer.remove(["later"])
        await store.checkpoints.restore("kept")
        async with store.rollout(owner="other") as other:
            found = await other.take_tickets(max_tickets=9, weight_version=4)
            assert [("later", 3, b"later", 1, 4), ("sooner", 1, b"sooner", 1, 4)] == [
                (t.group_id, t.target_step, t.prompt_ref, t.attempt, t.weight_version)
                for t in found
            ]
            fresh = await other.buffer.reserve(4)
            orders = {name: slot.order for name, slot in (await by_id(store)).items()}
            assert 3 == orders[fresh.group_id]


async def test_without_rows_all_groups_are_tickets_and_no_attempt_is_counted(runs: Runs) -> None:
    async with runs.open(groups_per_step=2, max_requeues=1) as store:
        await fill_every_state(store)
        await store.checkpoints.create("kept")
        report = await store.checkpoints.restore("kept", mode="prompts_only")
        assert (0, 5, 1) == (report.ready, report.tickets, report.quarantined)
        assert 0 == (await store.stats()).payload_bytes
        assert 1 == (await store.checkpoints.show("kept")).groups["quarantined"]
        await store.checkpoints.drop("kept")
        assert [] == await runs.payload_keys()
        async with opened_job(store, lookahead=3) as job:
            tickets = await job.rollout.take_tickets(max_tickets=9, weight_version=0)
            assert [("b0-0", 0), ("b0-1", 0), ("b1-0", 1), ("b1-1", 1), ("b2-0", 2)] == [
                (ticket.group_id, ticket.target_step) for ticket in tickets
            ]
            assert {1} == {ticket.attempt for ticket in tickets}
            for ticket in tickets:
                await job.rollout.buffer.commit(
                    ticket.group_id, rows(), start_weight_version=0, end_weight_version=0
                )
            await job.train(0)


async def test_without_groups_the_admitted_batches_are_dispatched_again(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        async with opened_job(store) as job:
            first = await job.dispatch()
            await job.finish(first)
            await job.finish(await job.dispatch())
            await job.train(0)
            last = await job.dispatch()
            await job.finish(last[:1])
            await store.checkpoints.create("kept")
        report = await store.checkpoints.restore("kept", mode="none")
        assert (0, 0, 2) == (report.ready, report.tickets, report.reopened)
        assert {b"2", b"3", b"4", b"5"} == set(report.left_out.values())
        stats = await store.stats()
        assert (0, 4, 1, 2) == (
            *(stats.occupancy, stats.removed, stats.trainer_version, stats.dispatch_index),
        )
        async with opened_job(store) as job:
            for step, target in ((1, 1), (2, 2)):
                made = await job.dispatch()
                assert {target} == {reservation.target_step for reservation in made}
                await job.finish(made)
                await job.train(step)
            assert {1: [6, 7], 2: [8, 9]} == job.trained


Policy = Literal["same", "wider"]


@pytest.mark.parametrize("policy", ["same", "wider"])
async def test_a_gate_window_comes_back_only_to_the_windows_it_belongs_to(
    runs: Runs, policy: Policy
) -> None:
    lookahead = {"same": 1, "wider": 4}[policy]
    async with runs.open() as store:
        sampler = create_sampler(store.buffer, InOrderSamplerConfig(max_lookahead_versions=1))
        sampler.set_gate_window(2)  # type: ignore[attr-defined]
        await sampler.flush()  # type: ignore[attr-defined]
        await store.checkpoints.create("kept")
        cfg = InOrderSamplerConfig(max_lookahead_versions=lookahead)
        other = create_sampler(store.buffer, cfg)
        other.set_gate_window(7)  # type: ignore[attr-defined]
        await other.flush()  # type: ignore[attr-defined]
        await store.checkpoints.restore("kept")
        assert {"same": 2, "wider": 7}[policy] == store.buffer.admission.gate_window


async def test_a_run_that_was_switched_to_a_gate_since_does_not_open_it_too_far(runs: Runs) -> None:
    async with runs.open(switch_policy=True, groups_per_step=2) as store:
        await create_sampler(store.buffer, WindowedSamplerConfig()).flush()  # type: ignore[attr-defined]
        await store.publish_trainer_version(5)
        await store.checkpoints.create("kept")
        cfg = ReadyFirstSamplerConfig(max_staleness_versions=1)
        sampler = create_sampler(store.buffer, cfg)
        await sampler.flush()  # type: ignore[attr-defined]
        await store.checkpoints.restore("kept")
        assert (5, 4) == (store.trainer_version, sampler.dispatch_index)


async def test_a_changed_capacity_stays_and_is_what_the_restored_groups_must_fit(
    runs: Runs,
) -> None:
    async with runs.open(capacity=4) as store:
        for _ in range(3):
            await commit_ready(store, 0)
        await store.checkpoints.create("kept")
        async with runs.open(capacity=12):
            await store.checkpoints.restore("kept")
        assert (12, 3) == ((await store.stats()).capacity, (await store.stats()).ready)


async def test_a_pinned_name_is_not_given_away_after_a_restore(runs: Runs) -> None:
    async with runs.open() as store:
        for name in ("pinned", "plain"):
            await store.checkpoints.create(name, pin=name == "pinned")
        await store.checkpoints.restore("pinned")
        assert 2 == (await store.checkpoints.create("plain")).store_epoch
        async with nothing_changed(runs):
            with pytest.raises(CheckpointExists, match="'pinned' already"):
                await store.checkpoints.create("pinned")
        await store.checkpoints.unpin("pinned")
        assert 2 == (await store.checkpoints.create("pinned")).store_epoch


async def test_ids_that_were_given_again_are_the_restored_groups_after_a_restore(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        for value in (1, 2):
            await store.buffer.reserve(0, group_id="g")
            await store.buffer.commit(
                "g", rows(value), start_weight_version=0, end_weight_version=0
            )
            await store.checkpoints.create(f"c{value}")
            await store.buffer.remove_group("g")
        await store.collect_garbage()
        for value in (1, 2, 1):
            await store.checkpoints.restore(f"c{value}")
            await store.buffer.claim_for_training(["g"])
            [row, _] = await store.samples.get_samples(["g_g0", "g_g1"])
            assert value == row["input_ids"][0]
        await store.collect_garbage()
        assert 2 == len(await runs.payload_keys())
        await store.checkpoints.drop("c1")
        await store.checkpoints.drop("c2")
        assert 1 == len(await runs.payload_keys())


async def test_a_resumed_run_trains_the_batches_an_uninterrupted_one_would_have(
    runs: Runs,
) -> None:
    async with runs.open(groups_per_step=2) as store, opened_job(store) as job:
        await job.run(range(6), prompts=12)
        uninterrupted = job.trained
    async with runs.open(run=f"{runs.name}-resumed", groups_per_step=2) as store:
        trained: dict[int, list[int]] = {}
        async with opened_job(store) as job:
            await job.run(range(3), prompts=12)
            flying = await job.dispatch()
            assert [8, 9] == prompts_of(flying)
            await job.finish(flying[:1])
            await job.claim(3)
            await store.checkpoints.create("kept")
            await job.trainer.requeue()
            await job.finish(flying[1:])
            trained |= job.trained
            await job.run(range(3, 5), prompts=12)
        await store.checkpoints.restore("kept")
        async with opened_job(store) as job:
            assert [9] == prompts_of(await job.redispatch())
            await job.run(range(3, 6), prompts=12)
            trained |= job.trained
    assert uninterrupted == trained
    assert [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]] == list(trained.values())
