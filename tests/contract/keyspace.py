"""What tests see of a run's keys, and calls sent as scripts under numbers of the test's choice."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import anyio.lowlevel

from redis_replay._redis.frames import SessionScript, StoreScript
from redis_replay._redis.gateway import Payload
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.refusals import Refusal
from redis_replay.session import Session
from redis_replay.store import DEFAULT_PARTITION
from tests.harness import Runs

R = TypeVar("R")

_READERS: dict[bytes, tuple[str, tuple[object, ...]]] = {
    b"hash": ("HGETALL", ()),
    b"zset": ("ZRANGE", (0, -1, "WITHSCORES")),
    b"string": ("GET", ()),
    b"stream": ("XRANGE", ("-", "+")),
}


def control_key(runs: Runs, key: Key, *, partition: str = DEFAULT_PARTITION) -> str:
    """Return the full name of a control key of the test's run."""
    return Keyspace(runs.name, partition).control(key)


def session_of(place: Any) -> Session:
    """Return the session of a store, trainer or rollout."""
    session: Session = place.buffer.session
    return session


async def owners(runs: Runs) -> set[str]:
    """Return the names of the attached sessions."""
    return {name.decode() for name in await runs.client.hkeys(control_key(runs, Key.OWNERS))}


async def snapshot(runs: Runs) -> dict[str, Any]:
    """Return the content of every key of the test's run, heartbeat counts left out."""
    kinds = [b"none"]
    while b"none" in kinds:  # a key may be collected after it was listed
        keys = await runs.keys()
        kinds = await _replies(runs, [("TYPE", key) for key in keys])
    readers = [_READERS[kind] for kind in kinds]
    reads = [(verb, key, *arguments) for key, (verb, arguments) in zip(keys, readers, strict=True)]
    content = dict(zip(keys, await _replies(runs, reads), strict=True))
    for key in keys:
        if key.endswith(f":{Key.OWNERS}") and isinstance(content[key], dict):
            content[key] = {name: _beatless(record) for name, record in content[key].items()}
    return content


async def _replies(runs: Runs, commands: list[tuple[Any, ...]]) -> list[Any]:
    pipeline = runs.client.pipeline(transaction=False)
    for command in commands:
        pipeline.execute_command(*command)
    return list(await pipeline.execute()) if commands else []


def _beatless(record: bytes) -> list[bytes]:
    epoch, _, *others = record.split(b" ")
    return [epoch, *others]


@asynccontextmanager
async def nothing_changed(runs: Runs) -> AsyncIterator[None]:
    """Fail if a key of the test's run is another after the block than before it."""
    before = await snapshot(runs)
    yield
    assert before == await snapshot(runs)


async def attached(*places: Any) -> None:
    """Attach the sessions of stores, so that a refused call is the first thing they may change."""
    for place in places:
        await place.buffer.session.attach()


async def collected(*stores: Any) -> None:
    """Wait until the stores' background work, the collection of payload included, is done."""
    await anyio.lowlevel.checkpoint()  # work that was just started begins
    for store in stores:
        await store.buffer.session.link.tasks.idle()


def stop_collecting(store: Any) -> None:
    """Let a store free nothing by itself, as if its process ended right after each script."""

    async def nothing() -> int:
        return 0

    store.buffer.session.link.collector.collect = nothing


async def send(
    session: Session,
    call: SessionScript[R],
    *,
    number: int,
    digest: str = "digest",
    writes: Sequence[tuple[str, Payload]] = (),
) -> R | Refusal:
    """Send a session's call under a number and digest of the test's choice."""
    await session.attach()
    link = session.link
    frame = (*link.run.frame, session.owner, session.epoch, number, digest)
    return await link.gateway.call(call, frame, writes=writes)


async def send_plain(session: Session, call: StoreScript[R]) -> R | Refusal:
    """Send a call about the run."""
    await session.attach()
    return await session.link.gateway.call(call, session.link.run.frame)
