"""Which of several servers serves now, asked anew for each connection.

A Sentinel names the master of a service, a cluster the master of a key's slot. A connection of
ours is never moved: when its server says that it is not the right one any more, it is closed, and
the next one asks again. Asking blocks, for `_ASK_SECONDS` at most for each server that is silent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, cast

import anyio
import redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, RedisError
from redis.exceptions import ConnectionError as ConnectionLost
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry
from redis.sentinel import Sentinel

Address: TypeAlias = tuple[str, int]
_ASK_SECONDS: Final = 1.0


class Finder(Protocol):
    """Knows where to connect to."""

    def find(self) -> Address:
        """Return host and port of the server that serves now. Blocks.

        Raises:
            RedisError, OSError: nobody who was asked knows.
        """
        ...


class FoundConnection(Connection):
    """A connection that asks where its server is each time it connects."""

    def __init__(self, *, finder: Finder, **settings: Any) -> None:
        super().__init__(**settings)
        self._finder = finder

    async def connect_check_health(
        self, check_health: bool = True, retry_socket_connect: bool = True
    ) -> None:
        """As the client library's; the address is asked for first."""
        if not self.is_connected:
            self.host, self.port = await anyio.to_thread.run_sync(self._finder.find)
        await super().connect_check_health(check_health, retry_socket_connect)


class FoundSSLConnection(FoundConnection, SSLConnection):
    """The same over TLS."""


@dataclass(frozen=True)
class SentinelFinder:
    """The master of a service, as Sentinels know it."""

    sentinels: tuple[Address, ...]
    service: str
    settings: Mapping[str, Any] = field(repr=False)

    def find(self) -> Address:
        """As `Finder.find`."""
        sentinel: Any = cast(Any, Sentinel)(
            list(self.sentinels), sentinel_kwargs=_asking(self.settings)
        )
        try:
            host, port = sentinel.discover_master(self.service)
        finally:
            for client in sentinel.sentinels:
                client.close()
        return str(host), int(port)


@dataclass
class ClusterMap:
    """Which master serves which slots, as the nodes of a cluster tell.

    Attributes:
        nodes: All nodes that were ever named; who answered last comes first.
    """

    nodes: list[Address]
    settings: Mapping[str, Any] = field(repr=False)
    _owned: list[tuple[int, int, Address]] = field(default_factory=list)

    def refresh(self) -> None:
        """Ask one node after the other until one tells. Blocks.

        Raises:
            RedisError, OSError: none of them does.
        """
        failure: RedisError | OSError = ConnectionLost("no node of the cluster is known")
        for node in list(self.nodes):
            try:
                self._owned = _owned_slots(node, self.settings)
            except (RedisError, OSError) as silent:
                failure = silent
                continue
            named = [address for _, _, address in self._owned]
            self.nodes = list(dict.fromkeys([node, *named, *self.nodes]))
            return
        raise failure

    def master(self, key: str) -> Address:
        """Return the master of a key's slot, by the newest answer.

        Raises:
            ClusterDownError: no master serves it.
        """
        slot = key_slot(key.encode())
        for first, last, address in self._owned:
            if first <= slot <= last:
                return address
        raise ClusterDownError(f"no node of the cluster serves the slot {slot}")

    def masters(self) -> list[Address]:
        """Return every master that serves slots, by the newest answer."""
        return sorted({address for _, _, address in self._owned})


@dataclass(frozen=True)
class KeyFinder:
    """The master of a key's slot."""

    cluster: ClusterMap
    key: str

    def find(self) -> Address:
        """As `Finder.find`."""
        self.cluster.refresh()
        return self.cluster.master(self.key)


def _owned_slots(node: Address, settings: Mapping[str, Any]) -> list[tuple[int, int, Address]]:
    host, port = node
    with redis.Redis(host=host, port=port, **_asking(settings)) as client:
        told: Any = client.execute_command("CLUSTER", "SLOTS")
    owned: list[tuple[int, int, Address]] = []
    for first, last, (name, at, *_), *_ in told:  # a node that has no name is the one that answers
        owned.append((first, last, (name.decode() if name else host, at)))
    return owned


def _asking(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **settings,
        "socket_timeout": _ASK_SECONDS,
        "socket_connect_timeout": _ASK_SECONDS,
        "protocol": 2,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        "retry": Retry(NoBackoff(), 0),
    }
