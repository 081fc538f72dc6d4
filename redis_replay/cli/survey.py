"""What ``status`` reads: the server as it describes itself, and runs with their sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio

from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key, Keyspace, decode_name
from redis_replay._redis.records import OwnerRecord
from redis_replay.cli.places import DEADLINE_SECONDS
from redis_replay.errors import StoreCorrupted, StoreRefused, StoreUnavailable
from redis_replay.run import RunSettings, open_run
from redis_replay.stats import read_stats
from redis_replay.types import BufferStats

_ANY_RUN: Final = Keyspace("-", "-")
_ANSWER_SECONDS: Final = 0.5
"""Time for the last attempt's own error, which says more than that there was no answer."""
_CONFIGURED: Final = ("appendonly", "appendfsync", "save", "maxmemory-policy", "maxmemory")


@dataclass(frozen=True)
class ServerSurvey:
    """A server by its own words; ``None`` where it would not say.

    Attributes:
        address: Without a password.
        engine: ``"redis"`` or ``"valkey"``.
        persistence: What survives its death, as a phrase.
        keeps_data: Whether anything does.
        eviction_policy: What it does when memory is full.
        used_memory_bytes: Memory in use.
        uptime_seconds: Time since it started.
    """

    address: str
    engine: str | None = None
    version: str | None = None
    persistence: str | None = None
    keeps_data: bool | None = None
    eviction_policy: str | None = None
    used_memory_bytes: int | None = None
    uptime_seconds: int | None = None


@dataclass(frozen=True)
class OwnerSurvey:
    """An attached session.

    Attributes:
        heartbeats: How often its heartbeat was counted up since it attached.
        host: Host name and process id.
        reserved: Groups it generates.
        claimed: Groups it trains on.
    """

    owner: str
    role: str
    epoch: int
    lease_seconds: float
    heartbeats: int
    world: int
    host: str
    reserved: int
    claimed: int


@dataclass(frozen=True)
class RunSurvey:
    """A run as it is now.

    Attributes:
        policy: Name of the bound sampler policy, ``None`` before a sampler was used.
        windows: The policy's settings.
        tickets: Reserved groups without an owner, waiting for redispatch.
        ended_sessions: Sessions that are over and whose groups are being given back.
    """

    run: str
    partition: str
    lineage: str
    store_epoch: int
    seq: int
    settings: RunSettings
    policy: str | None
    windows: Mapping[str, Any]
    stats: BufferStats
    tickets: int
    ended_sessions: int
    owners: tuple[OwnerSurvey, ...]


@asynccontextmanager
async def open_gateway(target: Target, keyspace: Keyspace = _ANY_RUN) -> AsyncGenerator[Gateway]:
    """Open connections for reading, with the command line's short deadline."""
    gateway = Gateway(target, keyspace, deadline_seconds=DEADLINE_SECONDS)
    try:
        yield gateway
    finally:
        await gateway.close()


@contextmanager
def readable_records(keyspace: Keyspace) -> Generator[None]:
    """Turn a record that is not what it must be into an error that says so.

    Raises:
        StoreCorrupted: reading in the block met such a record.
    """
    try:
        yield
    except (ValueError, KeyError, TypeError) as broken:
        raise StoreCorrupted(
            f"run {keyspace.run!r}, partition {keyspace.partition!r} has a record that cannot be "
            f"read: {type(broken).__name__}: {broken}"
        ) from broken


async def survey_server(target: Target) -> ServerSurvey:
    """Ask a server about itself; also the first contact, so it ends by the deadline.

    Raises:
        StoreUnavailable: it does not answer in time.
        StoreError: it refuses.
    """
    with anyio.move_on_after(DEADLINE_SECONDS + _ANSWER_SECONDS):
        async with open_gateway(target) as gateway:
            await gateway.pipeline([("PING",)])
            info = await _ask_info(gateway)
            configured = await _ask_config(gateway)
            return _describe(target.address, info, configured)
    raise StoreUnavailable(f"{target.address} did not answer within {DEADLINE_SECONDS:g} s")


async def _ask_info(gateway: Gateway) -> dict[str, str]:
    try:
        sections = ("server", "memory")
        replies: list[Any] = await gateway.pipeline([("INFO", name) for name in sections])
    except StoreRefused:
        return {}
    return {str(name): str(value) for reply in replies for name, value in reply.items()}


async def _ask_config(gateway: Gateway) -> dict[str, str]:
    try:
        [reply] = await gateway.pipeline([("CONFIG", "GET", *_CONFIGURED)])
    except StoreRefused:
        return {}
    texts = [text.decode("utf-8", "replace") for text in reply]
    return dict(zip(texts[::2], texts[1::2], strict=True))


def _describe(address: str, info: Mapping[str, str], configured: Mapping[str, str]) -> ServerSurvey:
    valkey = info.get("valkey_version")
    persistence, keeps_data = _persistence(configured)
    return ServerSurvey(
        address=address,
        engine=("valkey" if valkey else "redis") if info else None,
        version=valkey or info.get("redis_version"),
        persistence=persistence,
        keeps_data=keeps_data,
        eviction_policy=configured.get("maxmemory-policy"),
        used_memory_bytes=_whole(info.get("used_memory")),
        uptime_seconds=_whole(info.get("uptime_in_seconds")),
    )


def _persistence(configured: Mapping[str, str]) -> tuple[str | None, bool | None]:
    if not configured:
        return None, None
    if configured.get("appendonly") == "yes":
        return f"append-only file, fsync {configured.get('appendfsync', '?')}", True
    if configured.get("save"):
        return f"snapshots only ({configured['save']})", True
    return "nothing is kept: a restart loses all runs", False


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


async def survey_run(target: Target, keyspace: Keyspace) -> RunSurvey:
    """Read a run. Pure reads, each of one instant.

    Raises:
        StoreMissing: it is not there.
        SchemaMismatch: another version of this package wrote it.
        StoreCorrupted: a record cannot be read.
    """
    async with open_gateway(target, keyspace) as gateway:
        with readable_records(keyspace):
            opened = await open_run(gateway, RunSettings(), create=False)
            stats = await read_stats(gateway)
            control = keyspace.control
            [policy, windows, seq], owners, tickets, ended = await gateway.pipeline(
                [
                    ("HMGET", control(Key.META), "policy", "windows", "seq"),
                    ("HGETALL", control(Key.OWNERS)),
                    ("ZCARD", control(Key.TICKETS)),
                    ("HLEN", control(Key.LOST)),
                ],
                atomic=True,
            )
            return RunSurvey(
                run=keyspace.run,
                partition=keyspace.partition,
                lineage=opened.lineage,
                store_epoch=opened.store_epoch,
                seq=int(seq),
                settings=opened.settings,
                policy=policy.decode() if policy else None,
                windows=json.loads(windows) if windows else {},
                stats=stats,
                tickets=tickets,
                ended_sessions=ended,
                owners=await _survey_owners(gateway, owners),
            )


async def _survey_owners(
    gateway: Gateway, stored: Mapping[bytes, bytes]
) -> tuple[OwnerSurvey, ...]:
    control = gateway.keyspace.control
    records = {name.decode(): OwnerRecord.parse(record) for name, record in stored.items()}
    counts = await gateway.pipeline(
        [
            ("ZCOUNT", control(key), record.epoch, record.epoch)
            for record in records.values()
            for key in (Key.RESERVED_BY_OWNER, Key.CLAIMED_BY_OWNER)
        ],
        atomic=True,
    )
    held = iter(counts)
    owners = [
        OwnerSurvey(
            owner=name,
            role=record.role,
            epoch=record.epoch,
            lease_seconds=record.lease_seconds,
            heartbeats=record.heartbeat,
            world=record.world,
            host=decode_name(record.host),
            reserved=next(held),
            claimed=next(held),
        )
        for name, record in records.items()
    ]
    return tuple(sorted(owners, key=lambda owner: (owner.role, owner.owner)))
