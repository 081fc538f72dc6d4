"""Where the server is, and clients for it: one description, any number of connection pools.

A store opens two clients of its own for one target, since a blocked wait must never hold the
connection that a mutation needs; its heartbeat thread opens a third. An existing client is never
used itself: its connection settings are copied, so bytes stay bytes whatever it was created
with. Payload may travel over bare sockets (`channel`); those too are connected, secured and logged
in by the client library, from the same settings.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import redis
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry as BlockingRetry

from redis_replay.errors import UnsupportedUrl

CLIENT_SCHEMES: Final = ("redis", "rediss", "unix")
SILENCE_SECONDS: Final = 5.0
"""How long a server may take for one answer before the connection is given up."""

_POOL_TIMEOUT_SECONDS: Final = 20.0
_MOST_CONNECTIONS: Final = 32
_BLOCKING_CLASSES: Final[Mapping[type[AbstractConnection], Callable[..., Any]]] = {
    Connection: redis.Connection,
    SSLConnection: redis.SSLConnection,
    UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
}
_OF_ASYNC_CLIENTS: Final = frozenset({"parser_class", "event_dispatcher"})
_PASSWORD_OPTION: Final = re.compile(r"([?&](?:ssl_)?password=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """One server as connection class and settings; ``address`` is safe to print."""

    address: str
    connection_class: type[AbstractConnection]
    settings: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_url(cls, url: str) -> Target:
        """Describe the server of a ``redis://``, ``rediss://`` or ``unix://`` address.

        Raises:
            UnsupportedUrl: another scheme, or a malformed address.
        """
        scheme = url.partition("://")[0] if "://" in url else ""
        if scheme not in CLIENT_SCHEMES:
            raise UnsupportedUrl(
                f"the address {redact(url)!r} has the scheme {scheme!r}; supported are redis://, "
                "rediss://, unix:// and embedded://"
            )
        try:
            settings: dict[str, Any] = dict(parse_url(url))
            connection_class = settings.pop("connection_class", Connection)
            connection_class(**settings)  # connects nothing, but refuses unknown options
        except (TypeError, ValueError, RedisError) as malformed:
            # With a password the cause may quote a part of it, so it is not shown.
            hint = "in a password write / ? # @ as %2F %3F %23 %40" if "@" in url else malformed
            raise UnsupportedUrl(f"the address {redact(url)!r} is malformed: {hint}") from None
        return cls(redact(url), connection_class, settings)

    @classmethod
    def from_client(cls, client: Redis) -> Target:
        """Describe the server that an existing asyncio client talks to."""
        pool = client.connection_pool
        known = pool.connection_kwargs
        place = known.get("path") or f"{known.get('host', '?')}:{known.get('port', '?')}"
        return cls(f"the server at {place}", pool.connection_class, known)

    def connect(self, *, block_seconds: float = 0.0) -> Redis:
        """Return a new client with a pool of its own; nothing is sent yet.

        Args:
            block_seconds: Longest time that its commands may block on the server.
        """
        pool = BlockingConnectionPool(
            connection_class=self.connection_class,
            max_connections=_MOST_CONNECTIONS,
            timeout=_POOL_TIMEOUT_SECONDS,
            **self._settings(block_seconds),
            retry=Retry(NoBackoff(), 0),
        )
        return Redis.from_pool(pool)

    def connection(self) -> AbstractConnection:
        """Return a new connection that belongs to no pool; nothing is sent yet."""
        return self.connection_class(**self._settings(0.0), retry=Retry(NoBackoff(), 0))

    @property
    def has_sockets(self) -> bool:
        """Whether `open_socket` can connect to it: a real server, with settings for any client."""
        is_plain = self.settings.get("redis_connect_func") is None
        return is_plain and self.connection_class in _BLOCKING_CLASSES

    def open_socket(self) -> socket.socket:
        """Return a new socket, connected and logged in, that nothing else reads. Blocks.

        Raises:
            RedisError, OSError: as the client library raises them.
        """
        settings = self._settings(0.0)
        for name in _OF_ASYNC_CLIENTS & settings.keys():
            del settings[name]
        retry = BlockingRetry(NoBackoff(), 0)
        connection = _BLOCKING_CLASSES[self.connection_class](**settings, retry=retry)
        connection.connect()
        opened: socket.socket = vars(connection)["_sock"]
        vars(connection)["_sock"] = None  # so that its end does not close the socket
        opened.setblocking(False)
        return opened

    def _settings(self, block_seconds: float) -> dict[str, Any]:
        return {
            **{name: value for name, value in self.settings.items() if name != "retry"},
            "decode_responses": False,
            "encoding": "utf-8",
            "protocol": 2,
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
            "socket_timeout": SILENCE_SECONDS + block_seconds,
            "socket_connect_timeout": SILENCE_SECONDS,
        }


def redact(url: str) -> str:
    """Return an address without its password, fit for messages and logs; it may be malformed."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    if "@" in rest and not rest.startswith("/"):
        credentials, _, place = rest.rpartition("@")
        user, colon, _ = credentials.partition(":")
        rest = f"{user}:***@{place}" if colon else f"***@{place}"
    return scheme + separator + _PASSWORD_OPTION.sub(r"\1***", rest)
