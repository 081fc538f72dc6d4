"""How payload travels: many strings at once, into memory of the caller and out of it.

`Transfer` is the interface; it retries nothing and raises what the client library raises, so that
the gateway has one rule for both ways. `PlainTransfer` goes through the client library. It copies
more, and works with whatever the client works with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from redis_replay._redis.lua import Argument

WINDOW_BYTES: Final = 2 * 1024 * 1024
"""Bytes that one read asks for ahead of what it has received, or one string if that is longer."""

Command = Sequence[Argument | memoryview]


class Progress(Protocol):
    """What becomes of bytes that have come while others are on their way. Raises nothing."""

    def arrived(self, at: int, length: int) -> None:
        """Know that a range has come, by its position, and how many bytes the server had."""
        ...

    def meanwhile(self) -> int:
        """Do a piece of work instead of waiting for bytes.

        Returns:
            What it cost, in bytes moved in that time; 0 if there is nothing to do.
        """
        ...


class NoProgress:
    """Lets the bytes lie where they are."""

    def arrived(self, at: int, length: int) -> None:
        """As `Progress.arrived`."""

    def meanwhile(self) -> int:
        """As `Progress.meanwhile`."""
        return 0


NO_PROGRESS: Final = NoProgress()


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes of a stored string, and the memory they go to.

    Attributes:
        key: Of the string.
        start: First byte; as many are read as the target is long, which is at least one.
        is_whole: Whether that is the whole string, so that a longer one is noticed.
        target: Writable, contiguous bytes.
    """

    key: str
    start: int
    is_whole: bool
    target: memoryview

    @property
    def command(self) -> tuple[Argument, ...]:
        """The command that asks for it."""
        if self.is_whole:
            return ("GET", self.key)
        return ("GETRANGE", self.key, self.start, self.start + len(self.target) - 1)


class Transfer(Protocol):
    """Moves payload between the process and one server."""

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands in one write on one connection and return their replies in order.

        An error that the server replied with is returned in its place as a `RedisError`.
        """
        ...

    async def read(self, ranges: Sequence[Range], progress: Progress = NO_PROGRESS) -> list[int]:
        """Fill the targets and return how many bytes the server had for each.

        Needs no memory beside the targets but a fixed amount. Tells of each range once, in any
        order.
        """
        ...

    async def close(self) -> None:
        """Close the connections that nobody uses; it may be used again."""
        ...


@dataclass(frozen=True, slots=True)
class PlainTransfer:
    """Payload through the client library."""

    client: Redis

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """As `Transfer.run`."""
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

    async def read(self, ranges: Sequence[Range], progress: Progress = NO_PROGRESS) -> list[int]:
        """As `Transfer.read`; a window's worth of strings exists twice."""
        lengths: list[int] = []
        for part in _windows(ranges):
            replies = await self.run([one.command for one in part])
            for one, reply in zip(part, replies, strict=True):
                if isinstance(reply, RedisError):
                    raise reply
                received = cast(bytes, reply or b"")
                count = min(len(received), len(one.target))
                one.target[:count] = memoryview(received)[:count]
                progress.arrived(len(lengths), len(received))
                lengths.append(len(received))
        return lengths

    async def close(self) -> None:
        """Close the client's connections that nobody uses."""
        await self.client.connection_pool.disconnect(inuse_connections=False)


def _windows(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    part: list[Range] = []
    asked = 0
    for one in ranges:
        if part and asked + len(one.target) > WINDOW_BYTES:
            yield part
            part, asked = [], 0
        part.append(one)
        asked += len(one.target)
    if part:
        yield part
