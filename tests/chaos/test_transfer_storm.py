"""Connections break again and again while payload travels: every group once, every byte intact."""

from __future__ import annotations

import random
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import numpy as np
import pytest

import redis_replay
from redis_replay._redis import channel as channels
from redis_replay._redis import connect
from redis_replay._redis.gateway import TransferWay
from tests.chaos.proxy import HOLES, Fault, FaultProxy, fault_proxy
from tests.harness import GROUP_SIZE

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]

WRITERS = 6
GROUPS_EACH = 5
STRIKES = 16
LEAST_STRIKES = 8
SILENCE_SECONDS = 0.5
FAULTS = [fault for fault in Fault if fault not in HOLES]


async def break_things(proxy: FaultProxy, draw: random.Random, struck: list[Fault]) -> None:
    """Break one exchange of payload after the other, and note how."""
    for _ in range(STRIKES):
        fault = draw.choice(FAULTS)
        proxy.arm(b"rr:p:", fault)
        await proxy.struck.wait()
        struck.append(fault)
        proxy.release()


def group_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a group, which its name decides."""
    draw = np.random.default_rng(list(name.encode()))
    size = int(draw.integers(10, 60_000))
    return [{"x": draw.random(size, dtype=np.float32), "reward": 1.0} for _ in range(GROUP_SIZE)]


@pytest.mark.parametrize("way", ["plain", "channel"])
async def test_payload_survives_a_storm_of_broken_connections(
    real_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: TransferWay
) -> None:
    monkeypatch.setattr(connect, "SILENCE_SECONDS", SILENCE_SECONDS)
    monkeypatch.setattr(channels, "_SILENCE_SECONDS", SILENCE_SECONDS)
    run = f"test-{secrets.token_hex(6)}"
    names = [[f"{w}-{at}" for at in range(GROUPS_EACH)] for w in range(WRITERS)]
    upstream = Path(urlsplit(real_server).path)
    struck: list[Fault] = []
    async with (
        fault_proxy(tmp_path, upstream) as proxy,
        redis_replay.open_store(
            proxy.url, run=run, capacity=100, group_size=GROUP_SIZE, transfer=way
        ) as store,
    ):

        async def write_and_read(mine: list[str]) -> None:
            for name in mine:
                await store.buffer.reserve(0, group_id=name)
                rows = group_of(name)
                await store.buffer.commit(name, rows, start_weight_version=0, end_weight_version=0)
                await check(mine[: mine.index(name) + 1])

        async def check(committed: list[str]) -> None:
            ids = [f"{name}_g{row}" for name in committed for row in range(GROUP_SIZE)]
            read = await store.samples.get_samples(ids)
            expected = [row["x"] for name in committed for row in group_of(name)]
            assert all(np.array_equal(x, row["x"]) for x, row in zip(expected, read, strict=True))

        async with anyio.create_task_group() as storm:
            storm.start_soon(break_things, proxy, random.Random(len(way)), struck)
            async with anyio.create_task_group() as writers:
                for mine in names:
                    writers.start_soon(write_and_read, mine)
            storm.cancel_scope.cancel()
        proxy.release()
        await check([name for mine in names for name in mine])
        stats, report = await store.stats(), await store.audit()
        await store.buffer.remove([name for mine in names for name in mine])
    assert (WRITERS * GROUPS_EACH, 0) == (stats.ready, stats.reserved)
    assert () == report.violations
    assert len(struck) >= LEAST_STRIKES
