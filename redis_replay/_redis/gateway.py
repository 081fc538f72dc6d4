"""The one way to the server: runs typed calls, repeats what may be repeated, translates failures.

The client library retries nothing. A transient failure, whether the call ran or not, is answered by
the same call under the same number, with growing pauses, until the deadline (D44).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from redis_replay._redis.channel import ChannelTransfer
from redis_replay._redis.connect import Target
from redis_replay._redis.faults import as_store_error, is_missing_script, is_transient
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.lua import Argument, RawReply, Script, ScriptCall, load_script
from redis_replay._redis.records import ControlRecord
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.transfer import Command, PlainTransfer, Range, Transfer

T = TypeVar("T")
R = TypeVar("R")

Payload = bytes | memoryview
TransferWay: TypeAlias = Literal["plain", "channel"]
"""How payload travels: through the client library, or over channels where the target has them."""
DEFAULT_DEADLINE_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 1.0


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

    def __post_init__(self) -> None:
        self._client = self.target.connect()
        has_channel = self.way == "channel" and self.target.has_sockets
        self._transfer = (
            ChannelTransfer(self.target) if has_channel else PlainTransfer(self._client)
        )

    async def close(self) -> None:
        """Close the connections."""
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

        async def send(client: Redis) -> RawReply:
            if not writes:
                return await _run_script(client, script, arguments)
            return await _write_and_run(self._transfer, script, arguments, writes)

        reply = await self.run(send)
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
        """
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

        async def execute(client: Redis) -> list[Any]:
            pipeline = client.pipeline(transaction=atomic)
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute()

        return await self.run(execute) if commands else []

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

        async def send(_: Redis) -> None:
            for reply in await self._transfer.run(commands):
                if isinstance(reply, RedisError):
                    raise reply

        if commands:
            await self.run(send)

    def observe(self, control: ControlRecord) -> None:
        """Keep a control record if it is the newest."""
        if self.control is None or control.seq >= self.control.seq:
            self.control = control


async def _run_script(client: Redis, script: Script, arguments: Sequence[Argument]) -> RawReply:
    execute = cast(Callable[..., Awaitable[Any]], client.execute_command)
    try:
        reply = await execute("EVALSHA", script.sha, *arguments)
    except RedisError as failure:
        if not is_missing_script(failure):
            raise
        reply = await execute("EVAL", script.text, *arguments)
    return cast(RawReply, reply)


async def _write_and_run(
    transfer: Transfer,
    script: Script,
    arguments: Sequence[Argument],
    writes: Sequence[tuple[str, Payload]],
) -> RawReply:
    commands: list[Command] = [("SET", key, value) for key, value in writes]
    *written, reply = await transfer.run([*commands, ("EVALSHA", script.sha, *arguments)])
    for outcome in written:
        if isinstance(outcome, RedisError):
            raise outcome
    if isinstance(reply, RedisError) and is_missing_script(reply):
        [reply] = await transfer.run([("EVAL", script.text, *arguments)])
    if isinstance(reply, RedisError):
        raise reply
    return cast(RawReply, reply)
