"""The one way to the server: runs typed calls, repeats what may be repeated, translates failures.

The client library retries nothing. A transient failure, whether the call ran or not, is answered by
the same call under the same number, with growing pauses, until the deadline (D44).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError

from redis_replay._redis.connect import Target
from redis_replay._redis.faults import as_store_error, is_missing_script, is_transient
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.lua import Argument, RawReply, ScriptCall, load_script
from redis_replay._redis.records import ControlRecord
from redis_replay._redis.refusals import Refusal

T = TypeVar("T")
R = TypeVar("R")

Payload = bytes | memoryview
DEFAULT_DEADLINE_SECONDS: Final = 30.0
_FIRST_PAUSE_SECONDS: Final = 0.01
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass
class Gateway:
    """Calls to one server about one run.

    Attributes:
        control: The newest control record that a reply carried, ``None`` before the first.
        lost: What a server said that has lost history; no call is sent to it any more, only reads.
    """

    target: Target
    keyspace: Keyspace
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
    control: ControlRecord | None = None
    lost: Refusal | None = None
    _client: Redis = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._client = self.target.connect()

    async def close(self) -> None:
        """Close the connections."""
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
        reply = await self.run(
            lambda client: _run_script(client, self.keyspace, call, full, writes)
        )
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

    def observe(self, control: ControlRecord) -> None:
        """Keep a control record if it is the newest."""
        if self.control is None or control.seq >= self.control.seq:
            self.control = control


async def _run_script(
    client: Redis,
    keyspace: Keyspace,
    call: ScriptCall[Any],
    frame: Sequence[Argument],
    writes: Sequence[tuple[str, Payload]],
) -> RawReply:
    script = load_script(type(call))
    execute = cast(Callable[..., Awaitable[Any]], client.execute_command)
    keys = [*call.key_names(keyspace), *(key for key, _ in writes)]
    arguments = [len(keys), *keys, *frame, *call.argument_values()]
    if not writes:
        try:
            reply = await execute("EVALSHA", script.sha, *arguments)
        except RedisError as failure:
            if not is_missing_script(failure):
                raise
            reply = await execute("EVAL", script.text, *arguments)
        return cast(RawReply, reply)
    return await _write_and_run(client, script.text, script.sha, arguments, writes)


async def _write_and_run(
    client: Redis,
    text: str,
    sha: str,
    arguments: Sequence[Argument],
    writes: Sequence[tuple[str, Payload]],
) -> RawReply:
    pipeline = client.pipeline(transaction=False)
    for key, value in writes:
        pipeline.execute_command("SET", key, value)
    pipeline.execute_command("EVALSHA", sha, *arguments)
    *written, reply = await pipeline.execute(raise_on_error=False)
    for outcome in written:
        if isinstance(outcome, RedisError):
            raise outcome
    if isinstance(reply, RedisError):
        if not is_missing_script(reply):
            raise reply
        execute = cast(Callable[..., Awaitable[Any]], client.execute_command)
        reply = await execute("EVAL", text, *arguments)
    return cast(RawReply, reply)
