"""Live counts, totals and slots of a run, read in one instant without a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis_replay._redis.gateway import Reads
from redis_replay._redis.keys import Key
from redis_replay._redis.records import OwnerRecord, SlotRecord
from redis_replay.errors import StoreCorrupted, StoreMissing
from redis_replay.groups import read_records
from redis_replay.types import BufferStats, SlotView

_STATES: Final = (Key.RESERVED, Key.READY, Key.CLAIMED, Key.QUARANTINED)
_META: Final = ("capacity", "dispatch_index", "trainer_version", "gate_window")


async def read_stats(reads: Reads) -> BufferStats:
    """Read all counts of a run. Atomic; a pure read.

    Raises:
        StoreMissing: the run is not there.
        StoreCorrupted: a count is no number; `redis-replay audit` says which.
    """
    control = reads.keyspace.control
    replies = await reads.pipeline(
        [
            *[("ZCARD", control(key)) for key in _STATES],
            ("HMGET", control(Key.META), *_META),
            ("HGETALL", control(Key.COUNTERS)),
            ("HGETALL", control(Key.ENDS)),
        ],
        atomic=True,
    )
    if replies[4][0] is None:
        raise StoreMissing(f"run {reads.keyspace.run!r} is not on {reads.target.address}")
    try:
        return _counted(replies)
    except ValueError as broken:
        raise StoreCorrupted(
            f"run {reads.keyspace.run!r} has a count that cannot be read: {broken}; "
            "'redis-replay audit' says which"
        ) from broken


def _counted(replies: Sequence[Any]) -> BufferStats:
    live = dict(zip(_STATES, replies, strict=False))
    capacity, cursor, version, window = replies[4]
    totals = _numbers(replies[5])
    return BufferStats(
        reserved=live[Key.RESERVED],
        ready=live[Key.READY],
        claimed=live[Key.CLAIMED],
        quarantined=live[Key.QUARANTINED],
        capacity=int(capacity),
        payload_bytes=totals.get("payload_bytes", 0),
        reserved_total=totals.get("reserved_total", 0),
        trained=totals.get("trained", 0),
        filtered=totals.get("filtered", 0),
        evicted=totals.get("evicted", 0),
        aborted=totals.get("aborted", 0),
        removed=totals.get("removed", 0),
        requeued=totals.get("requeued_total", 0),
        dispatch_index=int(cursor),
        trainer_version=int(version),
        gate_window=int(window) if window else None,
        ends=_numbers(replies[6]),
    )


async def read_slots(reads: Reads) -> list[SlotView]:
    """Return a view of every live slot in buffer order. Atomic; a pure read; O(live slots)."""
    control = reads.keyspace.control
    stored, owners = await reads.pipeline(
        [("HGETALL", control(Key.SLOTS)), ("HGETALL", control(Key.OWNERS))], atomic=True
    )
    names = {OwnerRecord.parse(r).epoch: name.decode() for name, r in owners.items()}
    found = [SlotRecord.parse(group_id, record) for group_id, record in stored.items()]
    return [slot.view(names) for slot in sorted(found, key=lambda slot: slot.order)]


async def read_held(reads: Reads, by_owner: Key, epoch: int) -> list[SlotRecord]:
    """Return the slots that a session holds, in buffer order. A pure read.

    Args:
        reads: Of the run, or of the session.
        by_owner: `Key.RESERVED_BY_OWNER` or `Key.CLAIMED_BY_OWNER`.
        epoch: The session's.
    """
    control = reads.keyspace.control
    [members] = await reads.pipeline([("ZRANGEBYSCORE", control(by_owner), epoch, epoch)])
    ids = [member.partition(b":")[2] for member in members]
    if not ids:
        return []
    [stored] = await reads.pipeline([("HMGET", control(Key.SLOTS), *ids)])
    slots = [SlotRecord.parse(i, r) for i, r in zip(ids, stored, strict=True) if r is not None]
    return [slot for slot in slots if slot.epoch == epoch]


async def read_named(reads: Reads, group_ids: Sequence[str]) -> list[SlotRecord | None]:
    """Return the slots of groups in the order given, ``None`` where one is not live. Pure."""
    if not group_ids:
        return []
    [stored] = await reads.pipeline([("HMGET", reads.keyspace.control(Key.SLOTS), *group_ids)])
    return [
        None if text is None else SlotRecord.parse(group_id.encode(), text)
        for group_id, text in zip(group_ids, stored, strict=True)
    ]


async def read_rewards(
    reads: Reads, group_ids: Sequence[str], *, waiting: Sequence[SlotRecord] = ()
) -> list[tuple[float, ...] | None]:
    """Return the rewards of groups in the order given, ``None`` where there are none. Pure.

    Groups that are ``waiting`` for their caller are looked up as they were.
    """
    known: list[tuple[str, int]] = []
    for slot in [*await read_named(reads, group_ids), *waiting]:
        if slot is not None and slot.payload_fence is not None:
            known.append((slot.group_id, slot.payload_fence))
    found = {record.group_id: record.rewards for record in await read_records(reads, known)}
    return [found.get(group_id) for group_id in group_ids]


def _numbers(stored: Mapping[bytes, bytes]) -> dict[str, int]:
    return {name.decode(): int(text) for name, text in stored.items()}
