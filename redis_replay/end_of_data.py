"""What is left to train when the data has ended: a cut has said that nothing more is dispatched."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from redis_replay._redis.gateway import Reads
from redis_replay._redis.keys import Key

Tail: TypeAlias = Literal["train", "drop"]
"""What a trainer does with a last batch that is not full."""

_IN_ORDER = b"in_order"


async def read_rest(reads: Reads, step: int) -> int | None:
    """Return how many groups are ready for a step that nothing more can come for, else ``None``.

    Under ``in_order`` the counts are of the step's own groups, else of the whole buffer. Atomic; a
    pure read.
    """
    control = reads.keyspace.control
    replies: list[Any] = await reads.pipeline(
        [
            ("HMGET", control(Key.META), "exhausted", "policy"),
            *[
                ("ZCOUNT", control(key), step, step)
                for key in (Key.RESERVED_BY_STEP, Key.READY_BY_STEP)
            ],
            *[("ZCARD", control(key)) for key in (Key.RESERVED, Key.READY)],
        ],
        atomic=True,
    )
    exhausted, policy = replies[0]
    in_flight, ready = replies[1:3] if policy == _IN_ORDER else replies[3:5]
    return int(ready) if exhausted == b"1" and not in_flight else None
