"""Key names of one run and partition. The only place that spells a key.

Control keys share one hash tag, ``rr:{<run>:<partition>}:<noun>``, so they lie in one cluster slot
and one script may touch them all. Payload keys carry no tag of ours, so groups spread over a
cluster; they carry the fence of the attempt that wrote them, so that a zombie can never overwrite
newer rows (D2, D16).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")
_ENCODED = re.compile(rb"[^A-Za-z0-9_.-]")
_DECODED = re.compile(rb"%([0-9A-F]{2})")


class Key(StrEnum):
    """The control keys, by noun. Order and content: `docs/architecture.md`, keyspace."""

    META = "meta"
    SLOTS = "slots"
    PROMPTS = "prompts"
    GROUPS = "groups"
    RESERVED = "reserved"
    READY = "ready"
    CLAIMED = "claimed"
    QUARANTINED = "quarantined"
    RESERVED_BY_STEP = "reserved_by_step"
    READY_BY_STEP = "ready_by_step"
    CLAIMED_BY_STEP = "claimed_by_step"
    READY_BY_ORDER = "ready_by_order"
    RESERVED_BY_OWNER = "reserved_by_owner"
    CLAIMED_BY_OWNER = "claimed_by_owner"
    TICKETS = "tickets"
    OWNERS = "owners"
    LOST = "lost"
    SESSIONS = "sessions"
    ADMISSIONS = "admissions"
    BATCHES = "batches"
    ACKS = "acks"
    STEPS = "steps"
    TALLY = "tally"
    COUNTERS = "counters"
    ENDS = "ends"
    EVENTS = "events"
    DEAD = "dead"
    SELECTED = "selected"
    PINNED = "pinned"
    CONDEMNED = "condemned"
    CHECKPOINTS = "checkpoints"


def encode_name(name: str) -> str:
    """Percent-encode every UTF-8 byte outside ``[A-Za-z0-9_.-]``; injective and reversible."""
    if _PLAIN.fullmatch(name):
        return name
    encoded = _ENCODED.sub(lambda found: b"%%%02X" % found.group()[0], name.encode())
    return encoded.decode("ascii")


def decode_name(encoded: str) -> str:
    """Undo `encode_name`."""
    raw = _DECODED.sub(lambda found: bytes([int(found.group(1), 16)]), encoded.encode("ascii"))
    return raw.decode()


@lru_cache
def _tag(run: str, partition: str) -> str:
    return f"{encode_name(run)}:{encode_name(partition)}"


@lru_cache(maxsize=1024)
def _control(run: str, partition: str, key: Key) -> str:
    return f"rr:{{{_tag(run, partition)}}}:{key.value}"


@dataclass(frozen=True, slots=True)
class Keyspace:
    """The keys of one run and partition.

    Raises:
        ValueError: the run or partition name is empty.
    """

    run: str
    partition: str

    def __post_init__(self) -> None:
        for label, name in (("run", self.run), ("partition", self.partition)):
            if not name:
                raise ValueError(f"{label} must be a non-empty string, got {name!r}")

    @property
    def tag(self) -> str:
        """The hash tag's content: run and partition, percent-encoded."""
        return _tag(self.run, self.partition)

    def control(self, key: Key) -> str:
        """Return the full name of a control key."""
        return _control(self.run, self.partition, key)

    def saved(self, saved_id: str, key: Key) -> str:
        """Return the full name of a checkpoint's copy of a control key."""
        return f"rr:{{{self.tag}}}:saved:{saved_id}:{key.value}"

    def payload(self, group_id: str, fence: int, *, chunk: int = 0) -> str:
        """Return the key of one payload chunk written by the attempt that held ``fence``."""
        base = f"{self.payload_prefix}{encode_name(group_id)}:{fence}"
        return base if chunk == 0 else f"{base}:c{chunk}"

    def written(self, group_id: str, payload_fence: int, claim_fence: int) -> str:
        """Return the key of the cells that the claim ``claim_fence`` wrote back to a group."""
        return f"{self.payload(group_id, payload_fence)}:w{claim_fence}"

    @property
    def payload_prefix(self) -> str:
        """What every payload key of this run and partition begins with."""
        return f"rr:p:{self.tag}:"


RUN_PATTERN = "rr:{*}:meta"
"""SCAN pattern of the control record of every run on a server."""


def run_of_meta_key(name: str) -> tuple[str, str]:
    """Return run and partition of a control record found by `RUN_PATTERN`."""
    run, _, partition = name[len("rr:{") : name.index("}")].partition(":")
    return decode_name(run), decode_name(partition)


def group_field(group_id: str, fence: int) -> str:
    """Return the field of a committed attempt in ``groups``, also its member in ``dead``."""
    return f"{fence}:{group_id}"
