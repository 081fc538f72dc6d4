"""The one way to the server: runs typed calls, repeats what may be repeated, translates failures.

The client library retries nothing. A transient failure, whether the call ran or not, is answered by
the same call under the same number, with growing pauses, until the deadline (D44).
"""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from redis_replay._redis.channel import ChannelTransfer
from redis_replay._redis.connect import Target
from redis_replay._redis.faults import as_store_error, is_missing_script, is_transient
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.lines import Lines
from redis_replay._redis.lua import Argument, RawReply, Script, ScriptCall, load_script
from redis_replay._redis.records import ControlRecord
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.transfer import Command, PlainTransfer, Range, Transfer
from redis_replay.processes import require_own_process

T = TypeVar("T")
R = TypeVar("R")

Payload = bytes | memoryview
TransferWay: TypeAlias = Literal["plain", "channel"]
"""How payload travels: through the client library, or over channels where the target has them."""
DEFAULT_DEADLINE_SECONDS: Final = 30.0
_LARGE_BYTES: Final = 64 * 1024
"""Payload of a commit that is worth the transfer's way; less goes along with the script."""

_FIRST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 1.0


class Reads(Protocol):
    """Who runs reads: the gateway, or an attachment whose reads end with it."""

    @property
    def keyspace(self) -> Keyspace: ...

    @property
    def target(self) -> Target: ...

    def observe(self, control: ControlRecord) -> None: ...

    async def pipeline(
        self, commands: Sequence[Sequence[Argument]], *, atomic: bool = False
    ) -> list[Any]: ...


@dataclass
class Gateway:
    """Calls to one server about one run.

    Attributes:
        control: The newest control record that a reply carried, ``None`` before the first.
        lost: What a server said that has lost history; no call is sent to it any more, only reads.
        way: How payload travels.
    """

    target: Target
    keyspace: Keyspace
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    control: ControlRecord | None = None
    lost: Refusal | None = None
    way: TransferWay = "plain"
    _client: Redis = field(init=False, repr=False)
    _transfer: Transfer = field(init=False, repr=False)
    _lines: Lines = field(init=False, repr=False)
    _opener: int = field(default_factory=os.getpid, repr=False)

    def __post_init__(self) -> None:
        self._client = self.target.connect()
        self._lines = Lines(self.target)
        has_channel = self.way == "channel" and self.target.has_sockets
        self._transfer = (
            ChannelTransfer(self.target) if has_channel else PlainTransfer(self._client)
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._lines.close()
        await self._transfer.close()
        await self._client.aclose(close_connection_pool=True)

    async def call(
        self,
        call: ScriptCall[R],
        frame: Sequence[Argument] = (),
        *,
        writes: Sequence[tuple[str, Payload]] = (),
    ) -> R | Refusal:
        """Run a script and return what its reply means, or its refusal.

        Atomic. Repeated here after a transient failure; the frame's call number makes that safe.

        Args:
            call: The script and its arguments.
            frame: The arguments of the call's kind (`ScriptCall.FRAME`) but for the floor.
            writes: Payload keys and their bytes, set in the same write before the script runs.

        Raises:
            StoreError: the server cannot be used, or did not answer within the deadline.
        """
        if self.lost is not None:
            return self.lost
        floor = self.control.seq if self.control else 0
        full = (floor, *frame) if call.FRAME else ()
        keys = [*call.key_names(self.keyspace), *(key for key, _ in writes)]
        arguments = [len(keys), *keys, *full, *call.argument_values()]
        script = load_script(type(call))
        is_large = sum(len(value) for _, value in writes) > _LARGE_BYTES
        way = self._transfer if is_large else self._lines
        reply = await self.run(lambda _: _write_and_run(way, script, arguments, writes))
        control = ControlRecord.parse(reply[1:5])
        if control is not None:
            self.observe(control)
        code = reply[0].decode()
        if code == "OK":
            return call.parse(reply[5:])
        refusal = Refusal(code, control, tuple(reply[5:]))
        if code == "REGRESSED":
            self.lost = refusal
        return refusal

    async def run(self, command: Callable[[Redis], Awaitable[T]]) -> T:
        """Run a command that may be repeated, and return its reply.

        Raises:
            StoreError: the server cannot be used, or did not answer within the deadline.
            ForkedStore: this process was forked from the one that connected.
        """
        require_own_process(self._opener)
        deadline = anyio.current_time() + self.deadline_seconds
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return await command(self._client)
            except (RedisError, OSError) as failure:
                if not is_transient(failure) or anyio.current_time() + pause > deadline:
                    raise as_store_error(failure, address=self.target.address) from failure
            await anyio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def pipeline(
        self, commands: Sequence[Sequence[Argument]], *, atomic: bool = False
    ) -> list[Any]:
        """Run commands that may be repeated in one round trip and return their replies in order.

        Args:
            commands: Each a command name and its arguments.
            atomic: Whether nothing else may run between them (``MULTI``).

        Raises:
            StoreError: as `run`; the first command that fails decides.
        """
        if not commands:
            return []
        replies = await self.run(lambda _: _run_all(self._lines, commands, atomic=atomic))
        return [
            self._parsed(command, reply) for command, reply in zip(commands, replies, strict=True)
        ]

    def _parsed(self, command: Sequence[Argument], reply: Any) -> Any:
        """Return a reply as the client library shows it: HGETALL as a dictionary, and so on."""
        parse: Any = self._client.response_callbacks.get(str(command[0]))
        return reply if parse is None or reply is None else parse(reply)

    async def read(self, ranges: Sequence[Range]) -> list[int]:
        """Read payload into the targets and return how many bytes the server had for each.

        Not atomic; repeated as a whole after a transient failure.

        Raises:
            StoreError: as `run`.
        """
        return await self.run(lambda _: self._transfer.read(ranges)) if ranges else []

    async def write(self, commands: Sequence[Command]) -> None:
        """Run payload commands that may be repeated, in one write; their replies say nothing.

        Raises:
            StoreError: as `run`; the first command that fails decides.
        """

        if commands:
            _accepted(await self.run(lambda _: self._transfer.run(commands)))

    def observe(self, control: ControlRecord) -> None:
        """Keep a control record if it is the newest."""
        if self.control is None or control.seq >= self.control.seq:
            self.control = control


async def _write_and_run(
    way: Transfer | Lines,
    script: Script,
    arguments: Sequence[Argument],
    writes: Sequence[tuple[str, Payload]],
) -> RawReply:
    commands: list[Command] = [("SET", key, value) for key, value in writes]
    *written, reply = await way.run([*commands, ("EVALSHA", script.sha, *arguments)])
    _accepted(written)
    if isinstance(reply, RedisError) and is_missing_script(reply):
        [reply] = await way.run([("EVAL", script.text, *arguments)])
    _accepted([reply])
    return cast(RawReply, reply)


async def _run_all(
    lines: Lines, commands: Sequence[Sequence[Argument]], *, atomic: bool
) -> list[Any]:
    if not atomic:
        return _accepted(await lines.run(commands))
    *_, replies = _accepted(await lines.run([("MULTI",), *commands, ("EXEC",)]))
    return _accepted(replies)


def _accepted(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply
    return replies
