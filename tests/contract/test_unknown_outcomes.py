"""A call whose outcome its caller never learns: nothing is trained unseen, or done twice."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest

from redis_replay._redis import connect
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import load_script
from redis_replay._redis.scripts import ALL_SCRIPTS, Claim, Commit, Reserve, Settle
from redis_replay.errors import ClaimMismatch, DuplicateGroup, StoreUnavailable
from tests.chaos.proxy import Fault, FaultProxy, fault_proxy
from tests.contract.stage import Stage, opened_stage
from tests.harness import rows, until

pytestmark = pytest.mark.anyio

SOCKET_TIMEOUT_SECONDS = 0.1
DEADLINE_SECONDS = 0.3


@pytest.fixture
async def broken(
    real_server: str, real_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[FaultProxy, Stage]]:
    """A stage behind a proxy, whose calls give up soon; audited after the test."""
    for call in ALL_SCRIPTS:  # so that the first request runs, instead of asking for the script
        await real_client.script_load(load_script(call).text)
    monkeypatch.setattr(connect, "SILENCE_SECONDS", SOCKET_TIMEOUT_SECONDS)
    upstream = Path(urlsplit(real_server).path)
    run = f"test-{secrets.token_hex(6)}"
    async with (
        fault_proxy(tmp_path, upstream) as proxy,
        opened_stage(proxy.url, run, deadline_seconds=DEADLINE_SECONDS) as stage,
    ):
        yield proxy, stage
        assert () == (await stage.store.audit()).violations


@asynccontextmanager
async def unanswered(proxy: FaultProxy, marker: str) -> AsyncIterator[None]:
    """Execute the next request with the marker, but let no reply pass until the block has ended."""
    proxy.arm(marker.encode(), Fault.CUT_OFF)
    with pytest.raises(StoreUnavailable):
        yield
    assert proxy.struck.is_set()
    proxy.release()


async def test_a_claim_without_a_reply_is_given_back_before_the_next_one(
    broken: tuple[FaultProxy, Stage],
) -> None:
    proxy, stage = broken
    async with unanswered(proxy, load_script(Claim).sha):
        await stage.select()
    assert 2 == (await stage.store.stats()).claimed
    assert ["a", "b"] == await stage.select()
    assert ("a", "b") == (await stage.trainer.commit_step(0)).trained
    assert 2 == (await stage.store.stats()).requeued


async def test_a_step_does_not_train_groups_whose_claim_had_no_reply(
    broken: tuple[FaultProxy, Stage],
) -> None:
    proxy, stage = broken
    async with unanswered(proxy, load_script(Claim).sha):
        await stage.select()
    with pytest.raises(ClaimMismatch):
        await stage.trainer.commit_step(0)
    assert 0 == (await stage.store.stats()).trained
    assert ["a", "b"] == await stage.select()


async def test_a_step_does_not_train_groups_whose_metas_could_not_be_read(
    broken: tuple[FaultProxy, Stage],
) -> None:
    proxy, stage = broken
    records = stage.store.buffer.session.link.gateway.keyspace.control(Key.GROUPS)
    async with unanswered(proxy, records):
        await stage.select()
    with pytest.raises(ClaimMismatch):
        await stage.trainer.commit_step(0)
    assert 0 == (await stage.store.stats()).trained
    assert ["a", "b"] == await stage.select()


async def test_a_claim_cancelled_while_its_metas_are_read_is_given_back(
    broken: tuple[FaultProxy, Stage],
) -> None:
    proxy, stage = broken
    records = stage.store.buffer.session.link.gateway.keyspace.control(Key.GROUPS)
    proxy.arm(records.encode(), Fault.LATE_REPLY)
    async with anyio.create_task_group() as group:
        group.start_soon(stage.select)
        await proxy.struck.wait()
        group.cancel_scope.cancel()
    proxy.release()

    async def nothing_is_claimed() -> bool:
        return (await stage.store.stats()).claimed == 0

    await until(nothing_is_claimed, what="the cancelled claim was given back")
    assert ["a", "b"] == await stage.select()


async def test_a_commit_without_a_reply_is_one_commit_when_repeated(
    broken: tuple[FaultProxy, Stage],
) -> None:
    proxy, stage = broken
    versions: dict[str, Any] = {"start_weight_version": 0, "end_weight_version": 0}
    async with unanswered(proxy, load_script(Commit).sha):
        await stage.rollout.buffer.commit("d", rows(7), **versions)
    await stage.rollout.buffer.commit("d", rows(8, length=5), **versions)
    [row] = await stage.rollout.samples.get_samples(["d_g0"])
    assert 7.0 == row["reward"]


async def test_a_reservation_without_a_reply_is_found_when_repeated(
    broken: tuple[FaultProxy, Stage],
) -> None:
    proxy, stage = broken
    async with unanswered(proxy, load_script(Reserve).sha):
        await stage.rollout.buffer.reserve(0, group_id="new", target_step=1)
    with pytest.raises(DuplicateGroup):
        await stage.rollout.buffer.reserve(0, group_id="new", target_step=1)
    await stage.rollout.buffer.abort("new")


async def test_a_step_without_a_reply_is_answered_when_committed_again(
    broken: tuple[FaultProxy, Stage],
) -> None:
    proxy, stage = broken
    await stage.select()
    async with unanswered(proxy, load_script(Settle).sha):
        await stage.trainer.commit_step(0)
    assert ("a", "b") == (await stage.trainer.commit_step(0)).trained
    stats = await stage.store.stats()
    assert (2, 1) == (stats.trained, stats.trainer_version)
