"""A run behind Sentinels: whoever is master serves it, and a lost write is noticed."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

import redis_replay
from redis_replay import ReplayStore
from redis_replay._redis.connect import Target
from redis_replay.errors import ReplayError, StoreUnavailable
from tests.contract.topologies import Watched, watched_pair
from tests.harness import GROUP_SIZE, commit_ready, rows

pytestmark = pytest.mark.anyio

GROUPS = 8


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A master with a replica, which each test breaks."""
    with watched_pair(tmp_path) as started:
        yield started


def open_run(watched: Watched, run: str) -> ReplayStore:
    wanted: dict[str, Any] = {"capacity": 4 * GROUPS, "group_size": GROUP_SIZE}
    return redis_replay.open_store(watched.url, run=run, **wanted)


@pytest.fixture
def run() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
async def test_the_replica_takes_over_and_nothing_that_it_had_is_lost(
    watched: Watched, run: str, sent: signal.Signals
) -> None:
    async with open_run(watched, run) as store:
        before = [await commit_ready(store, 0) for _ in range(GROUPS)]
        await anyio.to_thread.run_sync(watched.until_in_step)
        watched.master.process.send_signal(sent)
        after = [await commit_ready(store, 0) for _ in range(GROUPS)]
        listed = [slot.group_id for slot in await store.buffer.slots()]
        assert before + after == listed
        report = await store.audit()
        assert () == report.violations
    assert 2 * GROUPS == watched.replica.client.hlen(_slots_key(watched))


async def test_what_the_replica_never_had_is_noticed_by_who_saw_it(
    watched: Watched, run: str
) -> None:
    async with open_run(watched, run) as store:
        await commit_ready(store, 0)
        await anyio.to_thread.run_sync(watched.until_in_step)
        watched.part()
        lost = await commit_ready(store, 0)
        watched.master.kill()
        watched.replica.process.send_signal(signal.SIGCONT)
        with pytest.raises(ReplayError, match="history"):
            await commit_ready(store, 0)
    async with open_run(watched, run) as store:
        assert lost not in {slot.group_id for slot in await store.buffer.slots()}
        await commit_ready(store, 0)


@dataclass
class Signpost:
    """A finder that says what the test wants."""

    address: tuple[str, int]

    def find(self) -> tuple[str, int]:
        return self.address


@pytest.mark.parametrize("transfer", ["channel", "plain"])
async def test_connections_to_a_demoted_master_are_left(
    watched: Watched, run: str, transfer: Any
) -> None:
    watched.sentinel.kill()  # it would put things right, connections included
    post = Signpost(watched.master.address)
    known = Target.from_url(watched.url)
    client = replace(known, settings={**known.settings, "finder": post}).connect()
    wanted: dict[str, Any] = {"capacity": GROUPS, "group_size": GROUP_SIZE, "transfer": transfer}
    async with redis_replay.open_store(client=client, run=run, **wanted) as store:
        for length in (3, 1 << 16):
            await _commit(store, length)
        watched.until_in_step()
        watched.replica.client.replicaof("NO", "ONE")
        post.address = watched.replica.address
        watched.master.client.replicaof(*watched.replica.address)
        for length in (1 << 16, 3):
            await _commit(store, length)
        report = await store.audit()
        assert () == report.violations
        assert 4 == report.groups_checked


async def _commit(store: ReplayStore, length: int) -> None:
    made = await store.buffer.reserve(0)
    wide = rows(length=length)
    await store.buffer.commit(made.group_id, wide, start_weight_version=0, end_weight_version=0)


async def test_a_service_that_no_sentinel_knows_is_unavailable(watched: Watched) -> None:
    url = f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/other"
    store = redis_replay.open_store(url, run="r", capacity=1, group_size=1, deadline_seconds=0.3)
    with pytest.raises(StoreUnavailable, match="'other'"):
        async with store:
            pass


def _slots_key(watched: Watched) -> bytes:
    [key] = watched.replica.client.keys("rr:{test-*:slots")
    return bytes(key)
