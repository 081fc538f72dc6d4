"""The audit: every invariant of a run's keyspace, checked on one instant's copy.

The control plane is read in one transaction, so no mutation falls between; payload lengths are read
after it and a group that moved on meanwhile is looked at again. A pure read. Cost: proportional to
the live groups.

====  ==========================================================================================
 1    each live slot is listed in exactly the sorted sets of its state, with the right scores
 2    conservation: reserved_total = reserved + ready + claimed + quarantined + the five ends
 3    capacity: reserved + ready + claimed is at most the capacity
 4    fences and orders are below the run's counters; no two slots share an order
 5    every claimed slot of a live session is in its batch's manifest; each manifest has a claim
 6    slots with a holder name an epoch that is attached or still being drained
 7    every committed slot has its record and all its payload bytes; payload_bytes adds up
 8    the ledger of ends adds up to the totals
 9    the dispatch cursor covers every target step that was admitted and is live
10    prompts and records belong to live slots (or wait for collection, or are read to the end)
11    step accounts and the reward tally are well formed; only what is carried may be negative
12    control record, owners, manifests, ledger and totals are readable
13    what is dead, pinned, condemned or selected for good is not live and in one of these; what is
      pinned is in a checkpoint
====  ==========================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key, group_field
from redis_replay._redis.records import (
    CheckpointRecord,
    OwnerRecord,
    SlotRecord,
    unpack_items,
)
from redis_replay.errors import PayloadCorrupted, StoreCorrupted, StoreMissing
from redis_replay.group_record import unpack_record
from redis_replay.selected import parse_selected
from redis_replay.transitions import ENDS
from redis_replay.types import GroupState

_HASHES: Final = (
    *(Key.META, Key.SLOTS, Key.PROMPTS, Key.GROUPS, Key.OWNERS, Key.LOST, Key.BATCHES),
    *(Key.COUNTERS, Key.ENDS, Key.ADMISSIONS, Key.STEPS, Key.TALLY, Key.CHECKPOINTS),
    Key.SELECTED,
)
_SETS: Final = (
    *(Key.RESERVED, Key.READY, Key.CLAIMED, Key.QUARANTINED, Key.RESERVED_BY_STEP),
    *(Key.READY_BY_STEP, Key.CLAIMED_BY_STEP, Key.READY_BY_ORDER, Key.RESERVED_BY_OWNER),
    *(Key.CLAIMED_BY_OWNER, Key.TICKETS, Key.DEAD, Key.PINNED, Key.CONDEMNED),
)
_FREED: Final = (Key.DEAD, Key.PINNED, Key.CONDEMNED)
_WHOLE: Final = re.compile(rb"-?\d+")
_UNREADABLE: Final = -1
"""Stands for a total that is no number, so that nothing adds up to it."""
_SLICE: Final = 500
_STEP_ACCOUNT: Final = re.compile(
    rb"\d+:(lost|replaced|borrowed|lent) \d+|carry:(lost|replaced) -?\d+"
)
_NUMBER: Final = rb" -?\d+(\.\d+)?(e[+-]\d+)?"
_TALLY: Final = re.compile(rb"\d+ \d+ \d+" + _NUMBER + rb" \d+" + _NUMBER + rb" \d+")


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: its number in the module's table and what was found."""

    invariant: int
    message: str


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What the audit found.

    Attributes:
        live: Live groups by state.
        ends: Ended groups by end.
    """

    groups_checked: int
    violations: tuple[Violation, ...]
    live: Mapping[str, int] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations


@dataclass(frozen=True)
class ControlCopy:
    """The control plane of one instant.

    Attributes:
        unreadable: Slots that are no records; ``slots`` leaves them out.
    """

    hashes: Mapping[Key, Mapping[bytes, bytes]]
    sets: Mapping[Key, Mapping[str, float]]
    slots: Sequence[SlotRecord]
    unreadable: tuple[Violation, ...]

    def number(self, name: str) -> int:
        """Return a whole number of the control record."""
        return int(self.hashes[Key.META][name.encode()])

    def total(self, name: str) -> int:
        """Return a total, 0 before the first."""
        text = self.hashes[Key.COUNTERS].get(name.encode(), b"0")
        return int(text) if _WHOLE.fullmatch(text) else _UNREADABLE


async def audit_run(gateway: Gateway) -> AuditReport:
    """Check a run.

    Raises:
        StoreMissing: the run is not there.
        StoreError: the server cannot be read.
    """
    return await audit_copy(gateway, await read_copy(gateway))


async def audit_copy(gateway: Gateway, copy: ControlCopy) -> AuditReport:
    """Check a copy, and that the payload it speaks of is there; `audit_run`."""
    found = [
        *copy.unreadable,
        *_check_indexes(copy),
        *_readable(_check_totals, copy),
        *_readable(_check_numbers, copy),
        *_readable(_check_claims, copy),
        *_readable(_check_records, copy),
        *_check_accounts(copy),
        *await _check_payloads(gateway, copy),
        *await _check_pins(gateway, copy),
    ]
    live = {state.value: 0 for state in GroupState}
    for slot in copy.slots:
        live[slot.state.value] += 1
    ends = {name: copy.total(name) for name in ENDS}
    return AuditReport(len(copy.slots), tuple(found), live, ends)


def _readable(
    check: Callable[[ControlCopy], Iterator[Violation]], copy: ControlCopy
) -> Iterator[Violation]:
    try:
        yield from check(copy)
    except (KeyError, ValueError, StoreCorrupted) as broken:
        yield Violation(12, f"a record is damaged or absent, so not all was checked: {broken!r}")


async def read_copy(gateway: Gateway) -> ControlCopy:
    """Read the control plane. Atomic; a pure read; its cost grows with the live groups.

    Raises:
        StoreMissing: the run is not there.
    """
    control = gateway.keyspace.control
    replies: list[Any] = await gateway.pipeline(
        [
            *[("HGETALL", control(key)) for key in _HASHES],
            *[("ZRANGE", control(key), 0, -1, "WITHSCORES") for key in _SETS],
        ],
        atomic=True,
    )
    hashes = dict(zip(_HASHES, replies[: len(_HASHES)], strict=True))
    if not hashes[Key.META]:
        raise StoreMissing(f"run {gateway.keyspace.run!r} is not on {gateway.target.address}")
    sets: dict[Key, dict[str, float]] = {}
    for key, listed in zip(_SETS, replies[len(_HASHES) :], strict=True):
        flat = (
            [item for pair in listed for item in pair]
            if listed[:1] and isinstance(listed[0], tuple | list)
            else listed
        )
        sets[key] = {m.decode(): float(s) for m, s in zip(flat[::2], flat[1::2], strict=True)}
    slots: list[SlotRecord] = []
    unreadable: list[Violation] = []
    for group_id, record in hashes[Key.SLOTS].items():
        try:
            slots.append(SlotRecord.parse(group_id, record))
        except StoreCorrupted as broken:
            unreadable.append(Violation(1, str(broken)))
    return ControlCopy(hashes, sets, slots, tuple(unreadable))


def expected_entries(slot: SlotRecord) -> dict[Key, int]:
    """Return the sorted sets that must list a slot, with the scores, as ``listing.lua`` does."""
    state = slot.state.value
    entries = {Key(state): slot.start}
    if slot.state is GroupState.QUARANTINED:
        return entries
    if slot.target is not None:
        entries[Key(f"{state}_by_step")] = slot.target
    if slot.state is GroupState.READY:
        entries[Key.READY_BY_ORDER] = slot.order
    elif slot.epoch is not None:
        entries[Key(f"{state}_by_owner")] = slot.epoch
    elif slot.state is GroupState.RESERVED:
        entries[Key.TICKETS] = slot.order
    return entries


def _check_indexes(copy: ControlCopy) -> Iterator[Violation]:
    wanted: dict[Key, dict[str, float]] = {key: {} for key in _SETS if key not in _FREED}
    for slot in copy.slots:
        for key, score in expected_entries(slot).items():
            wanted[key][slot.member] = float(score)
    for key, members in wanted.items():
        for member in members.keys() | copy.sets[key].keys():
            have, want = copy.sets[key].get(member), members.get(member)
            if have != want:
                yield Violation(1, f"{key.value}: {member!r} has score {have}, expected {want}")


def _check_totals(copy: ControlCopy) -> Iterator[Violation]:
    ended = sum(copy.total(name) for name in ENDS)
    reserved = copy.total("reserved_total")
    if reserved != len(copy.slots) + ended:
        yield Violation(
            2, f"reserved_total {reserved} is not {len(copy.slots)} live + {ended} ended groups"
        )
    held = sum(slot.state is not GroupState.QUARANTINED for slot in copy.slots)
    if held > copy.number("capacity"):
        yield Violation(3, f"{held} groups hold places, capacity is {copy.number('capacity')}")
    by_end = dict.fromkeys(ENDS, 0)
    for entry, text in copy.hashes[Key.ENDS].items():
        end = entry.decode().partition(":")[0]
        by_end[end] = by_end.get(end, 0) + int(text)
    for end, count in by_end.items():
        if count != copy.total(end):
            yield Violation(8, f"the ledger has {count} {end} groups, the totals {copy.total(end)}")


def _check_numbers(copy: ControlCopy) -> Iterator[Violation]:
    orders: dict[int, str] = {}
    highest = -1
    for slot in copy.slots:
        if slot.order in orders:
            yield Violation(4, f"{slot.group_id!r} and {orders[slot.order]!r} share an order")
        orders[slot.order] = slot.group_id
        if slot.order > copy.number("next_order") or slot.fence > copy.number("next_fence"):
            yield Violation(4, f"{slot.group_id!r} is ahead of the run's counters")
        if slot.target is not None:
            highest = max(highest, slot.target)
    admitted = b"admitted" in copy.hashes[Key.META]
    in_order = copy.hashes[Key.META].get(b"policy") == b"in_order"
    if admitted and in_order and highest > copy.number("dispatch_index"):
        yield Violation(
            9, f"target step {highest} is live, the cursor is {copy.number('dispatch_index')}"
        )


def _check_claims(copy: ControlCopy) -> Iterator[Violation]:
    manifests: dict[int, set[str]] = {}
    for number, packed in copy.hashes[Key.BATCHES].items():
        entries = unpack_items(packed)[3:]
        manifests[int(number)] = {entry.partition(b":")[2].decode() for entry in entries}
    holders = {OwnerRecord.parse(record).epoch for record in copy.hashes[Key.OWNERS].values()}
    lost = {int(epoch) for epoch in copy.hashes[Key.LOST]}  # drained slice by slice
    claimed: set[int] = set()
    for slot in copy.slots:
        if slot.epoch is not None and slot.epoch not in holders | lost:
            yield Violation(6, f"{slot.group_id!r} is held by epoch {slot.epoch}, which is nobody")
        if slot.state is GroupState.CLAIMED:
            claimed.add(slot.batch or 0)
            if slot.epoch not in lost and slot.group_id not in manifests.get(slot.batch or 0, ()):
                yield Violation(5, f"{slot.group_id!r} is missing in batch {slot.batch}")
    for number, packed in copy.hashes[Key.SELECTED].items():
        epoch = int(unpack_items(packed)[0])
        if epoch not in holders:
            yield Violation(6, f"selection {number!r} is read by epoch {epoch}, which is nobody")
    for orphaned in manifests.keys() - claimed:
        yield Violation(5, f"batch {orphaned} has a manifest and no claimed group")


def _check_records(copy: ControlCopy) -> Iterator[Violation]:
    live = {slot.group_id for slot in copy.slots}
    for group_id in copy.hashes[Key.PROMPTS]:
        if group_id.decode() not in live:
            yield Violation(10, f"a prompt is kept for {group_id!r}, which is not live")
    committed = {
        group_field(slot.group_id, slot.payload_fence)
        for slot in copy.slots
        if slot.payload_fence is not None
    }
    read = {
        group_field(slot.group_id, slot.payload_fence or 0)
        for batch in parse_selected(copy.hashes[Key.SELECTED]).values()
        for slot in batch
    }
    freed = {name for key in _FREED for name in copy.sets[key]}
    for name in map(bytes.decode, copy.hashes[Key.GROUPS]):
        if name not in committed | read | freed:
            yield Violation(10, f"record {name!r} belongs to no live group and is not to be freed")
    for name in sorted(read & (committed | freed)):
        yield Violation(13, f"{name!r} is selected for good, and live or to be freed")
    for name in sorted(read - set(map(bytes.decode, copy.hashes[Key.GROUPS]))):
        yield Violation(7, f"the record of {name!r} is missing")
    for name in committed:
        if name.encode() not in copy.hashes[Key.GROUPS]:
            yield Violation(7, f"the record of {name!r} is missing")
        for key in _FREED:
            if name in copy.sets[key]:
                yield Violation(13, f"{name!r} is live and {key.value}")


def _check_accounts(copy: ControlCopy) -> Iterator[Violation]:
    for name, text in copy.hashes[Key.STEPS].items():
        if not _STEP_ACCOUNT.fullmatch(name + b" " + text):
            yield Violation(11, f"the account of steps {name!r} is {text!r}")
    for step, packed in copy.hashes[Key.TALLY].items():
        if not _TALLY.fullmatch(step + b" " + packed):
            yield Violation(11, f"the tally of step {step!r} is {packed!r}")


async def _check_payloads(gateway: Gateway, copy: ControlCopy) -> list[Violation]:
    found: list[Violation] = []
    committed = [slot for slot in copy.slots if slot.payload_fence is not None]
    total = sum(slot.payload_bytes or 0 for slot in committed)
    if total != copy.total("payload_bytes"):
        found.append(
            Violation(7, f"payload_bytes is {copy.total('payload_bytes')}, the groups have {total}")
        )
    for at in range(0, len(committed), _SLICE):
        for slot in await _torn(gateway, copy, committed[at : at + _SLICE]):
            key = gateway.keyspace.control(Key.SLOTS)
            [now] = await gateway.pipeline([("HGET", key, slot.group_id)])
            if now is not None and SlotRecord.parse(b"", now).payload_fence == slot.payload_fence:
                found.append(
                    Violation(7, f"the payload of {slot.group_id!r} does not have all its bytes")
                )
    return found


async def _check_pins(gateway: Gateway, copy: ControlCopy) -> list[Violation]:
    try:
        records = [
            CheckpointRecord.parse(name.decode(), packed)
            for name, packed in copy.hashes[Key.CHECKPOINTS].items()
        ]
    except StoreCorrupted as broken:
        return [Violation(13, str(broken))]
    found: list[Violation] = []
    for entry in copy.sets[Key.PINNED]:
        fence, _, group_id = entry.partition(":")
        kept = await gateway.pipeline(
            [
                *(
                    ("HGET", gateway.keyspace.saved(record.saved_id, Key.SLOTS), group_id)
                    for record in records
                ),
                ("ZSCORE", gateway.keyspace.control(Key.PINNED), entry),
            ]
        )
        refers = any(packed and packed.split(b" ")[6:7] == [fence.encode()] for packed in kept[:-1])
        if not refers and kept[-1] is not None:
            found.append(Violation(13, f"{entry!r} is pinned and in no checkpoint"))
    return found


async def _torn(
    gateway: Gateway, copy: ControlCopy, slots: Sequence[SlotRecord]
) -> list[SlotRecord]:
    """Return the slots whose payload is not whole, asking for all lengths in one round trip."""
    torn: list[SlotRecord] = []
    wanted: list[tuple[SlotRecord, list[str]]] = []
    for slot in slots:
        fence = slot.payload_fence or 0
        blob = copy.hashes[Key.GROUPS].get(group_field(slot.group_id, fence).encode())
        if blob is None:
            continue  # the missing record is a finding of its own
        try:
            record = unpack_record(slot.group_id, blob)
        except PayloadCorrupted:
            torn.append(slot)
            continue
        if record.payload_bytes == slot.payload_bytes:
            wanted.append((slot, list(record.payload_keys(gateway.keyspace, fence))))
        else:
            torn.append(slot)
    lengths = iter(
        await gateway.ask_payload([("STRLEN", key) for _, keys in wanted for key in keys])
    )
    for slot, keys in wanted:
        if sum(next(lengths) for _ in keys) != slot.payload_bytes:
            torn.append(slot)
    return torn
