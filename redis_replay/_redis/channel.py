"""Payload over bare sockets: sent from where it lies, received where it shall be.

A general client joins what it sends and collects what it receives: several copies of every byte.
Here buffers go to the socket as they are, and replies are read into the caller's memory (`resp`).
Connecting, TLS and login are the client library's (`Target.open_socket`), and failures are raised
as its exceptions. A channel that failed, or whose user was cancelled, is closed and never used
again, so no reply is ever taken for another's.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Any, Final

import anyio
import anyio.lowlevel
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoAnswer

from redis_replay._redis.connect import Target
from redis_replay._redis.faults import as_client_error
from redis_replay._redis.resp import ErrorReply, Replies, pack_commands
from redis_replay._redis.transfer import NO_PROGRESS, WINDOW_BYTES, Command, Progress, Range
from redis_replay.rooms import acquire

_MOST_CHANNELS: Final = 16
_LANES: Final = 2
_SILENCE_SECONDS: Final = 5.0
"""After this long without a byte, or half of it, a channel is given up."""

_SEND_BUFFER_BYTES: Final = 1024 * 1024
"""What a local socket takes ahead of the server; the system gives less where it allows less."""

_MOST_PIECES: Final = 512
"""Of one call to the system, which refuses more than 1,024 (``IOV_MAX``)."""

_TURN_BYTES: Final = 1024 * 1024
"""What one task moves before the others have their turn."""

_REPLY_BYTES: Final = 16 * 1024
"""What a reply costs beside its bytes, in bytes moved in that time."""


class Channel:
    """One connection. Not for two tasks at once."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._is_tls = isinstance(opened, ssl.SSLSocket)
        if opened.family == socket.AF_UNIX:  # others find out for themselves what is good
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._moved = 0
        self._heard = 0.0
        self._patience = anyio.CancelScope()
        self._progress: Progress = NO_PROGRESS
        self.replies = Replies(self._receive)

    @property
    def is_fit(self) -> bool:
        """Whether it is open and nothing is left in it from an earlier use."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def begin(self, progress: Progress) -> None:
        """Begin an exchange, which is cancelled after a silence of the server."""
        self._progress = progress
        self._heard = time.monotonic()
        self._patience = anyio.move_on_after(_SILENCE_SECONDS)
        self._patience.__enter__()

    def end(self, *of_block: Any) -> bool:
        """End the exchange; takes what `__exit__` does and returns whether it was cancelled."""
        self._progress = NO_PROGRESS  # which knows all rows of the read
        return bool(self._patience.__exit__(*of_block))

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands, large arguments from where they lie."""
        left = deque(memoryview(piece) for piece in pack_commands(commands))
        while left:
            count = await self._send_some(list(islice(left, _MOST_PIECES)))
            if count == 0:
                raise ConnectionLost("the server closed the connection")
            while left and count >= len(left[0]):
                count -= len(left.popleft())
            if count:
                left[0] = left[0][count:]

    async def _send_some(self, pieces: Sequence[memoryview]) -> int:
        while True:
            try:
                count = (
                    self._socket.send(pieces[0]) if self._is_tls else self._socket.sendmsg(pieces)
                )
            except (BlockingIOError, ssl.SSLWantWriteError):
                await self._wait(anyio.wait_writable)
            except ssl.SSLWantReadError:
                await self._wait(anyio.wait_readable)
            except ssl.SSLEOFError:
                return 0
            else:
                await self.take_turns(count)
                return count

    async def _receive(self, buffers: Sequence[memoryview]) -> int:
        while True:
            try:
                count = (
                    self._socket.recv_into(buffers[0])
                    if self._is_tls
                    else self._socket.recvmsg_into(buffers)[0]
                )
            except (BlockingIOError, ssl.SSLWantReadError):
                if cost := self._progress.meanwhile():
                    await self.take_turns(cost)
                else:
                    await self._wait(anyio.wait_readable)
            except ssl.SSLWantWriteError:
                await self._wait(anyio.wait_writable)
            except ssl.SSLEOFError:
                return 0
            else:
                await self.take_turns(count)
                return count

    async def _wait(self, ready: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._moved = 0
        self._hear()
        await ready(self._socket)

    async def take_turns(self, count: int) -> None:
        """Count what was moved, and let other tasks have their turn when it is much."""
        self._moved += count
        if self._moved > _TURN_BYTES:
            self._moved = 0
            self._hear()
            await anyio.lowlevel.checkpoint()

    def _hear(self) -> None:
        """Put the end of patience off; not each time, since that costs as much as a short wait."""
        now = time.monotonic()
        if now - self._heard > _SILENCE_SECONDS / 2:
            self._heard = now
            self._patience.deadline = anyio.current_time() + _SILENCE_SECONDS

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


@dataclass
class ChannelTransfer:
    """Payload over channels to one server, which are opened when needed and kept."""

    target: Target
    kept: list[Channel] = field(default_factory=list)
    room: anyio.Semaphore = field(
        default_factory=lambda: anyio.Semaphore(_MOST_CHANNELS, fast_acquire=True)
    )

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        """As `Transfer.run`."""
        async with self._channel() as channel:
            await channel.send(commands)
            return [_as_reply(await channel.replies.read()) for _ in commands]

    async def read(self, ranges: Sequence[Range], progress: Progress = NO_PROGRESS) -> list[int]:
        """As `Transfer.read`, over two channels where there is more than one string."""
        work = _Reading(ranges, progress)
        if len(ranges) == 1 or sum(work.sizes) < WINDOW_BYTES // 8:
            await self._read_in_lane(work)
        else:
            async with anyio.create_task_group() as group:
                for _ in range(_LANES):
                    group.start_soon(self._read_in_lane, work)
        if work.failure is not None:
            raise work.failure
        return work.lengths

    async def _read_in_lane(self, work: _Reading) -> None:
        try:
            async with self._channel(work.progress) as channel:
                asked: deque[int] = deque()
                while work.failure is None:
                    if new := work.take(asked):
                        await channel.send([work.ranges[at].command for at in new])
                        asked += new
                    if not asked:
                        return  # the other lane has the rest
                    at = asked.popleft()
                    length = await channel.replies.read_into(work.ranges[at].target)
                    if isinstance(length, ErrorReply):
                        raise as_client_error(length)
                    work.done(at, length or 0)
                    await channel.take_turns(_REPLY_BYTES)
                raise ConnectionLost("the other lane failed")
        except (RedisError, OSError) as failure:
            work.failure = work.failure or failure

    def _channel(self, progress: Progress = NO_PROGRESS) -> _Use:
        return _Use(self, progress)

    async def fit_channel(self) -> Channel:
        """Return a channel that was kept and is fit, or a new one."""
        while self.kept:
            channel = self.kept.pop()
            if channel.is_fit:
                return channel
            channel.close()
        return Channel(await anyio.to_thread.run_sync(self.target.open_socket))

    async def close(self) -> None:
        """Close the channels that nobody uses; those in use close with their users."""
        while self.kept:
            self.kept.pop().close()


@dataclass(slots=True)
class _Use:
    """One exchange over a channel, which is kept afterwards unless something went wrong."""

    transfer: ChannelTransfer
    progress: Progress
    _channel: Channel = field(init=False)

    async def __aenter__(self) -> Channel:
        await acquire(self.transfer.room)
        try:
            self._channel = await self.transfer.fit_channel()
        except BaseException:
            self.transfer.room.release()
            raise
        self._channel.begin(self.progress)
        return self._channel

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the exchange.

        Raises:
            NoAnswer: the server was silent for too long.
        """
        was_silent = self._channel.end(kind, error, trace)
        self.transfer.room.release()
        if error is None:
            self.transfer.kept.append(self._channel)
            return
        self._channel.close()
        if was_silent:
            raise NoAnswer(f"nothing was heard of the server for {_SILENCE_SECONDS:g} s")


class _Reading:
    """What is left to ask for, shared by the lanes of one read."""

    def __init__(self, ranges: Sequence[Range], progress: Progress) -> None:
        self.ranges = ranges
        self.progress = progress
        self.lengths = [0] * len(ranges)
        self.failure: RedisError | OSError | None = None
        self.sizes = [len(one.target) for one in ranges]
        self._next = 0
        self._outstanding = 0

    def take(self, asked: Iterable[int]) -> list[int]:
        """Return the positions of what a lane shall ask for now, beside what it has asked for.

        Both lanes stay within the window, each in its share; one string may be longer than that.
        Small ones wait until half of the share has come, so that one write asks for many.
        """
        taken: list[int] = []
        mine = sum(self.sizes[at] for at in asked)
        share = WINDOW_BYTES // _LANES
        is_small = self._next < len(self.sizes) and self.sizes[self._next] < share // 8
        if is_small and mine > share // 2:
            return taken
        while self._next < len(self.sizes):
            size = self.sizes[self._next]
            is_share = mine == 0 or mine + size <= share
            if self._outstanding and not (is_share and self._outstanding + size <= WINDOW_BYTES):
                break
            taken.append(self._next)
            self._next += 1
            self._outstanding += size
            mine += size
        return taken

    def done(self, at: int, length: int) -> None:
        """Note that one range has come."""
        self._outstanding -= self.sizes[at]
        self.lengths[at] = length
        self.progress.arrived(at, length)


def _as_reply(reply: Any) -> Any:
    return as_client_error(reply) if isinstance(reply, ErrorReply) else reply
