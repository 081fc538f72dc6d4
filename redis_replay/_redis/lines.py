"""Connections for script calls: one write out, the replies back, one timer for both.

The client library's own way checks a connection out, asks whether it is stale, encodes argument by
argument and starts a timer for every step; that costs more than the exchange. A line is a
connection of the library that is kept and used as it is. One that the server has closed meanwhile
shows as lost, and the gateway repeats the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as NoAnswer

from redis_replay._redis import connect
from redis_replay._redis.resp import pack_commands
from redis_replay._redis.transfer import Command
from redis_replay.rooms import acquire

_MOST_LINES: Final = 32
_FAREWELL_SECONDS: Final = 1.0


@dataclass
class Lines:
    """Lines to one server, which are opened when needed and kept. For one event loop."""

    target: connect.Target
    _kept: list[AbstractConnection] = field(default_factory=list)
    _room: anyio.Semaphore = field(
        default_factory=lambda: anyio.Semaphore(_MOST_LINES, fast_acquire=True)
    )

    async def run(self, commands: Sequence[Command], *, block_seconds: float = 0.0) -> list[Any]:
        """Send commands in one write on one line and return their replies in order.

        An error that the server replied with is returned in its place. Cancelled or failed, it is
        open whether they ran.

        Args:
            commands: What to send.
            block_seconds: Longest time that the commands may block on the server.

        Raises:
            RedisError, OSError: as the client library raises them.
        """
        await acquire(self._room)
        try:
            line = self._kept.pop() if self._kept else await self._new_line()
            try:
                replies = await _exchange(line, commands, connect.SILENCE_SECONDS + block_seconds)
            except BaseException:
                await line.disconnect(nowait=True)
                raise
            self._kept.append(line)
            return replies
        finally:
            self._room.release()

    async def _new_line(self) -> AbstractConnection:
        line = self.target.connection()
        open_line: Callable[[], Awaitable[None]] = line.connect
        try:
            await open_line()
        except BaseException:  # cancelled while it greets the server, it would stay open
            await line.disconnect(nowait=True)
            raise
        line.socket_timeout = None  # `_exchange` has a timer of its own
        return line

    async def close(self) -> None:
        """Close the lines that nobody uses."""
        while self._kept:
            with anyio.move_on_after(_FAREWELL_SECONDS):  # TLS takes leave of its peer
                await self._kept.pop().disconnect()


async def _exchange(
    line: AbstractConnection, commands: Sequence[Command], silence_seconds: float
) -> list[Any]:
    packed: Any = pack_commands(commands)
    with anyio.move_on_after(silence_seconds):
        await line.send_packed_command(packed, check_health=False)
        return [await _reply(line) for _ in commands]
    raise NoAnswer(f"the server did not answer within {silence_seconds:g} s")


async def _reply(line: AbstractConnection) -> Any:
    try:
        return await line.read_response()
    except ResponseError as error:
        return error
