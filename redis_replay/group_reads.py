"""What to read of a group: which bytes of which keys, and the memory they go to.

Each group's bytes lie in one block of memory, over which its arrays are views; with a caller's
arrays (``out``) they go straight there. What cells are copies of lies apart, where it is much: it
is free once they are decoded, and arrays beside it would keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from redis_replay._redis.keys import Keyspace
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.transfer import Range
from redis_replay.arrays import ARRAY_ALIGNMENT_BYTES, HandOut, read_only
from redis_replay.blocks import BLOCKS
from redis_replay.codec import Value
from redis_replay.directory import ByteRange, read_plan
from redis_replay.group_record import GroupRecord
from redis_replay.layout import BYTES, CELLS, Column
from redis_replay.outputs import Outputs
from redis_replay.payloads import chunk_offsets

Row = dict[str, Value]
_WIDEST_GAP_BYTES: Final = 64
"""Ranges this close are read as one; columns lie at most an alignment apart."""

_WORTH_APART_BYTES: Final = 64 * 1024
"""Shorter columns are read with the others."""


@dataclass(frozen=True, slots=True)
class WantedRows:
    """A group whose rows are asked for.

    Attributes:
        rows: Each once, in any order.
    """

    slot: SlotRecord
    record: GroupRecord
    rows: tuple[int, ...]


@dataclass(slots=True)
class GroupRead:
    """One group's part of a read.

    Attributes:
        wanted: The group and its rows.
        written: Cells that were written back, by row and column; they win over committed ones.
        fields: Columns that are read from the payload, ``None`` for all.
        rows: Rows that are read from the payload, ``None`` for all.
        buffers: Where each part of the payload is received.
        ranges: What to ask the server for.
        payload: Where all of it is received in one piece, if it is; there are no parts then.
        passing_bytes: Bytes received that nothing refers to once the group is decoded.
    """

    wanted: WantedRows
    written: dict[int, Row]
    fields: list[str] | None
    rows: tuple[int, ...] | None
    buffers: dict[ByteRange, memoryview]
    ranges: list[Range]
    payload: memoryview | None = None
    passing_bytes: int = 0

    @property
    def group_id(self) -> str:
        """Of the group."""
        return self.wanted.slot.group_id


def plan_read(
    keyspace: Keyspace,
    wanted: WantedRows,
    *,
    fields: Sequence[str] | None,
    written: dict[int, Row],
    hand_out: HandOut = read_only,
    outputs: Outputs | None,
) -> GroupRead:
    """Decide what to read of a group and where to, blocks of its own or the caller's arrays."""
    record, group_id = wanted.record, wanted.slot.group_id
    committed: list[str] | None = None
    if fields is not None:
        everywhere = set.intersection(*(set(written.get(row, ())) for row in wanted.rows))
        readable = set(record.directory.fields) - everywhere
        committed = [name for name in dict.fromkeys(fields) if name in readable]
    is_all = len(wanted.rows) == record.directory.row_count
    rows = None if is_all and max(wanted.rows) < record.directory.row_count else wanted.rows
    offsets = chunk_offsets(record.payload_bytes, record.chunk_bytes)
    fence = wanted.slot.payload_fence or 0
    keys = [keyspace.payload(group_id, fence, chunk=at) for at in range(len(offsets))]
    chunks = list(zip(keys, offsets, strict=True))
    columns = record.directory.columns
    copied = {column.name for column in columns if _is_worth_apart(column, hand_out)}
    if committed is None and rows is None and outputs is None and not copied:
        payload = BLOCKS.take(record.payload_bytes)
        ranges = [
            Range(key, 0, True, payload[at : at + size]) for key, (at, size) in chunks if size
        ]
        return GroupRead(wanted, written, None, None, {}, ranges, payload)
    plan = read_plan(record.directory, fields=committed, rows=rows)
    buffers: dict[ByteRange, memoryview] = {}
    if outputs is not None:
        copied |= outputs.fields
        named = {column.name: column for column in columns}
        for part in plan:
            memory = outputs.memory_for(group_id, named[part.field], part)
            if memory is not None:
                buffers[part] = memory
    targets = [(part.offset, memory) for part, memory in buffers.items()]
    rest = [part for part in plan if part not in buffers]
    passing = [part for part in rest if part.field in copied]
    for apart in ([part for part in rest if part.field not in copied], passing):
        for run, memory in _laid_out(apart):
            targets.append((run[0].offset, memory))
            for part in run:
                start = part.offset - run[0].offset
                buffers[part] = memory[start : start + part.length]
    ranges = [part for start, memory in targets for part in _in_chunks(chunks, start, memory)]
    passing_bytes = sum([part.length for part in passing])
    return GroupRead(wanted, written, committed, rows, buffers, ranges, passing_bytes=passing_bytes)


def _is_worth_apart(column: Column, hand_out: HandOut) -> bool:
    """Return whether a column is large and its cells are no views of its bytes."""
    if column.length < _WORTH_APART_BYTES or column.is_raw:
        return False
    storage = column.storage
    if storage.narrowed or storage.expanded is not None:
        return True
    has_views = hand_out is read_only and any(blob.kind != BYTES for blob in storage.blobs)
    return column.kind == CELLS and not has_views


def _runs(plan: Sequence[ByteRange]) -> Iterator[list[ByteRange]]:
    """Yield the parts of a plan that lie so close that they are read as one, upwards."""
    run: list[ByteRange] = []
    for part in sorted(plan, key=lambda part: part.offset):
        if run and part.offset - (run[-1].offset + run[-1].length) > _WIDEST_GAP_BYTES:
            yield run
            run = []
        run.append(part)
    if run:
        yield run


def _laid_out(plan: Sequence[ByteRange]) -> Iterator[tuple[list[ByteRange], memoryview]]:
    """Yield what is read as one, with memory for it as aligned as it is in the payload."""
    runs = list(_runs(plan))
    places: list[int] = []
    size = 0
    for run in runs:
        size += (run[0].offset - size) % ARRAY_ALIGNMENT_BYTES
        places.append(size)
        size += run[-1].offset + run[-1].length - run[0].offset
    block = BLOCKS.take(size)
    for run, place in zip(runs, places, strict=True):
        yield run, block[place : place + run[-1].offset + run[-1].length - run[0].offset]


def _in_chunks(
    chunks: Sequence[tuple[str, tuple[int, int]]], start: int, target: memoryview
) -> Iterator[Range]:
    """Yield the ranges of the chunks that bytes of a payload lie in."""
    stop = start + len(target)
    for key, (offset, size) in chunks:
        first, last = max(start, offset), min(stop, offset + size)
        if first < last:
            is_whole = (first, last) == (offset, offset + size)
            yield Range(key, first - offset, is_whole, target[first - start : last - start])
