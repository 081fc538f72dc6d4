"""The vocabulary: small frozen values that every layer shares.

What the words mean stands in `docs/architecture.md`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_EXACT_INTEGER: Final = 2**53
"""Versions, steps and counts are below this: a sorted-set score holds them exactly."""

MAX_GROUPS_PER_CALL: Final = 1024
"""Most groups that one script reserves, claims, settles or removes: none holds the server."""

MAX_GROUP_ID_BYTES: Final = 1024
MAX_PROMPT_REF_BYTES: Final = 64 * 1024


class GroupState(StrEnum):
    """Where a live group is. The values are the words used in keys, Lua and the command line."""

    RESERVED = "reserved"
    READY = "ready"
    CLAIMED = "claimed"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reserved slot as its holder knows it.

    Attributes:
        group_id: Non-empty id, unique among live slots.
        fence: Ownership number that `commit` and `abort` present.
        weight_version: Start weight the slot was reserved with.
        target_step: Trainer step the group is meant for, or ``None``.
        attempt: 1 for the first generation attempt.
        prompt_ref: The opaque prompt reference given at reserve.
        replacement_index: 0 for a first attempt at a place of a batch, else how often it was
            replaced.
    """

    group_id: str
    fence: int
    weight_version: int
    target_step: int | None = None
    attempt: int = 1
    prompt_ref: bytes | None = None
    replacement_index: int = 0


@dataclass(frozen=True, slots=True)
class SlotView:
    """One live slot as stored, for custom samplers, the audit and the command line.

    Attributes:
        order: Place in buffer order; it survives claims and requeues.
        owner: Name of the holding session, or ``None`` (ready, or a redispatch ticket).
        batch: Claim number of a claimed group, else ``None``.
        payload_fence: Fence of the attempt that committed, ``None`` while reserved.
    """

    group_id: str
    state: GroupState
    order: int
    start_weight_version: int
    end_weight_version: int | None
    target_step: int | None
    fence: int
    payload_fence: int | None
    owner: str | None
    attempt: int
    batch: int | None
    training_requeues: int
    replacement_index: int


@dataclass(frozen=True, slots=True)
class BufferStats:
    """Live counts and monotone totals of one run, read in one instant.

    ``reserved_total`` equals the sum of the live states and of ``trained``, ``filtered``,
    ``evicted``, ``aborted`` and ``removed`` (D4).
    """

    reserved: int
    ready: int
    claimed: int
    quarantined: int
    capacity: int
    payload_bytes: int
    reserved_total: int
    trained: int
    filtered: int
    evicted: int
    aborted: int
    removed: int
    requeued: int
    dispatch_index: int
    trainer_version: int
    gate_window: int | None
    ends: Mapping[str, int] = field(default_factory=dict)

    @property
    def occupancy(self) -> int:
        """Groups that hold a place: reserved, ready and claimed."""
        return self.reserved + self.ready + self.claimed
