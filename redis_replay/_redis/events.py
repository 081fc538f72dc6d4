"""Wake-ups from the run's event stream: one blocked reader a process, fanned out by topic.

A waiter takes a ticket, checks its condition, then waits for the ticket's topic to move. The reader
reads from the last id it saw, so no event between check and wait is missed; a slow re-check is the
net below it. While nobody waits it rests, since each event of the run would cost it a reply; when
it goes on, every topic counts as moved.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import anyio
from redis.exceptions import RedisError

from redis_replay._redis.connect import Target
from redis_replay._redis.faults import is_transient
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.lines import Lines
from redis_replay.processes import require_own_process

_LOG = logging.getLogger(__name__)
_Entries = list[tuple[bytes, list[bytes]]]
_BLOCK_SECONDS: Final = 5.0
_RECONNECT_SECONDS: Final = 0.25
_REST_AFTER_SECONDS: Final = 0.1


class Topic(StrEnum):
    """What a waiter waits for."""

    READY = "ready"
    SPACE = "space"
    ADMISSION = "admission"
    TICKETS = "tickets"


_TOPICS: Final[Mapping[str, frozenset[Topic]]] = {
    "attach": frozenset(Topic),
    "commit": frozenset({Topic.READY}),
    "requeue": frozenset({Topic.READY, Topic.SPACE}),
    "promote": frozenset({Topic.READY}),
    "select_for_good": frozenset({Topic.SPACE, Topic.READY}),
    "settle": frozenset({Topic.SPACE, Topic.ADMISSION, Topic.READY}),
    "version": frozenset({Topic.ADMISSION, Topic.READY}),
    "window": frozenset({Topic.ADMISSION}),
    "policy": frozenset({Topic.ADMISSION}),
    "cursor": frozenset({Topic.ADMISSION}),
    "evict": frozenset({Topic.SPACE, Topic.READY}),
    "abort": frozenset({Topic.SPACE, Topic.READY}),
    "drop": frozenset({Topic.SPACE, Topic.READY}),
    "quarantine": frozenset({Topic.SPACE, Topic.READY}),
    "remove": frozenset({Topic.SPACE, Topic.READY}),
    "resize": frozenset({Topic.SPACE}),
    "catch_up": frozenset({Topic.SPACE, Topic.ADMISSION, Topic.READY}),
    "end_of_data": frozenset({Topic.READY, Topic.ADMISSION}),
    "end_owner": frozenset(Topic),
    "reinstate": frozenset({Topic.READY, Topic.TICKETS}),
    "restore": frozenset(Topic),
}


_NOTHING: Final = frozenset[Topic]()


@dataclass
class Wakeups:
    """Counts what moved, by topic, and wakes who waits for it.

    Attributes:
        is_resting: Whether the stream is not read, since nobody waits.
    """

    target: Target
    keyspace: Keyspace
    is_resting: bool = False
    _counts: dict[Topic, int] = field(default_factory=lambda: dict.fromkeys(Topic, 0))
    _moved: dict[Topic, anyio.Event] = field(
        default_factory=lambda: {topic: anyio.Event() for topic in Topic}
    )
    _started: anyio.Event = field(default_factory=anyio.Event)
    _last_id: str | None = None
    _waiters: int = 0
    _last_wait: float = -math.inf
    _wanted: anyio.Event = field(default_factory=anyio.Event)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _opener: int = field(default_factory=os.getpid)

    async def ticket(self, topic: Topic) -> int:
        """Return a ticket taken before a condition is checked.

        Raises:
            ForkedStore: this process was forked from the one that reads the stream.
        """
        require_own_process(self._opener)
        if not self._started.is_set():  # a wait for what has happened costs a turn of the loop
            await self._started.wait()
        return self._counts[topic]

    async def wait(self, topic: Topic, ticket: int, *, at_most_seconds: float) -> bool:
        """Wait until the topic has moved since the ticket was taken, or for a while.

        Returns:
            Whether it has moved.
        """
        if self._counts[topic] == ticket:
            self._waiters += 1
            self._wanted.set()
            try:
                with anyio.move_on_after(at_most_seconds):
                    await self._moved[topic].wait()
            finally:
                self._waiters -= 1
                self._last_wait = anyio.current_time()
        return self._counts[topic] != ticket

    def move(self, topics: frozenset[Topic]) -> None:
        """Wake everybody who waits for one of the topics."""
        for topic in topics:
            self._counts[topic] += 1
            self._moved[topic].set()
            self._moved[topic] = anyio.Event()

    def stop(self) -> None:
        """End the reader and wake everybody."""
        self._scope.cancel()
        self._started.set()
        self.move(frozenset(Topic))

    async def read_forever(self) -> None:
        """Read the stream until stopped; a lost connection is opened again."""
        with self._scope:
            await self._read()

    async def _rest(self) -> None:
        """Wait until somebody waits, if nobody has for a while; what happens meanwhile is lost."""
        quiet_seconds = anyio.current_time() - self._last_wait
        if self._last_id is None or self._waiters or quiet_seconds < _REST_AFTER_SECONDS:
            return
        self._wanted, self.is_resting, self._last_id = anyio.Event(), True, None
        await self._wanted.wait()
        self.is_resting = False

    async def _read(self) -> None:
        lines = Lines(self.target.serving(self.keyspace.control(Key.EVENTS)))
        try:
            while True:
                try:
                    await self._rest()
                    if self._last_id is None:
                        await self._begin(lines)
                    entries = await self._entries(lines)
                except (RedisError, OSError) as failure:
                    if not is_transient(failure):
                        _LOG.warning("the event stream cannot be read: %s", failure)
                    self._started.set()
                    self.move(frozenset(Topic))
                    await lines.close()  # another server may serve it now
                    await anyio.sleep(_RECONNECT_SECONDS)
                    continue
                if entries:
                    self._last_id = entries[-1][0].decode()
                    moved = (_TOPICS.get(_kind_of(fields), _NOTHING) for _, fields in entries)
                    self.move(_NOTHING.union(*moved))
        finally:
            with anyio.CancelScope(shield=True):
                await lines.close()

    async def _begin(self, lines: Lines) -> None:
        """Go on behind the newest entry; what came before it counts as moved."""
        stream = self.keyspace.control(Key.EVENTS)
        [newest] = await lines.run([("XREVRANGE", stream, "+", "-", "COUNT", 1)])
        self._last_id = _accepted(newest)[0][0].decode() if newest else "0-0"
        self._started.set()
        self.move(frozenset(Topic))

    async def _entries(self, lines: Lines) -> _Entries:
        """Wait for entries behind the last one; none after a while."""
        stream, block = self.keyspace.control(Key.EVENTS), int(_BLOCK_SECONDS * 1000)
        command = ("XREAD", "BLOCK", block, "STREAMS", stream, self._last_id or "0-0")
        [reply] = await lines.run([command], block_seconds=_BLOCK_SECONDS)
        return _accepted(reply)[0][1] if reply else []


def _kind_of(fields: list[bytes]) -> str:
    """Return what an entry says first: the kind of mutation."""
    return fields[1].decode() if fields[:1] == [b"kind"] else ""


def _accepted(reply: Any) -> Any:
    if isinstance(reply, RedisError):
        raise reply
    return reply
