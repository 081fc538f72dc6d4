"""What a read asks for is in the chunks, nothing else is asked for, and it decodes to the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from redis_replay._redis.keys import Keyspace
from redis_replay._redis.records import SlotRecord
from redis_replay.decoding import decoded_rows
from redis_replay.group_reads import WantedRows, plan_read
from redis_replay.group_record import pack_record, unpack_record
from redis_replay.groups import payload_writes
from redis_replay.outputs import Outputs
from redis_replay.payloads import encode_group

KEYSPACE = Keyspace("run", "partition")
SLOT = SlotRecord.parse(b"g", b"ready 1 7 0 0 - 7 - 1 - 0 - 0 - 0")
FIELDS = ("ids", "floats", "words", "empty")


def cells_of(name: str, length: int, seed: int) -> Any:
    """Return one cell of a field."""
    if name == "ids":
        return np.arange(seed, seed + length, dtype=np.int32)
    if name == "floats":
        return np.full((length, 2), seed, np.float16)
    return "x" * length if name == "words" else np.zeros((0, 3))


def same(one: Any, other: Any) -> bool:
    """Return whether two cells are the same."""
    return type(one) is type(other) and np.array_equal(one, other)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=6),
    st.integers(1, 400),
    st.none() | st.lists(st.sampled_from(FIELDS), unique=True),
    st.data(),
)
def test_any_rows_and_columns_are_read_from_any_chunks(
    lengths: list[int], chunk_bytes: int, fields: list[str] | None, draw: st.DataObject
) -> None:
    rows = [
        {name: cells_of(name, length, seed) for name in FIELDS}
        for seed, length in enumerate(lengths)
    ]
    encoded = encode_group("g", rows)
    blob = pack_record(
        encoded, chunk_bytes=chunk_bytes, tags=[{} for _ in rows], rollout_metrics={}
    )
    stored = dict(payload_writes(encoded, KEYSPACE, "g", fence=7, chunk_bytes=chunk_bytes))
    picked = draw.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, unique=True))
    outputs = None
    if draw.draw(st.booleans()):
        array = np.full((len(picked), max(lengths)), -1, np.int32)
        places = [("g", row) for row in picked]
        wants = fields is None or "ids" in fields
        outputs = Outputs({"ids": array}, places=places, fields=None) if wants else None

    wanted = WantedRows(SLOT, unpack_record("g", blob), tuple(picked))
    read = plan_read(KEYSPACE, wanted, fields=fields, written={}, outputs=outputs)
    asked = 0
    for part in read.ranges:
        chunk = stored[part.key]
        part.target[:] = memoryview(chunk)[part.start : part.start + len(part.target)]
        assert part.is_whole == (part.start == 0 and len(part.target) == len(chunk))
        assert len(part.target) > 0
        asked += len(part.target)
    assert asked <= len(encoded.payload)

    found = decoded_rows(read, fields=fields, outputs=outputs)
    assert len(picked) == len(found)
    for at, (row, cells) in enumerate(zip(picked, found, strict=True)):
        assert list(cells) == list(FIELDS if fields is None else fields)
        assert all(same(rows[row][name], cell) for name, cell in cells.items())
        if outputs is not None:
            assert same(rows[row]["ids"], array[at, : lengths[row]])
            assert (array[at, lengths[row] :] == -1).all()
