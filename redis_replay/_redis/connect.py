"""Where the server is, and clients for it: one description, any number of connection pools.

A store opens two clients of its own for one target, since a blocked wait must never hold the
connection that a mutation needs; its heartbeat thread opens a third. An existing client is never
used itself: its connection settings are copied, so bytes stay bytes whatever it was created
with. Payload may travel over bare sockets (`channel`); those too are connected, secured and logged
in by the client library, from the same settings. A target that is several servers, behind Sentinels
or in a cluster, has a `finder`, which is asked where to connect (`finding`).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

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

from redis_replay._redis.finding import (
    Address,
    ClusterMap,
    Finder,
    FoundConnection,
    FoundSSLConnection,
    KeyFinder,
    SentinelFinder,
)
from redis_replay._redis.keys import RUN_PATTERN
from redis_replay.errors import ConfigurationError, UnsupportedUrl

_SCHEMES: Final = ("redis", "rediss", "unix")
_SCHEMES_OF_SEVERAL: Final = ("redis", "rediss")
SILENCE_SECONDS: Final = 5.0
"""How long a server may take for one answer before the connection is given up."""

_POOL_TIMEOUT_SECONDS: Final = 20.0
_MOST_CONNECTIONS: Final = 32
_BLOCKING_CLASSES: Final[Mapping[type[AbstractConnection], Callable[..., Any]]] = {
    Connection: redis.Connection,
    SSLConnection: redis.SSLConnection,
    UnixDomainSocketConnection: redis.UnixDomainSocketConnection,
    FoundConnection: redis.Connection,
    FoundSSLConnection: redis.SSLConnection,
}
_FOUND_CLASSES: Final[Mapping[type[AbstractConnection], type[FoundConnection]]] = {
    Connection: FoundConnection,
    SSLConnection: FoundSSLConnection,
}
_OF_ASYNC_CLIENTS: Final = frozenset({"parser_class", "event_dispatcher"})
_PASSWORD_OPTION: Final = re.compile(r"([?&](?:ssl_|sentinel_)?password=)[^&]*", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """One server as connection class and settings; ``address`` is safe to print."""

    address: str
    connection_class: type[AbstractConnection]
    settings: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_url(cls, url: str) -> Target:
        """Describe the server of an address, or the servers.

        One server: ``redis://``, ``rediss://`` or ``unix://``. Several, in which the rest is as in
        the first two: ``redis+sentinel://host:port,host:port/service/db``, whose hosts are the
        Sentinels, with ``sentinel_username`` and ``sentinel_password`` as options, and
        ``redis+cluster://host:port,host:port``, whose hosts are any nodes.

        Raises:
            UnsupportedUrl: another scheme, or a malformed address.
        """
        scheme, plus, kind = (url.partition("://")[0] if "://" in url else "").partition("+")
        known = scheme in _SCHEMES_OF_SEVERAL and kind in _SEVERAL if plus else scheme in _SCHEMES
        if not known:
            raise UnsupportedUrl(
                f"the address {redact(url)!r} has the scheme {scheme + plus + kind!r}; supported "
                "are redis://, rediss://, redis+sentinel://, rediss+sentinel://, redis+cluster://, "
                "rediss+cluster://, unix:// and embedded://"
            )
        try:
            if plus:
                return _SEVERAL[kind](url)
            connection_class, settings = _parsed(url)
        except (TypeError, ValueError, RedisError) as malformed:
            # With a password the cause may quote a part of it, so it is not shown.
            hint = "in a password write / ? # @ as %2F %3F %23 %40" if "@" in url else malformed
            raise UnsupportedUrl(f"the address {redact(url)!r} is malformed: {hint}") from None
        return cls(redact(url), connection_class, settings)

    @classmethod
    def from_client(cls, client: object) -> Target:
        """Describe the server that an existing asyncio client talks to.

        Raises:
            ConfigurationError: it is no ``redis.asyncio.Redis``.
        """
        if not isinstance(client, Redis):
            raise ConfigurationError(
                f"client must be a redis.asyncio.Redis, got {type(client).__name__}; for a cluster "
                "pass the address redis+cluster://host:port,host:port instead"
            )
        pool = client.connection_pool
        known = pool.connection_kwargs
        place = known.get("path") or f"{known.get('host', '?')}:{known.get('port', '?')}"
        return cls(f"the server at {place}", pool.connection_class, known)

    @property
    def cluster(self) -> ClusterMap | None:
        """The cluster it is, if it is one."""
        finder = self.settings.get("finder")
        return finder.cluster if isinstance(finder, KeyFinder) else None

    def serving(self, key: str) -> Target:
        """Return the server that holds a key; in a cluster, the one that does at each moment."""
        if self.cluster is None:
            return self
        return self._found_by(KeyFinder(self.cluster, key))

    def node(self, address: Address) -> Target:
        """Return one server of a cluster, whatever it holds."""
        [connection_class] = [c for c, f in _FOUND_CLASSES.items() if f is self.connection_class]
        host, port = address
        settings = {name: value for name, value in self.settings.items() if name != "finder"}
        settings.update(host=host, port=port)
        return Target(f"{host}:{port} of {self.address}", connection_class, settings)

    def _found_by(self, finder: Finder) -> Target:
        return replace(self, settings={**self.settings, "finder": finder})

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
        finder: Finder | None = settings.pop("finder", None)
        if finder is not None:
            settings["host"], settings["port"] = finder.find()
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


def _parsed(url: str) -> tuple[type[AbstractConnection], dict[str, Any]]:
    settings: dict[str, Any] = dict(parse_url(url))
    connection_class = settings.pop("connection_class", Connection)
    connection_class(**settings)  # connects nothing, but refuses unknown options
    return connection_class, settings


def _behind_sentinels(url: str) -> Target:
    one, sentinels = _first_of_several(url, default_port=26379)
    parts = urlsplit(one)
    service, _, db = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("it names no service; write redis+sentinel://host:port/service")
    options = dict(parse_qsl(parts.query))
    own = {n: options.pop(f"sentinel_{n}", None) for n in ("username", "password")}
    path = f"/{db}" if db else ""
    plain = urlunsplit(parts._replace(path=path, query=urlencode(options)))
    connection_class, settings = _parsed(plain)
    asking = {**_shared(connection_class, settings), **own}
    finder = SentinelFinder(tuple(sentinels), unquote(service), asking)
    return Target(redact(url), _FOUND_CLASSES[connection_class], {**settings, "finder": finder})


def _in_a_cluster(url: str) -> Target:
    one, nodes = _first_of_several(url, default_port=6379)
    if urlsplit(one).path.strip("/") not in ("", "0"):
        raise ValueError("a cluster has no numbered databases")
    connection_class, settings = _parsed(one)
    cluster = ClusterMap(nodes, _shared(connection_class, settings))
    finder = KeyFinder(cluster, RUN_PATTERN)  # any key: which node answers is all the same
    return Target(redact(url), _FOUND_CLASSES[connection_class], {**settings, "finder": finder})


_SEVERAL: Final[Mapping[str, Callable[[str], Target]]] = {
    "sentinel": _behind_sentinels,
    "cluster": _in_a_cluster,
}


def _first_of_several(url: str, *, default_port: int) -> tuple[str, list[Address]]:
    """Return the address with its first host only and without its kind, and all hosts."""
    parts = urlsplit(url)
    credentials, at, hosts = parts.netloc.rpartition("@")
    named = [urlsplit(f"//{host}") for host in hosts.split(",")]
    if not all(one.hostname for one in named):
        raise ValueError("a host is missing; write host:port,host:port")
    addresses = [(str(one.hostname), one.port or default_port) for one in named]
    first = credentials + at + hosts.split(",")[0]
    return urlunsplit(
        parts._replace(scheme=parts.scheme.partition("+")[0], netloc=first)
    ), addresses


def _shared(kind: type[AbstractConnection], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the settings holds for whoever is asked where the servers are."""
    names = [n for n in settings if n in ("username", "password") or n.startswith("ssl_")]
    return {**{name: settings[name] for name in names}, "ssl": kind is SSLConnection}


def redact(url: str) -> str:
    """Return an address without its password, fit for messages and logs; it may be malformed."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    if "@" in rest and not rest.startswith("/"):
        credentials, _, place = rest.rpartition("@")
        user, colon, _ = credentials.partition(":")
        rest = f"{user}:***@{place}" if colon else f"***@{place}"
    return scheme + separator + _PASSWORD_OPTION.sub(r"\1***", rest)
