"""A group's rows as one byte string with a directory, and back.

`encode_group` lays the rows out column by column: a field whose cells are arrays of one kind and
dtype becomes their raw bytes, everything else one encoded cell per row. One string per group is
written at once, and one column, or one row of one column, can be read alone (`directory`).

Nothing of the caller's memory is kept: bytes are copied once, compactly, so a slice does not drag
its base along and a reused buffer changes nothing that was stored. A large value that several rows
hold is stored once (`sharing`). Decoding copies nothing by default: arrays are read-only views over
the buffer that was received, which lives as long as one of them does; `forms` has the other ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import xxhash

from redis_replay.arrays import Buffer, HandOut, read_only
from redis_replay.blocks import joined
from redis_replay.codec import Value
from redis_replay.columns import ABSENT, decode_rows, whole_column
from redis_replay.directory import (
    ByteRange,
    Directory,
    directory_checksum,
    pack_directory,
    read_plan,
)
from redis_replay.drafts import draft_as_given, draft_column
from redis_replay.errors import PayloadCorrupted
from redis_replay.fields import AS_GIVEN, FieldOptions
from redis_replay.forms import ArrayForm, hand_out_as
from redis_replay.layout import Column, aligned
from redis_replay.rows import GroupCells, cells_of_rows, row_lengths, row_rewards

__all__ = [
    "ABSENT",
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
    "thrifty_chunk_bytes",
]

_Part = tuple[ByteRange, memoryview]
"""A part of a plan, and what was received for it."""

_WORTH_CUTTING_BYTES: Final = 256 * 1024
_WORTH_CUTTING: Final = 0.97
"""Part of the memory of one string that two must stay below."""

_STRING_OVERHEAD_BYTES: Final = 10
"""What the server adds to a large string before it allocates."""


@dataclass(slots=True)
class EncodedGroup:
    """A group ready to be written. Nobody changes one.

    Attributes:
        payload: All columns, as one string.
        directory: Packed `Directory`, to be kept apart from the payload; it has the checksums.
        payload_bytes: Length of the payload.
        fields: Names of all fields, in the order of the first row.
        lengths: Sequence length of each row (`row_lengths`).
        rewards: Reward of each row as a plain float, ``None`` without such a field (`row_rewards`).
    """

    payload: bytes | memoryview
    directory: bytes
    payload_bytes: int
    fields: tuple[str, ...]
    lengths: tuple[int, ...]
    rewards: tuple[float, ...] | None


def encode_group(
    group_id: str,
    rows: Sequence[Mapping[str, Value]],
    *,
    fields: Mapping[str, FieldOptions] | None = None,
) -> EncodedGroup:
    """Lay out the rows of one group; pure, and nothing is half done when it raises.

    Cells are stored as given; what `row_rewards` and `row_lengths` read from them comes on top.

    Args:
        group_id: Named in errors.
        rows: At least one row; a row may lack fields that others have.
        fields: How fields are stored, by name; those left out are stored as they are given.

    Raises:
        ValueError: No rows, too many, no fields, a field name that is empty or over 256 bytes, a
            length that is negative or beyond 64 bits, a reward that is not finite, a value that
            does not fit what its field is narrowed to.
        TypeError: A row is no mapping, a field name no text, a cell cannot be stored, a reward is
            not one number. The message names group, row and field path.
    """
    cells = cells_of_rows(group_id, rows=rows)
    rewards = row_rewards(cells)
    columns, payload = _laid_out(cells, fields or {})
    lengths = row_lengths(rows, cells=cells)
    directory = pack_directory(columns, _checksums(columns, payload), lengths=lengths)
    return EncodedGroup(
        payload=payload,
        directory=directory,
        payload_bytes=len(payload),
        fields=tuple(cells.columns),
        lengths=lengths,
        rewards=rewards,
    )


def decode_group(
    group_id: str,
    directory_bytes: bytes,
    payload: Buffer,
    *,
    select_fields: Sequence[str] | None = None,
    checksum: int | None = None,
    arrays: ArrayForm = "read_only",
) -> list[dict[str, Any]]:
    """Return the rows of a group, with all fields or the selected ones in their order.

    A field that a row lacks is no key of its dictionary.

    Args:
        group_id: Named in errors.
        directory_bytes: As written.
        payload: The whole payload, as received.
        select_fields: Fields wanted; the others are neither verified nor decoded.
        checksum: If given, the `directory_checksum` that the directory must have.
        arrays: The form in which arrays are handed out.

    Raises:
        PayloadCorrupted: Length, checksum or contents are not what was written.
        SchemaMismatch: A newer version of this package wrote the group.
        ValueError: A selected field does not exist; the message lists what does.
        ConfigurationError: A dtype needs a package that is not installed.
    """
    directory = Directory.from_bytes(directory_bytes, group_id=group_id, checksum=checksum)
    cells = decode_whole(
        directory, payload, fields=select_fields, group_id=group_id, hand_out=hand_out_as(arrays)
    )
    if not cells:
        return [{} for _ in range(directory.row_count)]
    rows = [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]
    for column in directory.select(select_fields):
        for index in column.storage.absent:
            del rows[index][column.name]
    return rows


def decode_whole(
    directory: Directory,
    payload: Buffer,
    *,
    fields: Sequence[str] | None = None,
    group_id: str | None = None,
    hand_out: HandOut = read_only,
) -> dict[str, list[Any]]:
    """Return the cells of a group of which the whole payload is at hand, all of them verified.

    A cell is `ABSENT` where the row lacks the field.

    Args:
        directory: Of the group.
        payload: All of it, as received.
        fields: Fields wanted, in their order; the others are neither verified nor decoded.
        group_id: Named in errors.
        hand_out: What becomes of each array (`forms`).

    Raises:
        PayloadCorrupted: It has another length, or a column is damaged.
        ValueError: No such field.
        ConfigurationError: A dtype or a form needs a package that is not installed.
    """
    columns, view = directory.with_checksums(fields), memoryview(payload)
    if hand_out is read_only:
        view = view.toreadonly()
    if view.nbytes != directory.payload_bytes:
        raise PayloadCorrupted(
            f"group {group_id!r}: {view.nbytes} payload bytes instead of {directory.payload_bytes}",
            group_id=group_id,
        )
    return {
        column.name: whole_column(
            column,
            checksum,
            view[column.offset : column.offset + column.length],
            group_id=group_id,
            hand_out=hand_out,
        )
        for column, checksum in columns
    }


def decode_columns(
    directory: Directory,
    buffers: Mapping[ByteRange, Buffer],
    *,
    fields: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    group_id: str | None = None,
    hand_out: HandOut = read_only,
) -> dict[str, list[Any]]:
    """Return cells from the ranges that `read_plan` asked for with the same fields and rows.

    Whole columns are verified; rows of a column are not (D33). A cell is `ABSENT` where the row
    lacks the field.

    Args:
        directory: Of the group.
        buffers: What was received for each range of the plan.
        fields: Fields wanted, all by default.
        rows: Rows wanted, in any order; the cells come in this order.
        group_id: Named in errors.
        hand_out: What becomes of each array (`forms`).

    Raises:
        PayloadCorrupted: A reply is shorter or longer than its range, or its contents are damaged.
        ValueError: A range of the plan was not received; no such field or row.
        ConfigurationError: A dtype or a form needs a package that is not installed.
    """
    received: dict[str, list[_Part]] = {}
    for part in read_plan(directory, fields=fields, rows=rows):
        view = _received(part, buffers, group_id)
        received.setdefault(part.field, []).append((part, view))
    result: dict[str, list[Any]] = {}
    for column, checksum in directory.with_checksums(fields):
        parts = received.get(column.name, [])
        if rows is None and parts:  # then one part is all of it
            result[column.name] = whole_column(
                column, checksum, parts[0][1], group_id=group_id, hand_out=hand_out
            )
            continue
        found = _cells_of_parts(column, checksum, parts, group_id, hand_out)
        wanted = range(directory.row_count) if rows is None else rows
        for row in wanted:
            if row not in found:  # a row without bytes
                [found[row]] = decode_rows(
                    column,
                    b"",
                    start=0,
                    rows=range(row, row + 1),
                    group_id=group_id,
                    hand_out=hand_out,
                )
        result[column.name] = [found[row] for row in wanted]
    return result


def _received(
    part: ByteRange, buffers: Mapping[ByteRange, Buffer], group_id: str | None
) -> memoryview:
    buffer = buffers.get(part)
    if buffer is None:
        raise ValueError(f"group {group_id!r}: nothing was received for {part}")
    view = memoryview(buffer)
    if view.nbytes != part.length:
        raise PayloadCorrupted(
            f"group {group_id!r}, field {part.field!r}: {view.nbytes} bytes instead of "
            f"{part.length}",
            group_id=group_id,
            field=part.field,
        )
    return view


def _cells_of_parts(
    column: Column,
    checksum: int,
    parts: Sequence[_Part],
    group_id: str | None,
    hand_out: HandOut,
) -> dict[int, Any]:
    """Return the cells of the rows whose bytes were received, by row."""
    found: dict[int, Any] = {}
    blobs: dict[int, Buffer] = {part.blob: view for part, view in parts if part.blob is not None}
    for part, view in parts:
        if part.whole_column:
            cells = whole_column(column, checksum, view, group_id=group_id, hand_out=hand_out)
            found.update(enumerate(cells))
        elif part.blob is None:
            rows = range(part.start_row, part.stop_row)
            cells = decode_rows(
                column,
                view,
                start=0,
                rows=rows,
                group_id=group_id,
                blobs=blobs,
                hand_out=hand_out,
            )
            found.update(zip(rows, cells, strict=True))
    return found


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


def thrifty_chunk_bytes(payload_bytes: int, *, most: int) -> int:
    """Return the length of chunks in which a payload wastes little of the server's memory.

    The server's allocator has four sizes from one power of two to the next, so one string may take
    a fifth more than it is long. A large payload becomes one string that fills its size, and a rest
    for which that matters little.
    """
    if not _WORTH_CUTTING_BYTES <= payload_bytes <= most:
        return most
    whole = _allocated_bytes(payload_bytes)
    step = 1 << (whole - 1).bit_length() - 3
    first = whole - step - _STRING_OVERHEAD_BYTES
    in_two = whole - step + _allocated_bytes(payload_bytes - first)
    return first if in_two < _WORTH_CUTTING * whole else most


def _allocated_bytes(length: int) -> int:
    """Return what the server's allocator takes for a string."""
    needed = length + _STRING_OVERHEAD_BYTES
    step = 1 << max(0, (needed - 1).bit_length() - 3)
    return -(-needed // step) * step


def _laid_out(
    cells: GroupCells, fields: Mapping[str, FieldOptions]
) -> tuple[tuple[Column, ...], bytes | memoryview]:
    """Return the columns, and the bytes of all of them."""
    columns: list[Column] = []
    pieces: list[Any] = []
    end = 0
    for name, given in cells.columns.items():
        offset = aligned(end)
        if offset > end:
            pieces.append(bytes(offset - end))
        is_usual = name not in fields and name not in cells.present
        draft = draft_as_given(name, given, offset=offset) if is_usual else None
        column, stored = draft or draft_column(
            cells.of(name), offset=offset, options=fields.get(name, AS_GIVEN)
        )
        pieces += stored
        columns.append(column)
        end = offset + column.length
    return tuple(columns), joined(pieces, size=end)


def _checksums(columns: Sequence[Column], payload: bytes | memoryview) -> tuple[int, ...]:
    """Return the checksum of the bytes of each column that were really laid out."""
    view = memoryview(payload)
    stored = [view[column.offset : column.offset + column.length] for column in columns]
    return tuple(map(xxhash.xxh3_64_intdigest, stored))
