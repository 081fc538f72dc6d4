"""Quarantined groups are brought back by name: trained or generated as if they had never failed."""

from __future__ import annotations

import anyio
import pytest

from redis_replay import InOrderSamplerConfig, create_sampler, open_store
from redis_replay.errors import BufferFull, StaleOwner, UnknownGroup, WrongState
from redis_replay.heart import end_owner
from tests.command_line import CommandLine
from tests.contract.keyspace import nothing_changed
from tests.contract.waits import Waits
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_a_finished_group_is_ready_at_its_old_place_and_is_trained(runs: Runs) -> None:
    async with runs.open(max_requeues=1) as store, store.trainer(owner="job") as trainer:
        for name in ("a", "b", "c"):
            await commit_ready(store, 0, group_id=name)
        for _ in range(2):
            await trainer.buffer.claim_for_training(["b"])
            await trainer.abort_step()
        assert 1 == (await store.stats()).quarantined
        assert 1 == await store.buffer.reinstate(["b"])
        stats = await store.stats()
        assert (0, 3, 3) == (stats.quarantined, stats.ready, stats.occupancy)
        assert ["a", "b", "c"] == [slot.group_id for slot in await store.buffer.slots()]
        await trainer.buffer.claim_for_training(["b"])
        await trainer.abort_step()  # one failure is allowed again
        await trainer.buffer.claim_for_training(["b"])
        assert ("b",) == (await trainer.commit_step(0)).trained


async def test_an_unfinished_group_is_a_ticket_with_its_prompt(runs: Runs) -> None:
    async with runs.open(max_attempts=1) as store:
        host = await store.rollout(owner="host").__aenter__()
        await host.buffer.reserve(0, group_id="r", target_step=2, prompt_ref=b"p")
        link = store.buffer.session.link
        await end_owner(link.gateway, link.run.frame, "host", host.epoch)
        assert 1 == (await store.stats()).quarantined
        assert 1 == await store.buffer.reinstate(["r"])
        async with store.rollout(owner="other") as other:
            [ticket] = await other.take_tickets(max_tickets=9, weight_version=1)
            assert ("r", 2, b"p", 1) == (
                *(ticket.group_id, ticket.target_step, ticket.prompt_ref, ticket.attempt),
            )
            await other.buffer.commit("r", rows(), start_weight_version=1, end_weight_version=1)


async def test_a_step_has_its_group_back(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
        assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
        for name in ("a", "b"):
            await commit_ready(store, 0, group_id=name, target_step=0)
        await store.buffer.quarantine(["a"])
        assert 1 == (await store.step_target(0)).reachable
        await store.buffer.reinstate(["a"])
        assert 2 == (await store.step_target(0)).reachable
        _, groups = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
        assert 2 == groups


async def test_a_trainer_that_waits_takes_a_group_that_came_back(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_ready(store, 0, group_id="a")
        await store.buffer.quarantine(["a"])
        sampler = create_sampler(trainer.buffer, {"name": "windowed"})
        waits = Waits(store)

        async def bring_back() -> None:
            await waits.begun()
            await store.buffer.reinstate(["a"])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bring_back)
            with anyio.fail_after(0.9):  # a waiter looks again by itself after a second
                await trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)


async def test_what_is_not_quarantined_or_has_no_place_is_refused(runs: Runs) -> None:
    async with runs.open(capacity=2) as store:
        for name in ("a", "b"):
            await commit_ready(store, 0, group_id=name)
        await store.buffer.quarantine(["a"])
        await store.buffer.reserve(0)
        async with nothing_changed(runs):
            with pytest.raises(BufferFull, match="2 of 2"):
                await store.buffer.reinstate(["a"])
            with pytest.raises(WrongState, match="'b'"):
                await store.buffer.reinstate(["b"])
            with pytest.raises(UnknownGroup, match="'nobody'"):
                await store.buffer.reinstate(["nobody"])
            with pytest.raises(ValueError, match="a"):
                await store.buffer.reinstate(["a", "a"])


async def test_a_session_that_has_ended_brings_nothing_back(runs: Runs) -> None:
    async with runs.open() as store:
        host = await store.rollout(owner="host").__aenter__()
        await commit_ready(store, 0, group_id="a")
        await store.buffer.quarantine(["a"])
        link = store.buffer.session.link
        await end_owner(link.gateway, link.run.frame, "host", host.epoch, planned=True)
        async with nothing_changed(runs):
            with pytest.raises(StaleOwner):
                await host.buffer.reinstate(["a"])


async def test_the_command_line_brings_groups_back(
    runs: Runs, real_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = CommandLine(capsys, url=real_server)
    place = ("--run", f"{runs.name}-cli")
    async with open_store(real_server, run=place[1], capacity=9, group_size=2) as store:
        await commit_ready(store, 0, group_id="a")
        await store.buffer.quarantine(["a"])
        assert {"reinstated": 1} == (await cli("reinstate", "a", *place, "--json")).document
        assert 1 == (await store.stats()).ready
        refused = await cli("reinstate", "a", *place)
        assert (2, True) == (refused.status, "group 'a' is ready" in refused.err)
        await store.discard()
