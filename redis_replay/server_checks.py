"""Is this server fit to keep training state? Asked once, when a store is opened."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from redis_replay._redis.gateway import Gateway
from redis_replay.errors import StoreRefused, UnsafeServer

_LOG = logging.getLogger(__name__)
_SETTINGS = ("maxmemory-policy", "appendonly", "save", "proto-max-bulk-len")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself; ``None`` where it would not say.

    Attributes:
        largest_string: Longest string it accepts, in bytes.
    """

    eviction_policy: str | None
    persists: bool | None
    largest_string: int | None


async def read_server_facts(gateway: Gateway) -> ServerFacts:
    """Ask every server for the settings that matter, and return the worst of each. A pure read."""
    try:
        replies = await gateway.everywhere(("CONFIG", "GET", *_SETTINGS))
    except StoreRefused as refusal:
        _LOG.warning("the server's settings could not be checked: %s", refusal)
        return ServerFacts(None, None, None)
    facts = [_facts(reply) for reply in replies]
    policies = [one.eviction_policy for one in facts if one.eviction_policy is not None]
    largest = [one.largest_string for one in facts if one.largest_string is not None]
    return ServerFacts(
        min(policies, default=None),  # those that may drop any key come first in the alphabet
        all(one.persists for one in facts),
        min(largest, default=None),
    )


def _facts(reply: Any) -> ServerFacts:
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    found = {_text(name): _text(value) for name, value in pairs}
    largest = found.get("proto-max-bulk-len", "")
    persists = found.get("appendonly") == "yes" or bool(found.get("save"))
    return ServerFacts(
        found.get("maxmemory-policy"), persists, int(largest) if largest.isdigit() else None
    )


def check_server(facts: ServerFacts, *, address: str, allow_unsafe: bool) -> None:
    """Refuse a server that may drop keys; warn about one that keeps nothing.

    Policies named ``volatile-*`` are fine: no key of ours has a time to live.

    Raises:
        UnsafeServer: its eviction policy may drop any key.
    """
    policy = facts.eviction_policy
    if policy is not None and policy.startswith("allkeys-"):
        message = (
            f"{address} has maxmemory-policy {policy}, which drops replay data when memory "
            "is full. Set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
        if not allow_unsafe:
            raise UnsafeServer(f"{message}, or pass allow_unsafe_server=True to go on regardless.")
        _LOG.warning("%s.", message)
    if facts.persists is False:
        _LOG.warning(
            "%s persists nothing (appendonly no, save ''): its restart loses the run. Set "
            "'appendonly yes'.",
            address,
        )


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
