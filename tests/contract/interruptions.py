"""Breaks off one chosen exchange of a store with its server, in one chosen way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any

import anyio
from redis.exceptions import ConnectionError as ClientConnectionError


class Break(StrEnum):
    """What happens to the chosen exchange; ``DOWN`` means that no later one succeeds either."""

    NOT_SENT = "not sent"
    NO_REPLY = "no reply"
    DOWN_NOT_SENT = "down before it was sent"
    DOWN_NO_REPLY = "down after it was applied"
    CANCELLED_BEFORE = "caller cancelled before"
    CANCELLED_AFTER = "caller cancelled after"


DOWN = (Break.DOWN_NOT_SENT, Break.DOWN_NO_REPLY)


class Interruption:
    """Stands between a store's gateway and its ways to the server: strikes at the n-th exchange.

    What happens ``meanwhile`` happens after the exchange was applied and before its caller knows.
    """

    def __init__(
        self,
        store: Any,
        *,
        at: int,
        kind: Break,
        meanwhile: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.struck = False
        self.scope = anyio.CancelScope()
        self._gateway = store.buffer.session.link.gateway
        self._ways = self._gateway._lines, self._gateway._transfer
        self._at = at
        self._kind = kind
        self._meanwhile = meanwhile
        self._count = 0
        self._patience_seconds = self._gateway.deadline_seconds
        if kind in DOWN:
            self._gateway.deadline_seconds = 0.0
        self._gateway._lines, self._gateway._transfer = (_Way(self, way) for way in self._ways)

    def end(self) -> None:
        """Let everything pass from now on."""
        self._gateway._lines, self._gateway._transfer = self._ways
        self._gateway.deadline_seconds = self._patience_seconds

    async def exchange(self, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run one exchange, unless it is the one to break off."""
        self._count += 1
        if self._count < self._at:
            return await run()
        if self._count > self._at:
            if self._kind in DOWN:
                raise ClientConnectionError("the server is away")
            return await run()
        self.struck = True
        if self._kind is Break.CANCELLED_BEFORE:
            self.scope.cancel()
            return await run()
        if self._kind in (Break.NOT_SENT, Break.DOWN_NOT_SENT):
            raise ClientConnectionError("the request was not sent")
        reply = await run()
        if self._meanwhile is not None:
            await self._meanwhile()
        if self._kind is Break.CANCELLED_AFTER:
            self.scope.cancel()
            return reply
        raise ClientConnectionError("the reply did not come")


class _Way:
    """Stands in for the lines or the payload transfer of a gateway."""

    def __init__(self, interruption: Interruption, way: Any) -> None:
        self._interruption = interruption
        self._way = way

    async def run(self, commands: Any) -> Any:
        return await self._interruption.exchange(lambda: self._way.run(commands))

    async def read(self, ranges: Any, progress: Any) -> Any:
        return await self._interruption.exchange(lambda: self._way.read(ranges, progress))

    async def close(self) -> None:
        await self._way.close()
