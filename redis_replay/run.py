"""Opening a run: its settings, written once, and what may differ when it is opened again.

The stored record is the truth. A difference is either applied and reported (capacity, when
everything fits) or refused with what differs by name; nothing is ever changed silently (D23).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from redis_replay._redis.gateway import Gateway
from redis_replay._redis.lua import Argument
from redis_replay._redis.records import CONTROL_FIELDS, ControlRecord
from redis_replay._redis.refusals import Refusal, accept
from redis_replay._redis.run_scripts import Migrate, OpenRun, Resize, SetDataset
from redis_replay.errors import (
    ConfigurationError,
    RunMismatch,
    SchemaMismatch,
    StoreCorrupted,
    StoreMissing,
)
from redis_replay.stats import read_stats

SCHEMA: Final = 2
_MOST_DATASET_BYTES: Final = 1024
_YEAR_2025: Final = 1_735_689_600
"""Seconds of the system's clock at its beginning."""

DEFAULT_MAX_ATTEMPTS: Final = 5
DEFAULT_MAX_REQUEUES: Final = 5
DEFAULT_JOURNAL_EVENTS: Final = 100_000

NEEDED_FIELDS: Final = frozenset(
    {
        *(*CONTROL_FIELDS, "schema", "min_writer", "lineage", "store_epoch", "loader_revision"),
        *("next_order", "next_fence", "capacity", "group_size", "journal_events"),
        *("max_attempts", "max_requeues"),
    }
)
"""Without one of these a script could fail between its writes."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What a run is opened with; ``None`` means as stored (or, for a new run, the default).

    Attributes:
        capacity: Most groups that are reserved, ready or claimed at once.
        group_size: Samples in each group.
        groups_per_step: Groups in one training batch, for the sampler's capacity requirement.
        max_payload_bytes: Payload bytes at which reserving and admitting stop.
        max_attempts: Generation attempts before a group is quarantined.
        max_requeues: Training requeues after failures before a group is quarantined.
        journal_events: Entries that the event journal keeps.
    """

    capacity: int | None = None
    group_size: int | None = None
    groups_per_step: int | None = None
    max_payload_bytes: int | None = None
    max_attempts: int | None = None
    max_requeues: int | None = None
    journal_events: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """A run as it is in force after opening.

    Attributes:
        created: Whether this call created it.
        changes: Differences that were applied, as sentences; also logged.
    """

    lineage: str
    store_epoch: int
    settings: RunSettings
    created: bool
    changes: tuple[str, ...] = ()

    @property
    def frame(self) -> tuple[Argument, ...]:
        """The arguments that every call about this run carries."""
        return (SCHEMA, self.lineage, self.store_epoch)


async def open_run(
    gateway: Gateway,
    asked: RunSettings,
    *,
    create: bool,
    dataset: str | None = None,
    new_dataset: bool = False,
) -> OpenedRun:
    """Create the run, or read it and compare it with what is asked.

    Raises:
        StoreMissing: it is not there and ``create`` is false.
        ConfigurationError: it is new and lacks a setting.
        RunMismatch: it exists with settings that cannot be changed to those asked.
        SchemaMismatch: another version of this package wrote it and this one may not.
        StoreCorrupted: its control record is not whole.
    """
    reply = await gateway.call(OpenRun(create=0, settings=()))
    if isinstance(reply, Refusal):
        if not create:
            raise StoreMissing(
                f"run {gateway.keyspace.run!r}, partition {gateway.keyspace.partition!r} is not on "
                f"{gateway.target.address}"
            )
        record = _new_record(gateway, asked, first_fence=await first_fence(gateway))
        reply = await gateway.call(OpenRun(create=1, settings=record))
    if isinstance(reply, Refusal):
        raise reply.error
    created, stored = reply
    absent = sorted(NEEDED_FIELDS - stored.keys())
    if absent:
        raise StoreCorrupted(
            f"the control record of run {gateway.keyspace.run!r} lacks {absent}; nothing was "
            "written. Restore it from a backup, or choose another run name."
        )
    control = ControlRecord.parse([stored[name] for name in CONTROL_FIELDS])
    if control is not None:
        gateway.observe(control)
    _check_schema(stored)
    if int(stored["schema"]) < SCHEMA:
        await _migrate(gateway, stored)
    settings = stored_settings(stored)
    opened = OpenedRun(
        lineage=stored["lineage"].decode(),
        store_epoch=int(stored["store_epoch"]),
        settings=settings,
        created=created,
    )
    if not created:
        opened = await _reconcile(gateway, opened, asked)
    if dataset is None or stored.get("dataset") == dataset.encode():
        return opened
    older = stored.get("dataset", b"").decode()
    return await _set_dataset(gateway, opened, dataset, older=older, may_change=new_dataset)


async def _set_dataset(
    gateway: Gateway, opened: OpenedRun, dataset: str, *, older: str, may_change: bool
) -> OpenedRun:
    if not 1 <= len(dataset.encode()) <= _MOST_DATASET_BYTES:
        raise ValueError(
            f"dataset must be 1 to {_MOST_DATASET_BYTES} UTF-8 bytes, got {dataset[:80]!r}"
        )
    if older and not may_change:
        raise RunMismatch(
            f"the loader of run {gateway.keyspace.run!r} stands in the dataset {older!r}, asked is "
            f"{dataset!r}. Open it with the stored one, or pass new_dataset=True: the "
            "loader then starts anew, and buffered groups are kept."
        )
    reply = await gateway.call(SetDataset(dataset, older), opened.frame)
    accept(reply)
    if not older:
        return opened
    stats = await read_stats(gateway)
    change = (
        f"dataset changed from {older!r} to {dataset!r}: the loader starts anew, "
        f"{stats.occupancy} buffered groups of the older one are kept"
    )
    _LOG.warning("run %r: %s", gateway.keyspace.run, change)
    return replace(opened, changes=(*opened.changes, change))


async def first_fence(gateway: Gateway) -> int:
    """Return what all fences of a new run are above: the server's clock (D104)."""
    [(seconds, microseconds)] = await gateway.pipeline([("TIME",)])
    return max(0, (int(seconds) - _YEAR_2025) * 10_000 + int(microseconds) // 100)


def _new_record(gateway: Gateway, asked: RunSettings, *, first_fence: int) -> tuple[str, ...]:
    for name in ("capacity", "group_size"):
        if getattr(asked, name) is None:
            raise ConfigurationError(
                f"run {gateway.keyspace.run!r} is new on {gateway.target.address}, so "
                f"{name} must be given"
            )
    record: dict[str, object] = {
        "schema": SCHEMA,
        "min_reader": SCHEMA,
        "min_writer": SCHEMA,
        "lineage": secrets.token_hex(8),
        "store_epoch": 1,
        "seq": 0,
        "dispatch_index": -1,
        "trainer_version": 0,
        "gate_window": "",
        "next_order": 0,
        "next_fence": first_fence,
        "loader_revision": 0,
        "dataset": "",
        "capacity": asked.capacity,
        "group_size": asked.group_size,
        "groups_per_step": asked.groups_per_step or "",
        "max_payload_bytes": asked.max_payload_bytes or "",
        "max_attempts": asked.max_attempts or DEFAULT_MAX_ATTEMPTS,
        "max_requeues": asked.max_requeues or DEFAULT_MAX_REQUEUES,
        "journal_events": asked.journal_events or DEFAULT_JOURNAL_EVENTS,
    }
    return tuple(str(part) for item in record.items() for part in item)


def _check_schema(stored: Mapping[str, bytes]) -> None:
    schema, least = int(stored["schema"]), int(stored["min_writer"])
    if least > SCHEMA:
        raise SchemaMismatch(
            f"the run has schema {schema} and needs a writer of schema {least} or newer; "
            f"this package writes schema {SCHEMA}. Install a newer redis-replay."
        )


async def _migrate(gateway: Gateway, stored: Mapping[str, bytes]) -> None:
    schema, lineage = int(stored["schema"]), stored["lineage"].decode()
    frame = (SCHEMA, lineage, int(stored["store_epoch"]))
    reply = await gateway.call(Migrate(from_schema=schema), frame)
    accept(reply)
    _LOG.warning("run %r: schema %d was brought up to %d", gateway.keyspace.run, schema, SCHEMA)


def stored_settings(stored: Mapping[str, bytes]) -> RunSettings:
    """Return the settings that a control record holds."""
    numbers = {name: stored.get(name, b"") for name in RunSettings.__slots__}
    return RunSettings(**{name: int(text) if text else None for name, text in numbers.items()})


_FIXED: Final = ("group_size", "groups_per_step", "max_attempts", "max_requeues", "journal_events")


async def _reconcile(gateway: Gateway, opened: OpenedRun, asked: RunSettings) -> OpenedRun:
    stored = opened.settings
    refused = [
        f"{name}: stored {getattr(stored, name)}, asked {getattr(asked, name)}"
        for name in _FIXED
        if getattr(asked, name) not in (None, getattr(stored, name))
    ]
    if refused:
        raise RunMismatch(
            f"run {gateway.keyspace.run!r} exists with other settings ({'; '.join(refused)}). "
            "Open it with the stored ones, leave them out, or choose another run name."
        )
    wanted = {
        name: getattr(asked, name) if getattr(asked, name) is not None else getattr(stored, name)
        for name in ("capacity", "max_payload_bytes")
    }
    changes = tuple(
        f"{name} changed from {getattr(stored, name)} to {value}"
        for name, value in wanted.items()
        if value != getattr(stored, name)
    )
    if not changes:
        return opened
    capacity = wanted["capacity"]
    reply = await gateway.call(
        Resize(capacity=capacity or 0, max_payload_bytes=wanted["max_payload_bytes"]), opened.frame
    )
    if isinstance(reply, Refusal):
        if reply.code != "FULL":
            raise reply.error
        raise RunMismatch(
            f"run {gateway.keyspace.run!r} holds {reply[1]} groups, which do not fit the "
            f"capacity of {capacity} asked for (stored: {stored.capacity}). Open it with "
            f"capacity={reply[1]} or more, or remove groups first."
        )
    for change in changes:
        _LOG.warning("run %r: %s", gateway.keyspace.run, change)
    settings = RunSettings(
        **{name: getattr(stored, name) for name in RunSettings.__slots__} | wanted
    )
    return OpenedRun(opened.lineage, opened.store_epoch, settings, False, changes)
