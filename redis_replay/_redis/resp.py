"""RESP2, as much of it as payload needs, without the copies that a general client makes.

A command becomes buffers to send one after the other, large arguments as they are. A reply is read
from its connection as it comes; the bytes of a large one go straight to where they are wanted.
Nothing that is received is trusted: lengths, nesting and numbers are bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse

from redis_replay._redis.lua import Argument

Buffer = bytes | memoryview
Receive = Callable[[Sequence[memoryview]], Awaitable[int]]
"""Fills the buffers in turn with what has arrived, at least one byte; 0 says that the end came."""

_LARGE_BYTES: Final = 16_384
_SHORT_CHARACTERS: Final = 256
_BUFFER_BYTES: Final = 16_384
_SPILL_BYTES: Final = 64
_MOST_BULK_BYTES: Final = 64 * 1024 * 1024
_MOST_ITEMS: Final = 1_000_000
_DEEPEST: Final = 4
_END: Final = b"\r\n"


class ErrorReply(str):
    """The text of an error that the server replied with."""


def pack_commands(commands: Sequence[Sequence[Argument | memoryview]]) -> list[Buffer]:
    """Return commands as buffers to send; a large argument is one of them and is not copied."""
    pieces: list[Buffer] = []
    small: list[bytes | memoryview] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for argument in command:
            if type(argument) is str and len(argument) < _SHORT_CHARACTERS:
                small.append(_packed_text(argument))
                continue
            value = _as_bytes(argument)
            size = len(value)
            if size < _LARGE_BYTES:
                small.append(b"$%d\r\n%b\r\n" % (size, cast(bytes, value)))
            else:
                small.append(b"$%d\r\n" % size)
                pieces += [b"".join(small), value]
                small = [_END]
    pieces.append(b"".join(small))
    return pieces


@lru_cache(maxsize=2048)
def _packed_text(text: str) -> bytes:
    """Return a short text as an argument; keys and names come again with every call."""
    value = text.encode()
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _as_bytes(argument: Argument | memoryview) -> bytes | memoryview:
    if type(argument) is int:
        return b"%d" % argument
    if isinstance(argument, (bytes, memoryview)):
        return argument
    return str(argument).encode()


class Replies:
    """The replies of one connection, in order.

    Every method raises `ConnectionLost` where the connection ends, and `InvalidResponse` where it
    does not carry replies; it is of no further use then.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._stop = 0

    async def read(self, *, depth: int = 0) -> Any:
        """Return the next reply: bytes, int, ``None``, a list of those, or an `ErrorReply`."""
        line = await self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            return await self._bulk(_number(rest))
        if kind == b"*":
            count = _number(rest)
            if count > _MOST_ITEMS or depth == _DEEPEST:
                raise InvalidResponse(f"an array of {count} items, {depth} levels deep")
            return None if count < 0 else [await self.read(depth=depth + 1) for _ in range(count)]
        return _simple(kind, rest)

    async def read_into(self, target: memoryview) -> int | ErrorReply | None:
        """Read a string into memory and return its length, ``None`` for no string.

        A longer string fills the memory, and the rest of it is dropped.

        Raises:
            InvalidResponse: the reply is neither a string nor an error.
        """
        line = await self._line()
        if line[:1] != b"$":
            reply = _simple(line[:1], line[1:])
            if isinstance(reply, ErrorReply):
                return reply
            raise InvalidResponse(f"a string was expected, not {line[:64]!r}")
        size = _number(line[1:])
        if size < 0:
            return None
        await self._fill(target[:size])
        left = size - len(target)
        while left > 0:
            dropped = self._view[: min(left, _BUFFER_BYTES)]
            if self._start == self._stop:
                left -= await self._received([dropped])
            else:
                left -= self._taken(dropped)
        await self._expect_end()
        return size

    async def _bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        if size > _MOST_BULK_BYTES:
            raise InvalidResponse(f"a string of {size} bytes")
        if self._start + size <= self._stop:
            value = self._buffer[self._start : self._start + size]
            self._start += size
        else:
            value = bytearray(size)
            await self._fill(memoryview(value))
        await self._expect_end()
        return bytes(value)

    async def _line(self) -> bytes:
        """Return the next line without its end."""
        while True:
            end = self._buffer.find(_END, self._start, self._stop)
            if end >= 0:
                line = bytes(self._view[self._start : end])
                self._start = end + 2
                return line
            await self._receive_more()

    async def _expect_end(self) -> None:
        while self._stop - self._start < 2:
            await self._receive_more()
        end = bytes(self._view[self._start : self._start + 2])
        if end != _END:
            raise InvalidResponse(f"a string goes on with {end!r} behind its length")
        self._start += 2

    async def _receive_more(self) -> None:
        """Append to the buffer, which never holds more than the beginning of one line."""
        if self._start:
            kept = self._buffer[self._start : self._stop]
            self._buffer[: len(kept)] = kept
            self._start, self._stop = 0, len(kept)
        if self._stop == _BUFFER_BYTES:
            raise InvalidResponse(f"no line ends within {_BUFFER_BYTES} bytes")
        self._stop += await self._received([self._view[self._stop :]])

    async def _fill(self, target: memoryview) -> None:
        """Fill memory from the buffer, then from the connection without a copy."""
        target = target[self._taken(target) :]
        while target:
            spill = self._view[:_SPILL_BYTES]  # the string's end, and where the next reply begins
            count = await self._received([target, spill])
            self._start, self._stop = 0, max(0, count - len(target))
            target = target[count:]

    def _taken(self, target: memoryview) -> int:
        count = min(len(target), self._stop - self._start)
        target[:count] = self._view[self._start : self._start + count]
        self._start += count
        return count

    async def _received(self, buffers: Sequence[memoryview]) -> int:
        count = await self._receive(buffers)
        if count == 0:
            raise ConnectionLost("the server closed the connection")
        return count


def _simple(kind: bytes, rest: bytes) -> Any:
    if kind == b"+":
        return rest
    if kind == b"-":
        return ErrorReply(rest.decode(errors="replace"))
    if kind == b":":
        return _number(rest)
    raise InvalidResponse(f"a reply begins with {kind + rest[:64]!r}")


def _number(text: bytes) -> int:
    if not text.lstrip(b"-").isdigit() or len(text) > 20:
        raise InvalidResponse(f"{text[:64]!r} is not a number")
    try:
        return int(text)
    except ValueError:
        raise InvalidResponse(f"{text[:64]!r} is not a number") from None
