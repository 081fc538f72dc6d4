"""A group's rows as one byte string with a directory, and back.

`encode_group` lays the rows out column by column: a field whose cells are arrays of one kind and
dtype becomes their raw bytes, everything else one encoded cell per row. One string per group is
written at once, and one column, or one row of one column, can be read alone (`directory`).

Nothing of the caller's memory is kept: bytes are copied once, compactly, so a slice does not drag
its base along and a reused buffer changes nothing that was stored. An array that several rows refer
to is stored once per row. Decoding copies nothing: arrays are read-only views over the buffer that
was received, which lives as long as one of them does. ``array.copy()`` makes a writable one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from redis_replay.arrays import Buffer
from redis_replay.blocks import joined
from redis_replay.codec import Value
from redis_replay.columns import ColumnDraft, decode_rows, draft_column, verify_column
from redis_replay.directory import (
    ByteRange,
    Column,
    Directory,
    aligned,
    directory_checksum,
    read_plan,
)
from redis_replay.errors import PayloadCorrupted
from redis_replay.rows import field_names, row_lengths, row_rewards

__all__ = [
    "ByteRange",
    "Column",
    "Directory",
    "EncodedGroup",
    "chunk_offsets",
    "decode_columns",
    "decode_group",
    "directory_checksum",
    "encode_group",
    "read_plan",
]


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A group ready to be written.

    Attributes:
        payload: All columns, as one string.
        directory: Packed `Directory`, to be kept apart from the payload.
        payload_bytes: Length of the payload.
        checksum: `directory_checksum`; it covers the payload through the directory.
        fields: Names of all fields, in the order of the first row.
        lengths: Sequence length of each row (`row_lengths`).
        rewards: Reward of each row as a plain float, ``None`` without such a field (`row_rewards`).
    """

    payload: bytes | memoryview
    directory: bytes
    payload_bytes: int
    checksum: int
    fields: tuple[str, ...]
    lengths: tuple[int, ...]
    rewards: tuple[float, ...] | None


def encode_group(group_id: str, rows: Sequence[Mapping[str, Value]]) -> EncodedGroup:
    """Lay out the rows of one group; pure, and nothing is half done when it raises.

    Cells are stored as given; what `row_rewards` and `row_lengths` read from them comes on top.

    Args:
        group_id: Named in errors.
        rows: At least one row; all have the same fields.

    Raises:
        ValueError: No rows, too many, no fields, a row with other fields than the first, a field
            name that is empty or over 256 bytes, a negative length, a reward that is not finite.
        TypeError: A row is no mapping, a field name no text, a cell cannot be stored, a reward is
            not one number. The message names group, row and field path.
    """
    names = field_names(group_id, rows=rows)
    rewards = row_rewards(group_id, rows=rows)
    drafts = [
        draft_column(group_id, name=name, cells=[row[name] for row in rows]) for name in names
    ]
    payload = _laid_out(drafts)
    directory = Directory(len(rows), len(payload), _finished(drafts, payload)).to_bytes()
    return EncodedGroup(
        payload=payload,
        directory=directory,
        payload_bytes=len(payload),
        checksum=directory_checksum(directory),
        fields=names,
        lengths=row_lengths(group_id, rows=rows),
        rewards=rewards,
    )


def decode_group(
    group_id: str,
    directory_bytes: bytes,
    payload: Buffer,
    *,
    select_fields: Sequence[str] | None = None,
    checksum: int | None = None,
) -> list[dict[str, Any]]:
    """Return the rows of a group, with all fields or the selected ones in their order.

    Args:
        group_id: Named in errors.
        directory_bytes: As written.
        payload: The whole payload, as received.
        select_fields: Fields wanted; the others are neither verified nor decoded.
        checksum: If given, `EncodedGroup.checksum`, which the directory must match.

    Raises:
        PayloadCorrupted: Length, checksum or contents are not what was written.
        ValueError: A selected field does not exist; the message lists what does.
        ConfigurationError: A dtype needs a package that is not installed.
    """
    directory = Directory.from_bytes(directory_bytes, group_id=group_id, checksum=checksum)
    columns = directory.select(select_fields)
    received_bytes = memoryview(payload).nbytes
    if received_bytes != directory.payload_bytes:
        raise PayloadCorrupted(
            f"group {group_id!r}: {received_bytes} payload bytes instead of "
            f"{directory.payload_bytes}",
            group_id=group_id,
        )
    all_rows = range(directory.row_count)
    cells: list[list[Any]] = []
    for column in columns:
        verify_column(column, payload, start=column.offset, group_id=group_id)
        cells.append(
            decode_rows(column, payload, start=column.offset, rows=all_rows, group_id=group_id)
        )
    names = [column.name for column in columns]
    if not names:
        return [{} for _ in all_rows]
    return [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]


def decode_columns(
    directory: Directory,
    buffers: Mapping[ByteRange, Buffer],
    *,
    fields: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    group_id: str | None = None,
) -> dict[str, list[Any]]:
    """Return cells from the ranges that `read_plan` asked for with the same fields and rows.

    Whole columns are verified; rows of a column are not (D33).

    Args:
        directory: Of the group.
        buffers: What was received for each range of the plan.
        fields: Fields wanted, all by default.
        rows: Rows wanted, in any order; the cells come in this order.
        group_id: Named in errors.

    Raises:
        PayloadCorrupted: A reply is shorter or longer than its range, or its contents are damaged.
        ValueError: A range of the plan was not received; no such field or row.
        ConfigurationError: A dtype needs a package that is not installed.
    """
    wanted = range(directory.row_count) if rows is None else rows
    found: dict[str, dict[int, Any]] = {column.name: {} for column in directory.select(fields)}
    columns = {column.name: column for column in directory.columns}
    for part in read_plan(directory, fields=fields, rows=rows):
        if part not in buffers:
            raise ValueError(f"group {group_id!r}: nothing was received for {part}")
        column, received = columns[part.field], buffers[part]
        if memoryview(received).nbytes != part.length:
            raise PayloadCorrupted(
                f"group {group_id!r}, field {part.field!r}: "
                f"{memoryview(received).nbytes} bytes instead of {part.length}",
                group_id=group_id,
            )
        if part.whole_column:
            verify_column(column, received, start=0, group_id=group_id)
        span = range(part.start_row, part.stop_row)
        cells = decode_rows(column, received, start=0, rows=span, group_id=group_id)
        found[part.field].update(zip(span, cells, strict=True))
    result: dict[str, list[Any]] = {}
    for name, cells_by_row in found.items():
        for row in wanted:
            if row not in cells_by_row:  # a row without bytes
                [cells_by_row[row]] = decode_rows(
                    columns[name], b"", start=0, rows=range(row, row + 1), group_id=group_id
                )
        result[name] = [cells_by_row[row] for row in wanted]
    return result


def chunk_offsets(payload_bytes: int, chunk_bytes: int) -> list[tuple[int, int]]:
    """Return offset and length of each chunk of a payload; an empty payload is one empty chunk.

    Raises:
        ValueError: A negative payload, or chunks of less than one byte.
    """
    if payload_bytes < 0 or chunk_bytes < 1:
        raise ValueError(f"cannot cut {payload_bytes} bytes into chunks of {chunk_bytes}")
    return [
        (offset, min(chunk_bytes, payload_bytes - offset))
        for offset in range(0, max(payload_bytes, 1), chunk_bytes)
    ]


def _laid_out(drafts: Sequence[ColumnDraft]) -> bytes | memoryview:
    pieces: list[Any] = []
    position = 0
    for draft in drafts:
        start = aligned(position)
        pieces.append(bytes(start - position))
        pieces.extend(draft.pieces)
        position = start + draft.length
    return joined(pieces, size=position)


def _finished(drafts: Sequence[ColumnDraft], payload: bytes | memoryview) -> tuple[Column, ...]:
    """Give every column its offset and the checksum of the bytes that were really laid out."""
    columns: list[Column] = []
    position = 0
    view = memoryview(payload)
    for draft in drafts:
        start = aligned(position)
        position = start + draft.length
        columns.append(
            Column(
                name=draft.name,
                kind=draft.kind,
                dtype=draft.dtype,
                offset=start,
                length=draft.length,
                checksum=xxhash.xxh3_64_intdigest(view[start:position]),
                shapes=draft.shapes,
                bounds=draft.bounds,
            )
        )
    return tuple(columns)
