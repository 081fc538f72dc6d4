"""Slot records made up for tests of what is said about slots."""

from __future__ import annotations

from redis_replay._redis.records import SlotRecord
from redis_replay.types import GroupState


def slot_record(*, state: GroupState, target: int | None, epoch: int | None) -> SlotRecord:
    """Return a slot of a group that was committed once, in a state and with a holder."""
    return SlotRecord(
        group_id="g",
        state=state,
        order=1,
        fence=2,
        start=0,
        finish=0,
        target=target,
        payload_fence=2,
        epoch=epoch,
        attempt=1,
        batch=None,
        requeues=0,
        written=None,
        payload_bytes=0,
        dispatch=None,
        replacement=0,
    )
