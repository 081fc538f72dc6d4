"""Which runs a server holds."""

from __future__ import annotations

from typing import Final

from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import DEFAULT_DEADLINE_SECONDS, Gateway
from redis_replay._redis.keys import RUN_PATTERN, Key, Keyspace, run_of_meta_key

_ANY_RUN: Final = Keyspace("-", "-")
"""A gateway needs a keyspace; SCAN looks at all of them."""


async def list_runs(
    target: Target, *, deadline_seconds: float = DEFAULT_DEADLINE_SECONDS
) -> list[tuple[str, str]]:
    """Return run and partition of every run on a server, sorted. A pure read.

    Walks all keys of the server once, in steps that do not hold it.

    Raises:
        StoreError: the server cannot be read.
    """
    gateway = Gateway(target, _ANY_RUN, deadline_seconds=deadline_seconds)
    try:
        found = {_run_of(name) async for name in gateway.scan(RUN_PATTERN)}
        return sorted(run for run in found if run is not None)
    finally:
        await gateway.close()


def _run_of(name: str) -> tuple[str, str] | None:
    """Return run and partition, ``None`` for a key that only looks like a control record."""
    try:
        run, partition = run_of_meta_key(name)
        keyspace = Keyspace(run, partition)
    except ValueError:
        return None
    return (run, partition) if keyspace.control(Key.META) == name else None
