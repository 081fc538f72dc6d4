"""The one way to the server: runs typed calls, repeats what may be repeated, translates failures.

The client library retries nothing. A transient failure, whether the call ran or not, is answered by
the same call under the same number, with growing pauses, until the deadline (D44).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast

import anyio
from redis.asyncio import Redis
from redis.exceptions import OutOfMemoryError, RedisError

from redis_replay._redis.channel import ChannelTransfer
from redis_replay._redis.connect import Target
from redis_replay._redis.faults import (
    as_store_error,
    is_missing_script,
    is_moved_away,
    is_transient,
)
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.lines import Lines
from redis_replay._redis.lua import Argument, RawReply, Script, ScriptCall, load_script
from redis_replay._redis.nodes import Nodes
from redis_replay._redis.records import ControlRecord
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import ReadTogether
from redis_replay._redis.transfer import (
    NO_PROGRESS,
    Command,
    PlainTransfer,
    Progress,
    Range,
    Transfer,
)
from redis_replay.errors import StoreClosed
from redis_replay.processes import require_own_process

T = TypeVar("T")
R = TypeVar("R")

Payload = bytes | memoryview
TransferWay: TypeAlias = Literal["plain", "channel"]
"""How payload travels: through the client library, or over channels where the target has them."""
DEFAULT_DEADLINE_SECONDS: Final = 30.0
_LARGE_BYTES: Final = 64 * 1024
"""Payload of a commit that is worth the transfer's way; less goes along with the script."""
_SCAN_COUNT: Final = 500

_KEYS_A_COMMAND: Final = 16
"""Payload keys that one command frees: freeing a large one keeps the server for half a ms."""

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
    """Calls about one run: to one server, or in a cluster to the node that holds its control keys.

    Attributes:
        target: Where the run is.
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
    _nodes: Nodes | None = field(init=False, default=None, repr=False)
    _opener: int = field(default_factory=os.getpid, repr=False)
    _is_closed: bool = field(init=False, default=False, repr=False)

    def __post_init__(self) -> None:
        home = self.target.serving(self.keyspace.control(Key.META))
        self._client = home.connect()
        self._lines = Lines(home)
        self._transfer = self._new_transfer(home)
        if self.target.cluster is not None:
            self._nodes = Nodes(self.target, self.target.cluster, self._new_transfer)

    def _new_transfer(self, target: Target) -> Transfer:
        has_channel = self.way == "channel" and target.has_sockets
        return ChannelTransfer(target) if has_channel else PlainTransfer(target.connect())

    @property
    def is_cluster(self) -> bool:
        """Whether payload may lie on other servers than the control keys."""
        return self._nodes is not None

    async def close(self) -> None:
        """Close the connections, those in use with their calls. No call comes after it."""
        self._is_closed = True
        await self._close_idle()
        await self._client.aclose(close_connection_pool=True)

    async def _close_idle(self) -> None:
        """Close the connections that nobody uses; new ones ask where the servers are."""
        await self._lines.close()
        await self._transfer.close()
        if self._nodes is not None:
            await self._nodes.close()

    async def call(
        self,
        call: ScriptCall[R],
        frame: Sequence[Argument] = (),
        *,
        writes: Sequence[tuple[str, Payload]] = (),
        on_repeat: Callable[[], None] | None = None,
    ) -> R | Refusal:
        """Run a script and return what its reply means, or its refusal.

        Atomic. Repeated here after a transient failure; the frame's call number makes that safe.

        Args:
            call: The script and its arguments.
            frame: The arguments of the call's kind (`ScriptCall.FRAME`) but for the floor.
            writes: Payload keys and their bytes, set before the script runs: in the same write, but
                in a cluster, where they lie on other nodes, after these have answered.
            on_repeat: Called when an attempt has failed that may still be on its way.

        Raises:
            StoreError: the server cannot be used, or did not answer within the deadline.
        """
        if self.lost is not None:
            return self.lost
        floor = self.control.seq if self.control else 0
        full = (floor, *frame) if call.FRAME else ()
        if self._nodes is not None:
            await self.write([("SET", key, value) for key, value in writes])
            writes = ()
        keys = [*call.key_names(self.keyspace), *(key for key, _ in writes)]
        arguments = [len(keys), *keys, *full, *call.argument_values()]
        script = load_script(type(call))
        way = self._transfer if _is_large(value for _, value in writes) else self._lines
        reply = await self.run(
            lambda _: _write_and_run(way, script, arguments, writes), on_repeat=on_repeat
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

    async def run(
        self,
        command: Callable[[Redis], Awaitable[T]],
        *,
        on_repeat: Callable[[], None] | None = None,
    ) -> T:
        """Run a command that may be repeated, and return its reply.

        Raises:
            StoreError: the server cannot be used, or did not answer within the deadline.
            StoreClosed: it was closed.
            ForkedStore: this process was forked from the one that connected.
        """
        require_own_process(self._opener)
        if self._is_closed:
            raise StoreClosed("the store is closed; open it again")
        deadline = time.monotonic() + self.deadline_seconds
        pause = _FIRST_PAUSE_SECONDS
        try:
            while True:
                try:
                    return await command(self._client)
                except (RedisError, OSError) as failure:
                    if not is_transient(failure) or time.monotonic() + pause > deadline:
                        raise as_store_error(failure, address=self.target.address) from failure
                    if self._nodes is not None or is_moved_away(failure):
                        await self._close_idle()
                if on_repeat is not None:
                    on_repeat()
                await anyio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        finally:
            if self._is_closed:  # meanwhile
                await self._close_idle()

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
        return await self._ask(self._lines, commands, atomic=atomic)

    async def _ask(
        self, lines: Lines, commands: Sequence[Sequence[Argument]], *, atomic: bool = False
    ) -> list[Any]:
        if not commands:
            return []
        replies = await self.run(lambda _: _run_all(lines, commands, atomic=atomic))
        return self._all_parsed(commands, replies)

    def _all_parsed(self, commands: Sequence[Sequence[Argument]], replies: list[Any]) -> list[Any]:
        return [
            self._parsed(command, reply) for command, reply in zip(commands, replies, strict=True)
        ]

    def _parsed(self, command: Sequence[Argument], reply: Any) -> Any:
        """Return a reply as the client library shows it: HGETALL as a dictionary, and so on."""
        parse: Any = self._client.response_callbacks.get(str(command[0]))
        return reply if parse is None or reply is None else parse(reply)

    async def read(
        self, ranges: Sequence[Range], attempt: Callable[[], Progress] = lambda: NO_PROGRESS
    ) -> list[int]:
        """Read payload into the targets and return how many bytes the server had for each.

        Not atomic; repeated as a whole after a transient failure. Each ``attempt`` begins
        anew with what is to be done meanwhile.

        Raises:
            StoreError: as `run`.
        """
        way = self._nodes or self._transfer
        return await self.run(lambda _: way.read(ranges, attempt())) if ranges else []

    async def write(self, commands: Sequence[Command]) -> None:
        """Run payload commands that may be repeated; their replies say nothing.

        Those for one server go out in one write.

        Raises:
            StoreError: as `run`; the first command that fails decides.
        """
        if not commands:
            return
        if self._nodes is None:
            await self.run(lambda _: _all_accepted(self._transfer.run(commands)))
            return
        sent = (part for command in commands for part in command[2:])
        await self._ask_nodes(self._nodes, commands, is_large=_is_large(sent))

    async def ask_payload(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run small commands about payload keys, which may be repeated; return the replies.

        Args:
            commands: Each a command name, one key, and more arguments.

        Raises:
            StoreError: as `run`; the first command that fails decides.
        """
        if self._nodes is None or not commands:
            return await self.pipeline(commands)
        replies = await self._ask_nodes(self._nodes, commands, is_large=False)
        return self._all_parsed(commands, replies)

    async def unlink(self, keys: Sequence[str]) -> int:
        """Free payload keys, a few with each command, and return how many there were.

        Raises:
            StoreError: as `run`.
        """
        each = _KEYS_A_COMMAND if self._nodes is None else 1
        parts = [keys[at : at + each] for at in range(0, len(keys), each)]
        return sum(await self.ask_payload([("UNLINK", *part) for part in parts]))

    async def _ask_nodes(
        self, nodes: Nodes, commands: Sequence[Command], *, is_large: bool
    ) -> list[Any]:
        return await self.run(lambda _: _all_accepted(nodes.run(commands, is_large=is_large)))

    async def everywhere(self, command: Sequence[Argument]) -> list[Any]:
        """Run a command that names no key on every server that holds keys; return the replies.

        Raises:
            StoreError: as `run`.
        """
        replies: list[Any] = []
        for lines in await self._all_lines():
            replies += await self._ask(lines, [command])
        return replies

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        """Yield the keys that match, of all servers, each at least once; walks all their keys.

        Raises:
            StoreError: as `run`.
        """
        for lines in await self._all_lines():
            cursor: int | None = None
            while cursor != 0:
                scan = ("SCAN", cursor or 0, "MATCH", pattern, "COUNT", _SCAN_COUNT)
                [(cursor, names)] = await self._ask(lines, [scan])
                for name in names:
                    yield name.decode()

    async def _all_lines(self) -> list[Lines]:
        nodes = self._nodes
        if nodes is None:
            return [self._lines]
        return [node.lines for node in await self.run(lambda _: nodes.masters())]

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
    *queued, replies = await lines.run([("MULTI",), *commands, ("EXEC",)])
    if any(isinstance(reply, OutOfMemoryError) for reply in queued):
        return await _read_in_script(lines, commands)
    return _accepted(_accepted([*queued, replies])[-1])


async def _read_in_script(lines: Lines, commands: Sequence[Sequence[Argument]]) -> list[Any]:
    """Run reads in one script: a full server queues nothing for a transaction, but runs them."""
    keys = [command[1] for command in commands]
    words: list[bytes] = []
    for command in commands:
        named = (command[0], *command[2:])
        words += [
            b"%d" % len(named),
            *(str(w).encode() if not isinstance(w, bytes) else w for w in named),
        ]
    script = load_script(ReadTogether)
    arguments = [len(keys), *keys, *ReadTogether(tuple(words)).argument_values()]
    return cast(list[Any], await _write_and_run(lines, script, arguments, ()))


async def _all_accepted(replies: Awaitable[list[Any]]) -> list[Any]:
    return _accepted(await replies)


def _accepted(replies: list[Any]) -> list[Any]:
    for reply in replies:
        if isinstance(reply, RedisError):
            raise reply
    return replies


def _is_large(parts: Iterable[object]) -> bool:
    sizes = (len(part) for part in parts if isinstance(part, (bytes, memoryview)))
    return sum(sizes) > _LARGE_BYTES
