"""Rows of committed groups: which bytes of which keys, where they go, and the cells they are.

A read asks for the bytes it needs and nothing else, of many groups in one round trip. Each group's
bytes lie in one block of memory, over which its arrays are views; with a caller's arrays (``out``)
they go straight there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final

import anyio
import anyio.lowlevel

from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.transfer import Range
from redis_replay.arrays import ARRAY_ALIGNMENT_BYTES, HandOut, read_only
from redis_replay.blocks import BLOCKS
from redis_replay.codec import Value, decode_value
from redis_replay.damage import Damage
from redis_replay.directory import ByteRange, read_plan
from redis_replay.errors import PayloadCorrupted, PayloadMissing
from redis_replay.groups import GroupRecord
from redis_replay.outputs import Outputs
from redis_replay.payloads import ABSENT, chunk_offsets, decode_columns, decode_whole

Row = dict[str, Value]
_WIDEST_GAP_BYTES: Final = 64
"""Ranges this close are read as one; columns lie at most an alignment apart."""

_GROUPS_A_TURN: Final = 16
"""Groups that are planned before other tasks have their turn."""

_TURN_BYTES: Final = 1024 * 1024
_GROUP_COSTS_BYTES: Final = 128 * 1024
"""What is decoded before other tasks have their turn; a group costs as much time as that beside
its bytes."""

_WRITTEN_SLICE: Final = 8
"""Groups whose written-back cells are held encoded and decoded at one time."""

_LARGE_BYTES: Final = 16 * 1024 * 1024
"""What takes a thread of its own to verify and decode, so that the event loop goes on."""


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
    """

    wanted: WantedRows
    written: dict[int, Row]
    fields: list[str] | None
    rows: tuple[int, ...] | None
    buffers: dict[ByteRange, memoryview]
    ranges: list[Range]
    payload: memoryview | None = None


async def read_groups(
    gateway: Gateway,
    wanted: Sequence[WantedRows],
    *,
    fields: Sequence[str] | None,
    hand_out: HandOut = read_only,
    outputs: Outputs | None = None,
    damage: Damage,
    known: dict[str, None],
) -> dict[str, Row]:
    """Return the wanted rows by sample id, without those of groups that are damaged.

    Not atomic; may be repeated.

    Args:
        gateway: To the server.
        wanted: The groups.
        fields: Columns to read, ``None`` for all.
        hand_out: What becomes of each array (`forms`).
        outputs: Arrays of the caller that columns are read into; undefined after a failure.
        damage: Where groups are noted whose payload is gone, has lost bytes or fails its checksum.
        known: Where the fields are noted that the groups have, in their order.

    Raises:
        PayloadCorrupted: A cell that was written back is damaged.
        ValueError: No such row, or a field that does not fit into its array.
        TypeError: A field that has an array holds something else.
    """
    cells = await _read_written(gateway, wanted, fields, hand_out)
    reads: list[GroupRead] = []
    for one, written in zip(wanted, cells, strict=True):
        if len(reads) % _GROUPS_A_TURN == 0:
            await anyio.lowlevel.checkpoint()
        with damage.noted(one.slot):
            for names in (one.record.directory.fields, *written.values()):
                known.update(dict.fromkeys(names))
            reads.append(
                plan_read(gateway.keyspace, one, fields=fields, written=written, outputs=outputs)
            )
    ranges = [part for read in reads for part in read.ranges]
    lengths = iter(await gateway.read(ranges))
    found: dict[str, Row] = {}
    decoded = 0
    for read in reads:
        received = [next(lengths) for _ in read.ranges]
        decode = partial(decoded_rows, read, fields=fields, hand_out=hand_out, outputs=outputs)
        with damage.noted(read.wanted.slot):
            for part, length in zip(read.ranges, received, strict=True):
                _check_length(read.wanted, part, length)
            if read.wanted.record.payload_bytes > _LARGE_BYTES:
                found.update(await anyio.to_thread.run_sync(decode))
            else:
                found.update(decode())
        decoded += read.wanted.record.payload_bytes + _GROUP_COSTS_BYTES
        if decoded > _TURN_BYTES:
            decoded = 0
            await anyio.lowlevel.checkpoint()
    return found


async def _read_written(
    gateway: Gateway,
    wanted: Sequence[WantedRows],
    fields: Sequence[str] | None,
    hand_out: HandOut,
) -> list[dict[int, Row]]:
    """Return the cells that were written back to each group, by row and column."""
    result: list[dict[int, Row]] = [{} for _ in wanted]
    having = [(at, one) for at, one in enumerate(wanted) if one.slot.written is not None]
    for first in range(0, len(having), _WRITTEN_SLICE):
        part = having[first : first + _WRITTEN_SLICE]
        commands = [_ask_for_written(gateway.keyspace, one, fields) for _, one in part]
        replies = await gateway.ask_payload(commands)
        for (at, one), command, reply in zip(part, commands, replies, strict=True):
            found = reply.items() if fields is None else zip(command[2:], reply, strict=True)
            result[at] = _written_cells(one.slot.group_id, found, hand_out)
    return result


def _ask_for_written(
    keyspace: Keyspace, wanted: WantedRows, fields: Sequence[str] | None
) -> tuple[str, ...]:
    slot = wanted.slot
    key = keyspace.written(slot.group_id, slot.payload_fence or 0, slot.written or 0)
    if not fields:
        return ("HGETALL", key) if fields is None else ("HMGET", key, "")
    return ("HMGET", key, *(f"{row}:{name}" for row in wanted.rows for name in fields))


def _written_cells(
    group_id: str, found: Iterable[tuple[bytes | str, bytes | None]], hand_out: HandOut
) -> dict[int, Row]:
    cells: dict[int, Row] = {}
    for place, encoded in found:
        if encoded is not None:
            text = place if isinstance(place, str) else place.decode()
            row, _, name = text.partition(":")
            try:
                value = decode_value(encoded, f"{group_id}_g{row}.{name}", hand_out=hand_out)
            except PayloadCorrupted as error:
                raise PayloadCorrupted(
                    f"{error}; it was written back, so write it again or requeue the group",
                    group_id=group_id,
                    field=name,
                    row=int(row),
                ) from error
            cells.setdefault(int(row), {})[name] = value
    return cells


def plan_read(
    keyspace: Keyspace,
    wanted: WantedRows,
    *,
    fields: Sequence[str] | None,
    written: dict[int, Row],
    outputs: Outputs | None,
) -> GroupRead:
    """Decide what to read of a group and where to, a block of its own or the caller's arrays."""
    record, group_id = wanted.record, wanted.slot.group_id
    committed: list[str] | None = None
    if fields is not None:
        everywhere = set.intersection(*(set(written.get(row, ())) for row in wanted.rows))
        readable = set(record.directory.fields) - everywhere
        committed = [name for name in dict.fromkeys(fields) if name in readable]
    is_all = len(wanted.rows) == record.directory.row_count
    rows = None if is_all and max(wanted.rows) < record.directory.row_count else wanted.rows
    keys = record.payload_keys(keyspace, wanted.slot.payload_fence or 0)
    chunks = list(zip(keys, chunk_offsets(record.payload_bytes, record.chunk_bytes), strict=True))
    if committed is None and rows is None and outputs is None:
        payload = BLOCKS.take(record.payload_bytes)
        return GroupRead(
            wanted, written, None, None, {}, [*_in_chunks(chunks, 0, payload)], payload
        )
    plan = read_plan(record.directory, fields=committed, rows=rows)
    buffers: dict[ByteRange, memoryview] = {}
    if outputs is not None:
        columns = {column.name: column for column in record.directory.columns}
        for part in plan:
            memory = outputs.memory_for(group_id, columns[part.field], part)
            if memory is not None:
                buffers[part] = memory
    targets = [(part.offset, memory) for part, memory in buffers.items()]
    for run, memory in _laid_out([part for part in plan if part not in buffers]):
        targets.append((run[0].offset, memory))
        for part in run:
            start = part.offset - run[0].offset
            buffers[part] = memory[start : start + part.length]
    ranges = [part for start, memory in targets for part in _in_chunks(chunks, start, memory)]
    return GroupRead(wanted, written, committed, rows, buffers, ranges)


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


def _check_length(wanted: WantedRows, part: Range, length: int) -> None:
    if length != len(part.target):
        raise PayloadMissing(
            f"the payload of group {wanted.slot.group_id!r} has lost bytes: {length} of "
            f"{len(part.target)} came back",
            group_id=wanted.slot.group_id,
        )


def decoded_rows(
    read: GroupRead,
    *,
    fields: Sequence[str] | None,
    outputs: Outputs | None,
    hand_out: HandOut = read_only,
) -> Mapping[str, Row]:
    """Return the rows by sample id, once all targets are filled. Raises as `read_groups`."""
    group_id = read.wanted.slot.group_id
    directory = read.wanted.record.directory
    if read.payload is not None:
        columns = decode_whole(directory, read.payload, group_id=group_id, hand_out=hand_out)
    else:
        columns = decode_columns(
            directory,
            read.buffers,
            fields=read.fields,
            rows=read.rows,
            group_id=group_id,
            hand_out=hand_out,
        )
    result: dict[str, Row] = {}
    lacking = any(column.storage.absent for column in directory.columns)
    rows = range(directory.row_count) if read.rows is None else read.rows
    in_rows = zip(*columns.values(), strict=True) if columns else repeat(())
    for row, found in zip(rows, in_rows, strict=False):
        cells: dict[str, Any] = dict(zip(columns, found, strict=True))
        if lacking:
            cells = {name: cell for name, cell in cells.items() if cell is not ABSENT}
        if written := read.written.get(row):
            cells.update(written)
            if fields is not None:
                cells = {name: cells[name] for name in fields if name in cells}
        if outputs is not None:
            outputs.put(group_id, row, cells)
        result[f"{group_id}_g{row}"] = cells
    return result
