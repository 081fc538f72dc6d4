"""A server that comes back with less than it had: a cut, a missing or an older append-only file."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis.asyncio
from anyio.abc import Process
from redis.exceptions import RedisError

import redis_replay
from redis_replay import ReplayStore, embedded
from redis_replay.errors import ReplayError, StoreMissing, StoreRegressed
from tests.harness import GROUP_SIZE, until

pytestmark = pytest.mark.anyio

TAIL_BYTES = 200
"""Less than one mutation's entry in the log: the last one is cut in the middle, and goes whole."""


class OwnServer:
    """A server without a keeper, so that its files can be changed while it is down."""

    def __init__(self, folder: Path, socket: Path) -> None:
        self.folder, self.socket = folder, socket
        self.url = f"unix://{socket}?db=0"
        self._process: Process | None = None

    @property
    def log(self) -> Path:
        """The part of the append-only file that grows."""
        [found] = (self.folder / "appendonlydir").glob("*.incr.aof")
        return found

    async def start(self) -> None:
        """Start it and wait until it answers."""
        place = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        flags = [*place, "--logfile", "server.log", *embedded.server_flags(appendfsync="always")]
        self._process = await anyio.open_process([str(embedded.find_server().path), *flags])
        async with redis.asyncio.Redis.from_url(self.url) as client:

            async def answers() -> bool:
                try:
                    return bool(await client.ping())
                except (RedisError, OSError):
                    return False

            await until(answers, what="the server answered")

    async def kill(self) -> None:
        """End it as a power cut does."""
        if self._process is not None:
            async with self._process:
                self._process.kill()
            self._process = None


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[OwnServer]:
    with tempfile.TemporaryDirectory(prefix="rr-") as sockets:
        started = OwnServer(tmp_path, Path(sockets) / "s")
        yield started
        await started.kill()


@asynccontextmanager
async def opened(server: OwnServer, **options: Any) -> AsyncIterator[ReplayStore]:
    """Start the server and open a fresh run on it with three reserved groups."""
    await server.start()
    run = f"test-{secrets.token_hex(6)}"
    async with redis_replay.open_store(
        server.url, run=run, capacity=8, group_size=GROUP_SIZE, **options
    ) as store:
        for name in ("a", "b", "c"):
            await store.buffer.reserve(0, group_id=name)
        yield store


def run_of(store: ReplayStore) -> str:
    return store.buffer.session.link.gateway.keyspace.run


async def names(store: ReplayStore) -> list[str]:
    return [slot.group_id for slot in await store.buffer.slots()]


async def test_a_log_without_its_tail_is_whole_up_to_a_mutation_and_is_noticed(
    server: OwnServer,
) -> None:
    async with opened(server) as store:
        await server.kill()
        with server.log.open("r+b") as log:
            log.truncate(server.log.stat().st_size - TAIL_BYTES)
        await server.start()
        assert ["a", "b"] == await names(store)
        assert () == (await store.audit()).violations
        for _ in range(3):
            with pytest.raises(StoreRegressed):
                await store.buffer.reserve(0)


async def test_an_older_copy_of_the_data_is_noticed(server: OwnServer, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    async with opened(server) as store:
        shutil.copytree(server.folder / "appendonlydir", copy)
        await store.buffer.reserve(0, group_id="d")
        await server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        shutil.copytree(copy, server.folder / "appendonlydir")
        await server.start()
        with pytest.raises(StoreRegressed):
            await store.buffer.abort("a")
        async with redis_replay.open_store(server.url, run=run_of(store), create=False) as again:
            assert ["a", "b", "c"] == (await names(again))[:3]


@pytest.mark.parametrize("verb", ["reserve", "stats"])
async def test_a_server_that_comes_back_empty_misses_the_run_and_stays_empty(
    server: OwnServer, verb: str
) -> None:
    async with opened(server) as store:
        await server.kill()
        shutil.rmtree(server.folder / "appendonlydir")
        await server.start()
        calls: dict[str, Any] = {"reserve": lambda: store.buffer.reserve(0), "stats": store.stats}
        with pytest.raises(StoreMissing):
            await calls[verb]()
        async with redis.asyncio.Redis.from_url(server.url) as client:
            assert 0 == await client.dbsize()


async def test_a_store_is_left_in_good_time_when_its_server_is_gone(server: OwnServer) -> None:
    async with opened(server, deadline_seconds=0.2) as store:
        await server.kill()
        with pytest.raises(ReplayError):
            await store.buffer.reserve(0)
