"""A proxy between a store and its server that breaks one chosen exchange in one chosen way.

It sits on a unix socket and forwards bytes. A fault is armed for the next request that contains a
marker (a script's hash); all other traffic, heartbeats and the event stream included, passes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
        is_hole: Whether requests are swallowed and replies held.
    """

    path: Path
    upstream: Path
    struck: anyio.Event = field(default_factory=anyio.Event)
    connections: int = 0
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
        """Forward one connection until either side ends or a fault does."""
        self.connections += 1
        async with client, await anyio.connect_unix(self.upstream) as server:
            exchange = _Exchange(self, client, server)
            async with anyio.create_task_group() as group:
                group.start_soon(exchange.forward_requests, group.cancel_scope)
                group.start_soon(exchange.forward_replies, group.cancel_scope)

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
    """The two directions of one connection."""

    proxy: FaultProxy
    client: SocketStream
    server: SocketStream
    fault: Fault | None = None

    async def forward_requests(self, scope: anyio.CancelScope) -> None:
        async for request in _chunks(self.client):
            struck = self.proxy.strike(request)
            self.fault = self.fault or struck
            if struck is Fault.RESET_BEFORE_REQUEST:
                break
            if struck is Fault.BLACK_HOLE:
                await self.proxy.released()
            if struck is not None or not self.proxy.is_hole:
                await self.server.send(request)
        scope.cancel()

    async def forward_replies(self, scope: anyio.CancelScope) -> None:
        async for reply in _chunks(self.server):
            await self.proxy.leave_hole()
            if self.fault is Fault.DROP_REPLY:
                continue
            if self.fault is Fault.RESET_AFTER_REQUEST:
                break
            if self.fault is Fault.TORN_REPLY:
                await self.client.send(reply[:TORN_BYTES])
                break
            if self.fault is Fault.LATE_REPLY:
                await self.proxy.released()
            await self.client.send(reply)
        scope.cancel()


async def _chunks(stream: SocketStream) -> AsyncIterator[bytes]:
    try:
        while True:
            yield await stream.receive(CHUNK_BYTES)
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


@asynccontextmanager
async def fault_proxy(folder: Path, upstream: Path) -> AsyncIterator[FaultProxy]:
    """Run a proxy on a socket in the folder."""
    proxy = FaultProxy(folder / "proxy", upstream)
    async with (
        await anyio.create_unix_listener(proxy.path) as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, proxy.serve)
        yield proxy
        proxy.release()
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
