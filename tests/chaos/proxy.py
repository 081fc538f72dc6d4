"""A proxy between a store and its server that breaks one chosen exchange in one chosen way.

It sits on a unix socket and forwards bytes. A fault is armed for the next request that contains a
marker (a script's hash); all other traffic, heartbeats and the event stream included, passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import SocketStream

from tests.harness import until

CHUNK_BYTES = 1 << 16
TORN_BYTES = 3
"""How much of a reply arrives before a torn connection ends."""


class Fault(StrEnum):
    """What happens to one exchange.

    ``BLACK_HOLE`` holds the request, and all traffic, until the release; ``CUT_OFF`` lets it be
    executed first. The server executes it in all but ``RESET_BEFORE_REQUEST``.
    """

    RESET_BEFORE_REQUEST = "reset before request"
    BLACK_HOLE = "black hole"
    CUT_OFF = "cut off"
    DROP_REPLY = "drop reply"
    RESET_AFTER_REQUEST = "reset after request"
    TORN_REPLY = "torn reply"
    LATE_REPLY = "late reply"


HOLES = (Fault.BLACK_HOLE, Fault.CUT_OFF)


@dataclass
class FaultProxy:
    """Forwards connections made to ``path`` to ``upstream``.

    Attributes:
        struck: Set when the armed fault has hit its exchange.
        connections: How many have been accepted.
        open: How many of them have not ended.
        is_hole: Whether requests are swallowed and replies held.
    """

    path: Path
    upstream: Path
    struck: anyio.Event = field(default_factory=anyio.Event)
    connections: int = 0
    open: int = 0
    is_hole: bool = False
    _armed: tuple[bytes, Fault] | None = None
    _released: anyio.Event = field(default_factory=anyio.Event)

    def arm(self, marker: bytes, fault: Fault) -> None:
        """Break the next exchange whose request contains the marker."""
        self.struck, self._released = anyio.Event(), anyio.Event()
        self._armed = (marker, fault)

    def release(self) -> None:
        """End a black hole, and let a late reply go."""
        self.is_hole = False
        self._released.set()

    @property
    def url(self) -> str:
        """The address that a store opens."""
        return f"unix://{self.path}?db=0"

    async def serve(self, client: SocketStream) -> None:
        """Forward one connection until both sides have left; nothing is cancelled on the way."""
        self.connections += 1
        self.open += 1
        async with client, await anyio.connect_unix(self.upstream) as server:
            exchange = _Exchange(self, client, server)
            async with anyio.create_task_group() as group:
                group.start_soon(exchange.forward_requests)
                group.start_soon(exchange.forward_replies)
        self.open -= 1

    async def is_idle(self) -> bool:
        """Return whether all connections have ended."""
        return self.open == 0

    def strike(self, request: bytes) -> Fault | None:
        """Return the armed fault if this request is the one it waits for."""
        if self._armed is None or self._armed[0] not in request:
            return None
        (_, fault), self._armed = self._armed, None
        self.is_hole = fault in HOLES
        self.struck.set()
        return fault

    async def leave_hole(self) -> None:
        """Wait while nothing passes."""
        if self.is_hole:
            await self._released.wait()

    async def released(self) -> None:
        """Wait for the release."""
        await self._released.wait()


@dataclass
class _Exchange:
    """The two directions of one connection. Once it is over, bytes are read and thrown away."""

    proxy: FaultProxy
    client: SocketStream
    server: SocketStream
    fault: Fault | None = None
    is_over: bool = False

    async def forward_requests(self) -> None:
        async for request in _chunks(self.client):
            struck = self.proxy.strike(request)
            self.fault = self.fault or struck
            if struck is Fault.RESET_BEFORE_REQUEST:
                await self.end()
            if struck is Fault.BLACK_HOLE:
                await self.proxy.released()
            if not self.is_over and (struck is not None or not self.proxy.is_hole):
                await _send(self.server, request)
        await _send_end(self.server)

    async def forward_replies(self) -> None:
        async for reply in _chunks(self.server):
            await self.proxy.leave_hole()
            if self.is_over or self.fault is Fault.DROP_REPLY:
                continue
            if self.fault is Fault.LATE_REPLY:
                await self.proxy.released()
            if self.fault is Fault.TORN_REPLY:
                await _send(self.client, reply[:TORN_BYTES])
            if self.fault in (Fault.TORN_REPLY, Fault.RESET_AFTER_REQUEST):
                await self.end()
            else:
                await _send(self.client, reply)
        await _send_end(self.client)

    async def end(self) -> None:
        """Let the client see the end of the connection."""
        self.is_over = True
        await _send_end(self.client)


_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


async def _chunks(stream: SocketStream) -> AsyncIterator[bytes]:
    with suppress(*_GONE):
        while True:
            yield await stream.receive(CHUNK_BYTES)


async def _send(stream: SocketStream, chunk: bytes) -> None:
    with suppress(*_GONE):
        await stream.send(chunk)


async def _send_end(stream: SocketStream) -> None:
    with suppress(*_GONE, OSError):
        await stream.send_eof()


@asynccontextmanager
async def fault_proxy(folder: Path, upstream: Path) -> AsyncIterator[FaultProxy]:
    """Run a proxy on a socket in the folder; leave it after all its clients have left."""
    proxy = FaultProxy(folder / "proxy", upstream)
    async with (
        await anyio.create_unix_listener(proxy.path) as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, proxy.serve)
        yield proxy
        proxy.release()
        await until(proxy.is_idle, what="all connections through the proxy ended")
        group.cancel_scope.cancel()


async def through(
    proxy: FaultProxy, fault: Fault, marker: str, act: Callable[[], Awaitable[Any]]
) -> Any:
    """Do something whose exchange breaks; a black hole ends when the client has tried again."""
    proxy.arm(marker.encode(), fault)
    answer: Any = None

    async def act_now() -> None:
        nonlocal answer
        answer = await act()

    async def end_the_hole() -> None:
        await proxy.struck.wait()
        before = proxy.connections

        async def tried_again() -> bool:
            return proxy.connections > before

        await until(tried_again, what="the client opened another connection")
        proxy.release()

    async with anyio.create_task_group() as group:
        group.start_soon(act_now)
        if fault in HOLES:
            group.start_soon(end_the_hole)
    assert proxy.struck.is_set()
    proxy.release()
    return answer
