"""The nodes of a cluster: payload goes to whichever holds its key, to several at once.

Control keys share one slot and one script, so the gateway talks to their node alone; here are the
others. Nothing is retried here and no redirection is followed: a node that no longer holds a key
says so, which is a transient failure, and the gateway repeats the call when the map was asked for
anew. What it repeats may be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import anyio
from redis.exceptions import RedisError

from redis_replay._redis.connect import Target
from redis_replay._redis.finding import Address, ClusterMap
from redis_replay._redis.lines import Lines
from redis_replay._redis.transfer import NO_PROGRESS, Command, Progress, Range, Transfer

T = TypeVar("T")
R = TypeVar("R")
Reading = Awaitable[list[int]]


@dataclass(frozen=True)
class Node:
    """Connections to one server."""

    lines: Lines
    transfer: Transfer

    async def close(self) -> None:
        """Close the connections that nobody uses."""
        await self.lines.close()
        await self.transfer.close()


@dataclass(frozen=True, slots=True)
class _PartOf:
    """The progress of what one node has."""

    whole: Progress
    positions: Sequence[int]

    def arrived(self, at: int, length: int) -> None:
        """As `Progress.arrived`."""
        self.whole.arrived(self.positions[at], length)

    def meanwhile(self) -> int:
        """As `Progress.meanwhile`."""
        return self.whole.meanwhile()


@dataclass
class Nodes:
    """Connections to the masters of a cluster, opened when needed and kept."""

    target: Target
    cluster: ClusterMap
    new_transfer: Callable[[Target], Transfer]
    _known: dict[Address, Node] = field(default_factory=dict)
    _is_current: bool = False

    async def run(self, commands: Sequence[Command], *, is_large: bool) -> list[Any]:
        """Run commands whose first argument is a key, each on its node; return the replies.

        An error that a server replied with is returned in its place.

        Args:
            commands: For payload keys; those of one node go out in one write.
            is_large: Whether they are worth the transfer's way.
        """
        return await self._spread(
            commands,
            [str(command[1]) for command in commands],
            lambda node, part, _: (node.transfer if is_large else node.lines).run(part),
        )

    async def read(self, ranges: Sequence[Range], progress: Progress = NO_PROGRESS) -> list[int]:
        """As `Transfer.read`, from several nodes at once."""

        def read_part(node: Node, part: Sequence[Range], positions: Sequence[int]) -> Reading:
            return node.transfer.read(part, _PartOf(progress, positions))

        return await self._spread(ranges, [one.key for one in ranges], read_part)

    async def masters(self) -> list[Node]:
        """Return every node that holds keys."""
        await self._look()
        return [self._node(address) for address in self.cluster.masters()]

    async def _spread(
        self,
        items: Sequence[T],
        keys: Sequence[str],
        way: Callable[[Node, Sequence[T], Sequence[int]], Awaitable[list[R]]],
    ) -> list[R]:
        await self._look()
        parts: dict[Address, list[int]] = {}
        for at, key in enumerate(keys):
            parts.setdefault(self.cluster.master(key), []).append(at)
        replies: dict[int, R] = {}
        failures: list[RedisError | OSError] = []

        async def ask(address: Address, positions: list[int]) -> None:
            try:
                part = [items[at] for at in positions]
                answer = await way(self._node(address), part, positions)
                replies.update(zip(positions, answer, strict=True))
            except (RedisError, OSError) as failure:
                failures.append(failure)

        async with anyio.create_task_group() as group:
            for address, positions in parts.items():
                group.start_soon(partial(ask, address, positions))
        if failures:
            raise failures[0]
        return [replies[at] for at in range(len(items))]

    async def _look(self) -> None:
        if not self._is_current:
            await anyio.to_thread.run_sync(self.cluster.refresh)
            self._is_current = True

    def _node(self, address: Address) -> Node:
        if address not in self._known:
            target = self.target.node(address)
            self._known[address] = Node(Lines(target), self.new_transfer(target))
        return self._known[address]

    async def close(self) -> None:
        """Close the connections that nobody uses, and ask for the map before it is used again."""
        self._is_current = False
        for node in self._known.values():
            await node.close()
