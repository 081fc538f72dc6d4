"""Whether what a checkpoint refers to is still there, group by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key, group_field
from redis_replay._redis.records import CheckpointRecord, SlotRecord
from redis_replay.errors import ConfigurationError, PayloadCorrupted, StoreCorrupted
from redis_replay.group_record import GroupRecord, unpack_record
from redis_replay.payloads import decode_whole
from redis_replay.saved_state import SavedState, read_saved

_SLICE: Final = 256
_NEEDED: Final = frozenset({b"trainer_version", b"dispatch_index"})
"""Fields of the control record without which there is nothing to go on with."""
CUT_SHORT: Final = "its import has not ended, or never did; drop it, and import it again"
"""What is wrong with a checkpoint that is not complete."""


@dataclass(frozen=True, slots=True)
class CheckpointVerification:
    """What a restore of a checkpoint would find.

    Attributes:
        name: The checkpoint.
        problems: What is wrong with the checkpoint as a whole, as sentences.
        damaged: Finished groups that will not come back as they are: id to what is wrong.
        unfinished: Ids of groups whose generation was under way: they come back as redispatch
            tickets, not with rows.
        groups_checked: Finished groups that were looked at.
    """

    name: str
    problems: tuple[str, ...]
    damaged: Mapping[str, str] = field(default_factory=dict)
    unfinished: tuple[str, ...] = ()
    groups_checked: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether everything that was finished comes back with its rows."""
        return not self.problems and not self.damaged


async def verify_checkpoint(
    gateway: Gateway, record: CheckpointRecord, *, group_size: int | None, deep: bool
) -> CheckpointVerification:
    """Check a checkpoint; see `Checkpoints.verify`."""
    try:
        saved = await read_saved(gateway, record)
    except StoreCorrupted as broken:
        return CheckpointVerification(record.name, (str(broken),))
    problems: list[str] = []
    if record.digest and saved.digest != record.digest:
        problems.append(f"its digest is {saved.digest}, written was {record.digest}")
    expected = record.reserved + record.ready + record.claimed + record.quarantined
    if len(saved.slots) != expected:
        problems.append(f"it has {len(saved.slots)} groups, written were {expected}")
    absent = sorted(name.decode() for name in _NEEDED - saved.meta.keys())
    if absent:
        problems.append(f"its control record lacks {absent}")
    damaged = await find_damaged(gateway, saved, group_size=group_size, deep=deep)
    unfinished = tuple(slot.group_id for slot in saved.unfinished)
    return CheckpointVerification(
        record.name, tuple(problems), damaged, unfinished, len(saved.committed)
    )


async def find_damaged(
    gateway: Gateway, saved: SavedState, *, group_size: int | None, deep: bool
) -> dict[str, str]:
    """Return what is wrong with finished groups, by id. A pure read.

    Args:
        gateway: Of the run.
        saved: The checkpoint.
        group_size: Rows that each group must have, if any number.
        deep: Whether the rows are read and their checksums compared.
    """
    found: dict[str, str] = {}
    committed = saved.committed
    for at in range(0, len(committed), _SLICE):
        part = committed[at : at + _SLICE]
        known = await _records(gateway, part, found)
        lengths = await _lengths(gateway, known)
        for slot, record in known:
            if record.payload_bytes != lengths[slot.group_id]:
                found[slot.group_id] = (
                    f"its payload has {lengths[slot.group_id]} of {record.payload_bytes} bytes"
                )
            elif group_size is not None and len(record.lengths) != group_size:
                found[slot.group_id] = f"it has {len(record.lengths)} rows instead of {group_size}"
            elif deep and (wrong := await _decoded(gateway, slot, record)):
                found[slot.group_id] = wrong
    return found


async def _records(
    gateway: Gateway, slots: Sequence[SlotRecord], found: dict[str, str]
) -> list[tuple[SlotRecord, GroupRecord]]:
    key = gateway.keyspace.control(Key.GROUPS)
    fields = [group_field(slot.group_id, slot.payload_fence or 0) for slot in slots]
    [stored] = await gateway.pipeline([("HMGET", key, *fields)])
    known: list[tuple[SlotRecord, GroupRecord]] = []
    for slot, blob in zip(slots, stored, strict=True):
        try:
            if blob is None:
                raise PayloadCorrupted("its record is gone")
            known.append((slot, unpack_record(slot.group_id, blob)))
        except PayloadCorrupted as broken:
            found[slot.group_id] = str(broken)
    return known


async def _lengths(
    gateway: Gateway, known: Sequence[tuple[SlotRecord, GroupRecord]]
) -> dict[str, int]:
    keys = [
        (slot.group_id, key)
        for slot, record in known
        for key in record.payload_keys(gateway.keyspace, slot.payload_fence or 0)
    ]
    counted = await gateway.ask_payload([("STRLEN", key) for _, key in keys])
    lengths = {slot.group_id: 0 for slot, _ in known}
    for (group_id, _), length in zip(keys, counted, strict=True):
        lengths[group_id] += length
    return lengths


async def _decoded(gateway: Gateway, slot: SlotRecord, record: GroupRecord) -> str | None:
    keys = record.payload_keys(gateway.keyspace, slot.payload_fence or 0)
    chunks = await gateway.ask_payload([("GET", key) for key in keys])
    try:
        payload = b"".join(chunk or b"" for chunk in chunks)
        decode_whole(record.directory, payload, group_id=slot.group_id)
    except (PayloadCorrupted, ConfigurationError) as broken:
        return str(broken)
    return None
