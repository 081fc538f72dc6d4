"""Restores whose answer does not come in time: found, repeated, or told for what they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio
import pytest
from redis.exceptions import ConnectionError as ClientConnectionError

from redis_replay import ReplayStore
from redis_replay._redis.checkpoint_scripts import Restore
from redis_replay._redis.lua import load_script
from redis_replay.errors import StaleStore, StoreUnavailable
from tests.harness import Runs, commit_ready, until

pytestmark = pytest.mark.anyio


class LostAnswer:
    """Stands between a store and its server: answers to restores do not arrive."""

    def __init__(self, store: Any, after: Callable[[], Awaitable[Any]]) -> None:
        self.gateway = store.buffer.session.link.gateway
        self.lines = self.gateway._lines
        self._after = after

    async def run(self, commands: Any) -> Any:
        """Run commands; what happens ``after`` a restore happens before its caller knows."""
        replies = await self.lines.run(commands)
        script = load_script(Restore)
        for command, reply in zip(commands, replies, strict=True):
            if (
                command[1:2]
                and command[1] in (script.sha, script.text)
                and not isinstance(reply, Exception)
            ):
                await self._after()
        return replies

    async def close(self) -> None:
        await self.lines.close()


@asynccontextmanager
async def lost_answers(
    store: ReplayStore, *, after: Literal["is away", "answers again"]
) -> AsyncIterator[None]:
    """Lose the answer of each restore in the block; the deadline is over at once."""
    is_away = False

    async def lose() -> None:
        nonlocal is_away
        is_away = after == "is away"
        raise ClientConnectionError("the answer did not come")

    lost = LostAnswer(store, lose)
    gateway, patience = lost.gateway, lost.gateway.deadline_seconds
    run = lost.run

    async def run_or_fail(commands: Any) -> Any:
        if is_away:
            raise ClientConnectionError("the server is away")
        return await run(commands)

    lost.run = run_or_fail  # type: ignore[method-assign]
    gateway._lines, gateway.deadline_seconds = lost, 0.0
    yield
    gateway._lines, gateway.deadline_seconds = lost.lines, patience


@asynccontextmanager
async def kept_run(runs: Runs) -> AsyncIterator[ReplayStore]:
    """Open a run whose checkpoint has one ready group, at version 0; it is at 2 since."""
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g")
        await store.checkpoints.create("kept")
        await store.publish_trainer_version(2)
        await commit_ready(store, 2, group_id="later")
        yield store


async def test_an_answer_that_was_lost_is_found_in_the_store(runs: Runs) -> None:
    async with kept_run(runs) as store:
        async with lost_answers(store, after="answers again"):
            report = await store.checkpoints.restore("kept")
        assert (1, 0, 2) == (report.ready, report.tickets, report.store_epoch)
        assert 2 == store.run.store_epoch
        assert 1 == (await store.stats()).occupancy
        await store.buffer.reserve(0)


async def test_a_restore_is_told_to_be_open_and_repeated_gives_its_report(runs: Runs) -> None:
    async with kept_run(runs) as store:
        async with lost_answers(store, after="is away"):
            with pytest.raises(StoreUnavailable, match=r"(?s)'kept' got no answer.*open whether"):
                await store.checkpoints.restore("kept")
        with pytest.raises(StaleStore):
            await store.buffer.reserve(0)
        report = await store.checkpoints.restore("kept")
        assert (1, 2) == (report.ready, report.store_epoch)
        await store.buffer.reserve(0)


async def test_a_restore_that_was_not_applied_is_told_so(runs: Runs) -> None:
    async with kept_run(runs) as store:
        gateway: Any = store.buffer.session.link.gateway
        call, patience = gateway.call, gateway.deadline_seconds

        async def refuse(asked: Any, *args: Any, **options: Any) -> Any:
            if isinstance(asked, Restore):
                raise StoreUnavailable("nobody is there")
            return await call(asked, *args, **options)

        gateway.call = refuse
        with pytest.raises(StoreUnavailable, match=r"(?s)has not been applied.*nobody is there"):
            await store.checkpoints.restore("kept")
        gateway.call, gateway.deadline_seconds = call, patience
        assert 2 == (await store.stats()).occupancy
        assert 2 == (await store.checkpoints.restore("kept")).store_epoch


async def test_another_restore_goes_on_after_one_without_an_answer(runs: Runs) -> None:
    async with kept_run(runs) as store:
        async with lost_answers(store, after="is away"):
            with pytest.raises(StoreUnavailable):
                await store.checkpoints.restore("kept")
        report = await store.checkpoints.restore("kept", mode="prompts_only")
        assert (0, 1, 3) == (report.ready, report.tickets, report.store_epoch)


@pytest.mark.parametrize("dry_run", [False, True], ids=["at once", "after a dry run"])
async def test_resuming_again_goes_on_after_a_restore_without_an_answer(
    runs: Runs, dry_run: bool
) -> None:
    async with kept_run(runs) as store:
        async with lost_answers(store, after="is away"):
            with pytest.raises(StoreUnavailable, match="resume"):
                await store.resume(model_step=0)
        report = await store.resume(model_step=0, dry_run=dry_run)
        assert ("restore", "kept", 0) == (report.action, report.checkpoint, report.step)
        assert "without an answer" in report.warnings[-1]
        assert 2 == store.run.store_epoch
        await store.buffer.reserve(0)
        again = await store.resume(model_step=0)
        assert ("continue", None) == (again.action, again.checkpoint)


async def test_a_resume_that_was_restored_in_time_has_the_restores_report(runs: Runs) -> None:
    async with kept_run(runs) as store:
        async with lost_answers(store, after="answers again"):
            report = await store.resume(model_step=0)
        assert ("restore", "kept", 0) == (report.action, report.checkpoint, report.step)


async def test_an_attach_that_the_own_restore_refuses_is_made_again(runs: Runs) -> None:
    held: list[str] = []
    async with kept_run(runs) as store, anyio.create_task_group() as tasks:
        restoring = store.buffer.session.link.restoring

        async def attach() -> None:
            async with store.rollout(owner="host") as host:
                await host.buffer.reserve(0, group_id="r")
                held.append("r")

        async def waits() -> bool:
            return restoring.statistics().tasks_waiting == 1

        async def attach_meanwhile() -> None:
            tasks.start_soon(attach)
            await until(waits, what="the attach waited for the restore")

        gateway: Any = store.buffer.session.link.gateway
        gateway._lines = LostAnswer(store, attach_meanwhile)
        await store.checkpoints.restore("kept")
    assert ["r"] == held
