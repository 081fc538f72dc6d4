"""Hosts that block, stop, wake up too late or die, as processes on a real server."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from redis_replay import GroupState, InOrderSampler, ReplayStore, TrainerSession
from tests.contract.keyspace import collected, nothing_changed, owners
from tests.contract.lost_trainer import CALLS
from tests.harness import Runs, commit_ready, rows, until
from tests.workers.peers import Peer, started

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]

LEASE_SECONDS = 1.0
BLOCK_SECONDS = 6.0
LONG_BLOCK_SECONDS = 60.0
SLICE_SECONDS = 0.05
"""How long the GIL is held at a stretch."""
LATE_SECONDS = 2.0
"""How much later than its lease a dead owner's groups may be another's."""

Start = Callable[[str, str], AbstractAsyncContextManager[Peer]]


@pytest.fixture
async def runs(real_client: Any) -> AsyncIterator[Runs]:
    """Opens stores on the real server; every run it opened is audited after the test."""
    opened = Runs(real_client)
    yield opened
    await opened.check()


@pytest.fixture
def start(real_server: str, runs: Runs) -> Start:
    """Starts a process that attaches to the test's run under a role and an owner name."""

    @asynccontextmanager
    async def start(role: str, owner: str) -> AsyncIterator[Peer]:
        arguments = (real_server, runs.name, role, owner, str(LEASE_SECONDS))
        async with started("session_holder", *arguments) as peer:
            assert 0 < await peer.answer()
            yield peer

    return start


@asynccontextmanager
async def watching(runs: Runs) -> AsyncIterator[ReplayStore]:
    """Open the run and watch its owners at the pace of a short lease."""
    async with (
        runs.open() as store,
        store.rollout(owner="watcher", lease_seconds=LEASE_SECONDS),
    ):
        yield store


async def gone(runs: Runs, owner: str) -> None:
    """Wait until an owner was ended by who watches."""

    async def is_gone() -> bool:
        return owner not in await owners(runs)

    await until(is_gone, what=f"{owner!r} was ended")


async def claim_step(trainer: TrainerSession, step: int, groups: int) -> list[str]:
    """Wait for a batch of a step and claim it."""
    sampler = InOrderSampler(trainer.buffer, max_lookahead_versions=2)
    meta, _ = await trainer.select(
        sampler,
        current_train_weight=step,
        min_prompt_groups=groups,
        max_prompt_groups=groups,
        deadline_seconds=30.0,
    )
    return list(meta.extra_info["group_ids"])


@pytest.mark.parametrize(
    "seconds", [BLOCK_SECONDS, pytest.param(LONG_BLOCK_SECONDS, marks=pytest.mark.slow)]
)
async def test_hosts_that_compute_for_many_leases_keep_what_they_hold(
    runs: Runs, start: Start, seconds: float
) -> None:
    async with (
        watching(runs) as store,
        start("trainer", "job") as trainer,
        start("rollout", "host") as rollout,
    ):
        ready = [await commit_ready(store, 0, target_step=0) for _ in range(2)]
        assert ready == await trainer.ask("claim", 0, 2)
        held = await rollout.ask("reserve", 0, 1)
        for host in (trainer, rollout):
            await host.tell("compute", seconds, SLICE_SECONDS)
        for host in (trainer, rollout):
            slices = await host.answer(within_seconds=seconds + 30.0)
            assert slices <= seconds / SLICE_SECONDS
        slots = await store.buffer.slots()
        assert [("job", 0, 1), ("job", 0, 1), ("host", 0, 1)] == [
            (slot.owner, slot.training_requeues, slot.attempt) for slot in slots
        ]
        assert ready == await trainer.ask("train", 0)
        assert "committed" == await rollout.ask("commit", held, 5)
        for host in (trainer, rollout):
            await host.leave()


async def test_a_trainer_that_was_stopped_past_its_lease_changes_nothing_when_it_wakes(
    runs: Runs, start: Start
) -> None:
    async with watching(runs) as store, start("trainer", "stopped") as stopped:
        ready = [await commit_ready(store, 0, target_step=0) for _ in range(2)]
        assert ready == await stopped.ask("claim", 0, 2)
        held = await stopped.ask("reserve", 0, 1)
        stopped.process.send_signal(signal.SIGSTOP)
        await gone(runs, "stopped")
        async with store.trainer(owner="other") as trainer:
            assert ready == await claim_step(trainer, 0, 2)
            assert tuple(ready) == (await trainer.commit_step(0)).trained
            before = await store.buffer.slots()
            assert [(held, GroupState.RESERVED, None, 2)] == [
                (slot.group_id, slot.state, slot.owner, slot.attempt) for slot in before
            ]
            await collected(store)
            async with nothing_changed(runs):
                await stopped.tell("try_every_call")
                stopped.process.send_signal(signal.SIGCONT)
                outcomes = await stopped.answer()
                await stopped.leave()
        assert {"ClaimLost"} == {*outcomes.values()}, outcomes
        assert len(outcomes) == sum(map(len, CALLS.values()))
        stats = await store.stats()
        assert (2, 1, 2, 1) == (
            stats.trained,
            stats.trainer_version,
            stats.requeued,
            stats.reserved,
        )


async def test_what_killed_and_stopped_rollout_hosts_held_is_generated_again_once(
    runs: Runs, start: Start
) -> None:
    async with (
        watching(runs) as store,
        start("rollout", "killed") as killed,
        start("rollout", "stopped") as stopped,
        store.rollout(owner="next") as host,
    ):
        held = [await one.ask("reserve", 0, 1) for one in (killed, stopped)]
        killed.process.kill()
        stopped.process.send_signal(signal.SIGSTOP)
        for owner in ("killed", "stopped"):
            await gone(runs, owner)
        tickets = await host.take_tickets(max_tickets=9, weight_version=3)
        assert [(group_id, 2, 1, 3) for group_id in held] == [
            (ticket.group_id, ticket.attempt, ticket.target_step, ticket.weight_version)
            for ticket in tickets
        ]
        for group_id in held:
            await host.buffer.commit(
                group_id, rows(7), start_weight_version=3, end_weight_version=3
            )
        await stopped.tell("commit", held[1], 9)
        stopped.process.send_signal(signal.SIGCONT)
        assert "StaleOwner" == await stopped.answer()
        await stopped.leave()
        stored = await store.samples.get_samples([f"{group_id}_g0" for group_id in held])
        assert [7, 7] == [row["reward"] for row in stored]
        assert (2, 0) == ((await store.stats()).ready, (await store.stats()).reserved)


@pytest.mark.parametrize("takes_over", [False, True])
async def test_a_killed_trainer_is_replaced_at_once(
    runs: Runs, start: Start, record_property: Callable[[str, object], None], takes_over: bool
) -> None:
    owner, attempts = ("other", 0) if takes_over else ("job", 1)
    async with runs.open() as store, start("trainer", "job") as killed:
        ready = [await commit_ready(store, 0, target_step=0) for _ in range(2)]
        assert ready == await killed.ask("claim", 0, 2)
        killed.process.kill()
        await killed.process.wait()
        begun = time.monotonic()
        async with store.trainer(owner=owner, takeover=takes_over) as trainer:
            assert ready == await claim_step(trainer, 0, 2)
            taken = time.monotonic() - begun
            record_property("takeover_seconds", taken)
            assert taken < LEASE_SECONDS / 2
            requeues = {slot.training_requeues for slot in await store.buffer.slots()}
            assert {attempts} == requeues
            assert tuple(ready) == (await trainer.commit_step(0)).trained


async def test_a_killed_trainer_is_replaced_under_another_name_when_its_lease_is_over(
    runs: Runs, start: Start, record_property: Callable[[str, object], None]
) -> None:
    async with runs.open() as store, start("trainer", "job") as killed:
        ready = [await commit_ready(store, 0, target_step=0) for _ in range(2)]
        assert ready == await killed.ask("claim", 0, 2)
        async with store.trainer(owner="other") as trainer:
            killed.process.kill()
            begun = time.monotonic()
            assert ready == await claim_step(trainer, 0, 2)
            taken = time.monotonic() - begun
            record_property("takeover_seconds", taken)
            assert LEASE_SECONDS / 2 < taken < LEASE_SECONDS + LATE_SECONDS
            assert {1} == {slot.training_requeues for slot in await store.buffer.slots()}
            assert tuple(ready) == (await trainer.commit_step(0)).trained
