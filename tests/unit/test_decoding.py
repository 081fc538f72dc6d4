"""Groups of a read are decoded once their last byte is there, and no sooner."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.transfer import Progress, Range
from redis_replay.damage import Damage
from redis_replay.decoding import Decoding, decoded_rows
from redis_replay.group_reads import GroupRead, WantedRows, plan_read
from redis_replay.group_record import pack_record, unpack_record
from redis_replay.groups import payload_writes
from redis_replay.outputs import Outputs
from redis_replay.payloads import encode_group
from redis_replay.reading import read_groups

pytestmark = pytest.mark.anyio

KEYSPACE = Keyspace("run", "partition")
CHUNK_BYTES = 64
ROWS = 2


def rows_of(seed: int) -> list[dict[str, Any]]:
    """Return the rows of a group of three chunks."""
    return [{"x": np.full(20, seed + row, np.int32)} for row in range(ROWS)]


def group_read(group_id: str, seed: int, outputs: Outputs | None = None) -> GroupRead:
    """Return the read of a group whose bytes are in its memory already."""
    encoded = encode_group(group_id, rows_of(seed))
    blob = pack_record(encoded, chunk_bytes=CHUNK_BYTES, tags=[{}] * ROWS, rollout_metrics={})
    slot = SlotRecord.parse(group_id.encode(), b"ready 1 7 0 0 - 7 - 1 - 0 - 0 - 0")
    wanted = WantedRows(slot, unpack_record(group_id, blob), tuple(range(ROWS)))
    read = plan_read(KEYSPACE, wanted, fields=None, written={}, outputs=outputs)
    stored = dict(payload_writes(encoded, KEYSPACE, group_id, fence=7, chunk_bytes=CHUNK_BYTES))
    for part in read.ranges:
        part.target[:] = memoryview(stored[part.key])[part.start :][: len(part.target)]
    return read


def decoding(reads: list[GroupRead], outputs: Outputs | None = None) -> Decoding:
    """Return the decoding of reads of all fields."""
    return Decoding(reads, partial(decoded_rows, fields=None, outputs=outputs))


async def test_a_group_is_decoded_when_its_last_range_has_come() -> None:
    reads = [group_read("a", 1), group_read("b", 5)]
    assert [3, 3] == [len(read.ranges) for read in reads]
    work = decoding(reads)
    for at in (5, 0, 3, 1):
        work.arrived(at, len((reads[0].ranges + reads[1].ranges)[at].target))
        assert 0 == work.meanwhile()
    work.arrived(4, len(reads[1].ranges[1].target))
    assert reads[1].wanted.record.payload_bytes <= work.meanwhile()
    assert ["b"] == list(work.found)
    assert 0 == work.meanwhile()
    work.arrived(2, len(reads[0].ranges[2].target))
    await work.finish()
    for group_id, seed in (("a", 1), ("b", 5)):
        found = [row["x"].tolist() for row in work.found[group_id]]
        assert [row["x"].tolist() for row in rows_of(seed)] == found


async def test_a_group_that_lost_bytes_is_damaged_and_not_decoded() -> None:
    reads = [group_read("a", 1), group_read("b", 5)]
    work = decoding(reads)
    for at, part in enumerate(reads[0].ranges + reads[1].ranges):
        work.arrived(at, len(part.target) - (at == 1))
    await work.finish()
    assert ["b"] == list(work.found)
    assert ["a"] == list(work.damaged)
    assert "has lost bytes: 63 of 64" in str(work.damaged["a"])


async def test_what_does_not_fit_is_raised_when_the_reading_is_over() -> None:
    places = [("a", row) for row in range(ROWS)]
    outputs = Outputs({"x": np.zeros((ROWS, 20), np.int32)}, places=places, fields=None)
    read = group_read("a", 1, outputs)
    read.written[0] = {"x": np.zeros(20, np.int64)}
    work = decoding([read], outputs)
    for at, part in enumerate(read.ranges):
        work.arrived(at, len(part.target))
    assert work.meanwhile() > 0
    assert 0 == work.meanwhile()
    with pytest.raises(ValueError, match="it holds <i8, and out <i4"):
        await work.finish()


async def test_memory_that_is_not_there_is_raised_when_the_reading_is_over() -> None:
    def decode(read: GroupRead) -> list[dict[str, Any]]:
        raise MemoryError(read.group_id)

    read = group_read("a", 1)
    work = Decoding([read], decode)
    for at, part in enumerate(read.ranges):
        work.arrived(at, len(part.target))
    assert work.meanwhile() > 0
    with pytest.raises(MemoryError, match="a"):
        await work.finish()


class Repeating:
    """A gateway whose first attempt at a read loses bytes and breaks off."""

    keyspace = KEYSPACE

    def __init__(self, stored: dict[str, bytes | memoryview]) -> None:
        self.stored = stored

    async def read(self, ranges: list[Range], attempt: Callable[[], Progress]) -> None:
        first = attempt()
        for at, part in enumerate(ranges):
            first.arrived(at, len(part.target) - 1)
        first.meanwhile()
        second = attempt()
        for at, part in enumerate(ranges):
            part.target[:] = memoryview(self.stored[part.key])[part.start :][: len(part.target)]
            second.arrived(at, len(part.target))


async def test_what_an_attempt_found_is_not_believed_by_the_next() -> None:
    encoded = encode_group("a", rows_of(1))
    blob = pack_record(encoded, chunk_bytes=CHUNK_BYTES, tags=[{}] * ROWS, rollout_metrics={})
    slot = SlotRecord.parse(b"a", b"ready 1 7 0 0 - 7 - 1 - 0 - 0 - 0")
    wanted = WantedRows(slot, unpack_record("a", blob), tuple(range(ROWS)))
    stored = dict(payload_writes(encoded, KEYSPACE, "a", fence=7, chunk_bytes=CHUNK_BYTES))
    damage, gateway = Damage(), cast(Gateway, Repeating(stored))
    found = await read_groups(gateway, [wanted], fields=None, damage=damage, known={})
    assert {} == damage.found
    assert [row["x"].tolist() for row in rows_of(1)] == [row["x"].tolist() for row in found["a"]]
