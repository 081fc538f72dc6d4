"""Server or connection is killed in the middle of a transfer: whole groups are seen, or none.

A proxy counts what it forwards and strikes once: it kills the server, or ends the connection, while
a large group is on its way to the server, between its payload and its script, before the answer
comes back, or while it is read.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import numpy as np
import pytest
from anyio.abc import SocketStream, TaskGroup

import redis_replay
from redis_replay import ReplayStore, embedded
from redis_replay._redis.lua import load_script
from redis_replay._redis.scripts import Commit
from redis_replay.errors import StoreUnavailable
from tests.harness import GROUP_SIZE

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]

ROW_FLOATS = 1 << 20
"""Of each row: a group has 8 MB, far more than sockets hold by themselves."""
MIDWAY_BYTES = 3 << 20
CHUNK_BYTES = 1 << 16
GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class Moment(StrEnum):
    """When the proxy strikes."""

    IN_THE_PAYLOAD = "in the payload"
    BEFORE_THE_SCRIPT = "before the script"
    BEFORE_THE_ANSWER = "before the answer"
    IN_THE_READ = "in the read"


@dataclass
class Striker:
    """Forwards connections to ``upstream``, and strikes at one moment of one of them."""

    path: Path
    upstream: Path
    kill: Callable[[], None]
    struck: list[Moment] = field(default_factory=list[Moment])
    _armed: Moment | None = None

    def arm(self, moment: Moment) -> None:
        """Strike at the next such moment."""
        self._armed = moment

    async def serve(self, client: SocketStream) -> None:
        """Forward one connection until a side has left, or the proxy strikes."""
        try:
            server = await anyio.connect_unix(self.upstream)
        except OSError:  # killed, and not back yet
            await client.aclose()
            return
        sent = [0]
        async with client, server, anyio.create_task_group() as both:
            both.start_soon(self._requests, client, server, sent, both)
            both.start_soon(self._replies, server, client, sent, both)

    async def _requests(
        self, client: SocketStream, server: SocketStream, sent: list[int], both: TaskGroup
    ) -> None:
        sha = load_script(Commit).sha.encode()
        async for chunk in _chunks(client, both):
            carries = sent[0] > 0 or b"rr:p:" in chunk
            sent[0] += len(chunk) if carries else 0
            if self._armed is Moment.IN_THE_PAYLOAD and sent[0] >= MIDWAY_BYTES:
                return self._strike(both)
            if self._armed is Moment.BEFORE_THE_SCRIPT and sha in chunk and carries:
                await server.send(chunk[: chunk.index(sha)])
                return self._strike(both)
            await server.send(chunk)

    async def _replies(
        self, server: SocketStream, client: SocketStream, sent: list[int], both: TaskGroup
    ) -> None:
        received = 0
        async for chunk in _chunks(server, both):
            received += len(chunk)
            if self._armed is Moment.BEFORE_THE_ANSWER and sent[0] > MIDWAY_BYTES:
                return self._strike(both)
            if self._armed is Moment.IN_THE_READ and received >= MIDWAY_BYTES:
                await client.send(chunk[: len(chunk) // 2])
                return self._strike(both)
            await client.send(chunk)

    def _strike(self, both: TaskGroup) -> None:
        assert self._armed is not None
        self.struck.append(self._armed)
        self._armed = None
        self.kill()
        both.cancel_scope.cancel()


async def _chunks(stream: SocketStream, both: TaskGroup) -> AsyncIterator[bytes]:
    try:
        while True:
            chunk = await stream.receive(CHUNK_BYTES)
            await anyio.lowlevel.checkpoint()
            yield chunk
    except GONE:
        both.cancel_scope.cancel()


@dataclass
class Scene:
    """A store behind the proxy, and one that looks at the run directly."""

    store: ReplayStore
    observer: ReplayStore
    striker: Striker

    @property
    def gateway(self) -> Any:
        """Of the store behind the proxy."""
        return self.store.buffer.session.link.gateway


def rows_of(name: str) -> list[dict[str, Any]]:
    """Return the rows of a group, which its name decides."""
    draw = np.random.default_rng(list(name.encode()))
    return [{"x": draw.random(ROW_FLOATS, dtype=np.float32)} for _ in range(GROUP_SIZE)]


@asynccontextmanager
async def opened_scene(folder: Path, victim: str) -> AsyncIterator[Scene]:
    """Open a run on a server of its own that comes back when it is killed."""
    run = f"test-{secrets.token_hex(6)}"
    with embedded.open_embedded(folder / "server", appendfsync="always") as lease:

        def kill() -> None:
            if victim == "server":
                os.kill(lease.server_pid, signal.SIGKILL)

        striker = Striker(folder / "proxy", Path(urlsplit(lease.url).path), kill)
        options = {"run": run, "capacity": 9, "group_size": GROUP_SIZE}
        async with (
            await anyio.create_unix_listener(striker.path) as listener,
            anyio.create_task_group() as proxy,
        ):
            proxy.start_soon(listener.serve, striker.serve)
            async with (
                redis_replay.open_store(lease.url, **options) as observer,
                redis_replay.open_store(f"unix://{striker.path}?db=0", **options) as store,
            ):
                yield Scene(store, observer, striker)
                assert () == (await observer.audit()).violations
            proxy.cancel_scope.cancel()


async def commit(store: ReplayStore, name: str) -> None:
    """Commit a group; committing it twice is committing it once."""
    await store.buffer.commit(name, rows_of(name), start_weight_version=0, end_weight_version=0)


async def is_whole(store: ReplayStore, name: str) -> bool:
    """Return whether a group is seen; one that is seen is as it was given."""
    states = {slot.group_id: slot.state.value for slot in await store.buffer.slots()}
    if states[name] == "reserved":
        return False
    read = await store.samples.get_samples([f"{name}_g{row}" for row in range(GROUP_SIZE)])
    assert all(
        np.array_equal(given["x"], row["x"]) for given, row in zip(rows_of(name), read, strict=True)
    )
    return True


async def look_on(observer: ReplayStore, name: str) -> None:
    """Look at a group again and again, through the death of the server too."""
    while True:
        try:
            await is_whole(observer, name)
        except StoreUnavailable:
            await anyio.sleep(0.01)


WRITES = (Moment.IN_THE_PAYLOAD, Moment.BEFORE_THE_SCRIPT, Moment.BEFORE_THE_ANSWER)
victims = pytest.mark.parametrize("victim", ["connection", "server"])


@victims
@pytest.mark.parametrize("moment", WRITES)
async def test_a_commit_that_is_cut_off_is_repeated_and_never_seen_in_part(
    tmp_path: Path, victim: str, moment: Moment
) -> None:
    async with opened_scene(tmp_path, victim) as scene:
        await commit_small(scene.store)  # the script is known, and the channel is open
        await scene.store.buffer.reserve(0, group_id="g")
        async with anyio.create_task_group() as looking:
            looking.start_soon(look_on, scene.observer, "g")
            scene.striker.arm(moment)
            await commit(scene.store, "g")
            assert [moment] == scene.striker.struck
            looking.cancel_scope.cancel()
        assert await is_whole(scene.observer, "g")
        assert 2 == (await scene.observer.stats()).ready


@victims
@pytest.mark.parametrize("moment", WRITES)
async def test_a_commit_without_patience_says_so_and_may_be_made_again(
    tmp_path: Path, victim: str, moment: Moment
) -> None:
    async with opened_scene(tmp_path, victim) as scene:
        await commit_small(scene.store)
        await scene.store.buffer.reserve(0, group_id="g")
        scene.striker.arm(moment)
        scene.gateway.deadline_seconds = 0.0
        with pytest.raises(StoreUnavailable, match="not reachable"):
            await commit(scene.store, "g")
        scene.gateway.deadline_seconds = 30.0
        assert [moment] == scene.striker.struck
        applied = await is_whole(scene.observer, "g")
        if victim == "connection":
            assert applied == (moment is Moment.BEFORE_THE_ANSWER)
        await commit(scene.store, "g")
        assert await is_whole(scene.observer, "g")


@victims
@pytest.mark.parametrize("patient", [True, False], ids=["patient", "impatient"])
async def test_a_read_that_is_cut_off_is_repeated_or_says_so(
    tmp_path: Path, victim: str, patient: bool
) -> None:
    async with opened_scene(tmp_path, victim) as scene:
        await scene.store.buffer.reserve(0, group_id="g")
        await commit(scene.store, "g")
        scene.striker.arm(Moment.IN_THE_READ)
        if not patient:
            scene.gateway.deadline_seconds = 0.0
            with pytest.raises(StoreUnavailable, match="not reachable"):
                await is_whole(scene.store, "g")
            scene.gateway.deadline_seconds = 30.0
        assert await is_whole(scene.store, "g")
        assert [Moment.IN_THE_READ] == scene.striker.struck


async def commit_small(store: ReplayStore) -> None:
    """Commit a group that is just large enough for the channel."""
    name = (await store.buffer.reserve(0)).group_id
    rows = [{"x": np.zeros(CHUNK_BYTES, np.uint8)} for _ in range(GROUP_SIZE)]
    await store.buffer.commit(name, rows, start_weight_version=0, end_weight_version=0)
