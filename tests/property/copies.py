"""What is read of a run in one transaction: compared between servers and with the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_replay._redis.keys import Key
from redis_replay._redis.records import OwnerRecord, SlotRecord, unpack_items
from redis_replay.audit import ControlCopy
from redis_replay.tally import parse_stats
from tests.property.accounts import NEVER_DRAINED
from tests.property.sides import TOTALS, View

Content = dict[str, Any]

CONTROL = ("dispatch_index", "trainer_version", "gate_window", "loader_revision")

_OWN_TO_A_SERVER = (b"lineage", b"created")


def content_of(copy: ControlCopy) -> Content:
    """Return a whole copy, but for what no two runs have in common."""
    hashes = {key.value: dict(hash_) for key, hash_ in copy.hashes.items()}
    for name in _OWN_TO_A_SERVER:
        hashes["meta"].pop(name, None)
    hashes["owners"] = {name: _beatless(record) for name, record in hashes["owners"].items()}
    return hashes | {key.value: dict(members) for key, members in copy.sets.items()}


def _beatless(record: bytes) -> Any:
    owner = OwnerRecord.parse(record)
    return (owner.epoch, owner.role, owner.world, owner.lease_seconds)


def view_of(copy: ControlCopy) -> View:
    """Return what the model says of a run too, read from the records."""
    names = {OwnerRecord.parse(r).epoch: n.decode() for n, r in copy.hashes[Key.OWNERS].items()}
    meta, totals = copy.hashes[Key.META], copy.hashes[Key.COUNTERS]
    return {
        "slots": [_slot(slot, names) for slot in sorted(copy.slots, key=lambda slot: slot.order)],
        "selected": _selected(copy.hashes[Key.SELECTED], names),
        "payload_bytes": _number(totals, "payload_bytes"),
        "totals": {"reserved": _number(totals, "reserved_total")}
        | {name: _number(totals, name) + _number(totals, f"{name}_total") for name in TOTALS},
        "ends": {name.decode(): int(count) for name, count in copy.hashes[Key.ENDS].items()},
        "control": tuple(_number(meta, name) for name in CONTROL),
        "admissions": {
            int(index): holder.partition(b" ")[2].decode()
            for index, holder in copy.hashes[Key.ADMISSIONS].items()
        },
        **_accounts(copy.hashes[Key.STEPS]),
        "tally": {int(s): parse_stats(p.decode()) for s, p in copy.hashes[Key.TALLY].items()},
        "drained": int(meta.get(b"drained_step", NEVER_DRAINED)),
    }


def _slot(slot: SlotRecord, names: Mapping[int, str]) -> View:
    return {
        "group_id": slot.group_id,
        "state": slot.state.value,
        "start": slot.start,
        "end": slot.finish,
        "target": slot.target,
        "owner": None if slot.epoch is None else names.get(slot.epoch),
        "attempt": slot.attempt,
        "requeues": slot.requeues,
        "claimed": slot.batch is not None,
        "committed": slot.payload_fence is not None,
        "written": slot.written is not None,
        "dispatch": slot.dispatch,
        "replacement": slot.replacement,
    }


def _selected(stored: Mapping[bytes, bytes], names: Mapping[int, str]) -> list[Any]:
    """Return who reads each selection for good, and its groups as they were, in order."""
    found: list[Any] = []
    for number in sorted(stored, key=int):
        epoch, *items = unpack_items(stored[number])
        slots = SlotRecord.parse_pairs(items)
        found.append((names.get(int(epoch)), [_slot(slot, names) for slot in slots]))
    return found


def _accounts(steps: Mapping[bytes, bytes]) -> View:
    batches: dict[tuple[int, str], int] = {}
    carry = {"lost": 0, "replaced": 0}
    for name, count in steps.items():
        batch, _, what = name.decode().partition(":")
        if batch == "carry":
            carry[what] = int(count)
        elif int(count):
            batches[int(batch), what] = int(count)
    return {"batches": batches, "carry": carry["lost"] - carry["replaced"]}


def _number(fields: Mapping[bytes, bytes], name: str) -> int:
    return int(fields.get(name.encode(), b"0"))
