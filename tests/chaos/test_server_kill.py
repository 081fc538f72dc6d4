"""The server is killed again and again under traffic: nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import secrets
import signal
from collections import Counter
from pathlib import Path

import anyio
import pytest

import redis_replay
from redis_replay import embedded
from tests.harness import GROUP_SIZE, until
from tests.workers.peers import Peer, peers

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]

KILLS = 4
GROUPS_BETWEEN_KILLS = 40
BATCH = 10


class Traffic:
    """Two writers and a trainer, each a process, until the last kill is survived."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.trained: list[str] = []
        self.trains = True
        self.is_over = False

    async def write(self, writer: Peer, prefix: str) -> None:
        first = 0
        while not self.is_over:
            self.acknowledged += await writer.ask("write", prefix, first, BATCH)
            first += BATCH

    async def train(self, trainer: Peer) -> None:
        while self.trains:
            self.trained += await trainer.ask("train_intact")

    async def reach(self, count: int) -> None:
        """Wait until so many commits are acknowledged."""

        async def reached() -> bool:
            return len(self.acknowledged) >= count

        await until(reached, what=f"{count} commits were acknowledged", seconds=30.0)


async def kill_again_and_again(lease: embedded.EmbeddedLease, traffic: Traffic) -> set[int]:
    """Kill the server whenever some more commits are acknowledged; return who was killed.

    Before the last time the trainer stops, so that groups wait in the buffer through that one.
    """
    killed: set[int] = set()
    for number in range(KILLS):
        traffic.trains = number < KILLS - 1
        await traffic.reach(len(traffic.acknowledged) + GROUPS_BETWEEN_KILLS)
        pid = lease.server_pid
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    await traffic.reach(len(traffic.acknowledged) + GROUPS_BETWEEN_KILLS)
    traffic.is_over = True
    return killed


async def test_no_acknowledged_commit_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    run, traffic = f"test-{secrets.token_hex(6)}", Traffic()
    with embedded.open_embedded(tmp_path, appendfsync="always") as lease:
        async with redis_replay.open_store(
            lease.url, run=run, capacity=10_000, group_size=GROUP_SIZE
        ) as store:
            async with peers(lease.url, run, 3) as (first, second, trainer):
                async with anyio.create_task_group() as group:
                    group.start_soon(traffic.write, first, "a")
                    group.start_soon(traffic.write, second, "b")
                    group.start_soon(traffic.train, trainer)
                    killed = await kill_again_and_again(lease, traffic)
                traffic.trained += await trainer.ask("train_intact")
            stats, report = await store.stats(), await store.audit()
    assert KILLS == len(killed)
    assert dict.fromkeys(traffic.acknowledged, 1) == Counter(traffic.trained)
    assert (0, len(traffic.trained)) == (stats.occupancy, stats.trained)
    assert len(traffic.acknowledged) == stats.reserved_total
    assert () == report.violations
