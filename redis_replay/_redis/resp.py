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

    async def read(self) -> Any:
        """Return the next reply: bytes, int, ``None``, a list of those, or an `ErrorReply`.

        Meant for small ones: all of it is collected first.
        """
        while (found := self._parsed(self._start)) is None:
            await self._receive_more()
        reply, self._start = found
        return reply

    def _parsed(self, at: int, *, depth: int = 0) -> tuple[Any, int] | None:
        """Return the reply that begins there and where it ends, ``None`` if its end is to come."""
        end = self._end_of_line(at)
        if end < 0:
            return None
        kind, rest = bytes(self._view[at : at + 1]), bytes(self._view[at + 1 : end])
        at = end + 2
        if kind == b"$":
            return self._parsed_string(at, _number(rest))
        if kind != b"*":
            return _simple(kind, rest), at
        count = _number(rest)
        if count > _MOST_ITEMS or depth == _DEEPEST:
            raise InvalidResponse(f"an array of {count} items, {depth} levels deep")
        items: list[Any] = []
        for _ in range(count):
            found = self._parsed(at, depth=depth + 1)
            if found is None:
                return None
            items.append(found[0])
            at = found[1]
        return None if count < 0 else items, at

    def _parsed_string(self, at: int, size: int) -> tuple[bytes | None, int] | None:
        if size < 0:
            return None, at
        if size > _MOST_BULK_BYTES:
            raise InvalidResponse(f"a string of {size} bytes")
        stop = at + size
        if stop + 2 > self._stop:
            return None
        _require_end(self._view[stop : stop + 2])
        return bytes(self._view[at:stop]), stop + 2

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
            dropped = self._view[: min(left, len(self._view))]
            if self._start == self._stop:
                left -= await self._received([dropped])
            else:
                left -= self._taken(dropped)
        await self._expect_end()
        return size

    async def _line(self) -> bytes:
        """Return the next line without its end."""
        while (end := self._end_of_line(self._start)) < 0:
            await self._receive_more()
        line = bytes(self._view[self._start : end])
        self._start = end + 2
        return line

    def _end_of_line(self, at: int) -> int:
        """Return where the line that begins there ends, -1 if that is to come."""
        end = self._buffer.find(_END, at, self._stop)
        if end < 0 and self._stop - at >= _BUFFER_BYTES:
            raise InvalidResponse(f"no line ends within {_BUFFER_BYTES} bytes")
        return end

    async def _expect_end(self) -> None:
        while self._stop - self._start < 2:
            await self._receive_more()
        _require_end(self._view[self._start : self._start + 2])
        self._start += 2

    async def _receive_more(self) -> None:
        """Append to the buffer, which holds what has come of one reply; it grows with it."""
        kept = self._buffer[self._start : self._stop]
        if len(kept) == len(self._buffer):
            if len(kept) > 2 * _MOST_BULK_BYTES:
                raise InvalidResponse(f"a reply of more than {len(kept)} bytes")
            self._buffer = bytearray(2 * len(kept))
            self._view = memoryview(self._buffer)
        self._view[: len(kept)] = kept
        self._start, self._stop = 0, len(kept)
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


def _require_end(found: memoryview) -> None:
    end = bytes(found)
    if end != _END:
        raise InvalidResponse(f"a string goes on with {end!r} behind its length")


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
