"""The directory of a group's payload: which bytes are which rows of which field.

A payload is one byte string, laid out column by column in the order of the fields. Each column
starts at the next multiple of 16 and holds its rows back to back: the raw bytes of arrays that
share one dtype, or one encoded cell per row. The directory travels apart from it (in the group's
record) as msgpack::

    [format, rows, payload bytes, [[name, kind, dtype, offset, length, checksum, sizes], ...]]

``sizes`` is the shape that all rows have, or one shape per row; for cells the length in bytes that
all rows have, or one length per row. ``checksum`` is the xxh3_64 of the column's bytes. A read of
less than a whole column is therefore unverified, and `ByteRange.whole_column` says so.

Reading trusts nothing: every number is checked against the others before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

import msgpack
import xxhash

from redis_replay.arrays import ARRAY_ALIGNMENT_BYTES, as_shape
from redis_replay.errors import PayloadCorrupted

DIRECTORY_FORMAT: Final = 1
MAX_ROWS: Final = 65_536
MAX_FIELD_NAME_BYTES: Final = 256
CELLS: Final = "cells"
"""The kind of a column that holds one encoded value per row."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a payload that a reader needs, never empty.

    Attributes:
        field: The column they belong to.
        start_row: First row in them.
        stop_row: Row behind the last one.
        offset: First byte in the payload.
        length: Number of bytes, at least 1.
        whole_column: Whether the column's checksum will be verified.
    """

    field: str
    start_row: int
    stop_row: int
    offset: int
    length: int
    whole_column: bool


@dataclass(frozen=True, slots=True)
class Column:
    """One field of all rows.

    Attributes:
        name: The field.
        kind: `CELLS`, or the name of an `arrays.ArrayKind`.
        dtype: Stored dtype name, empty for cells.
        offset: First byte in the payload.
        length: Bytes of all rows.
        checksum: xxh3_64 of them.
        shapes: One shape per row, or a single one that all rows have; empty for cells.
        bounds: Row ``i`` is bytes ``bounds[i]`` to ``bounds[i + 1]`` of the column.
    """

    name: str
    kind: str
    dtype: str
    offset: int
    length: int
    checksum: int
    shapes: tuple[tuple[int, ...], ...]
    bounds: Sequence[int]

    def shape_of(self, row: int) -> tuple[int, ...]:
        """Return the shape of one row's array."""
        return self.shapes[0] if len(self.shapes) == 1 else self.shapes[row]

    def as_wire(self) -> list[Any]:
        """Return the entry of the packed directory."""
        sizes: Any
        if self.kind == CELLS:
            lengths = [stop - start for start, stop in pairwise(self.bounds)]
            sizes = lengths[0] if lengths.count(lengths[0]) == len(lengths) else lengths
        else:
            sizes = self.shapes[0] if len(self.shapes) == 1 else self.shapes
        place = [self.offset, self.length, self.checksum]
        return [self.name, self.kind, self.dtype, *place, sizes]


@dataclass(frozen=True, slots=True)
class Directory:
    """All columns of one payload.

    Attributes:
        row_count: Rows of the group.
        payload_bytes: Length of the whole payload.
        columns: In the order of the fields, which is the order of the bytes.
    """

    row_count: int
    payload_bytes: int
    columns: tuple[Column, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all fields, in the order in which they were given."""
        return tuple(column.name for column in self.columns)

    def select(self, fields: Sequence[str] | None) -> tuple[Column, ...]:
        """Return the columns of these fields in this order, all of them for ``None``.

        Raises:
            ValueError: A field is named that the payload has not; the message lists what it has.
        """
        if fields is None:
            return self.columns
        by_name = {column.name: column for column in self.columns}
        unknown = [name for name in fields if name not in by_name]
        if unknown:
            raise ValueError(
                f"no field {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(map(repr, by_name))}"
            )
        return tuple(by_name[name] for name in dict.fromkeys(fields))

    def to_bytes(self) -> bytes:
        """Return the packed directory."""
        return msgpack.packb(
            [
                DIRECTORY_FORMAT,
                self.row_count,
                self.payload_bytes,
                [column.as_wire() for column in self.columns],
            ]
        )

    @classmethod
    def from_bytes(
        cls, encoded: bytes, *, group_id: str | None = None, checksum: int | None = None
    ) -> Directory:
        """Read a packed directory.

        Args:
            encoded: What `to_bytes` returned.
            group_id: Named in errors.
            checksum: If given, the `directory_checksum` that the bytes must have.

        Raises:
            PayloadCorrupted: The bytes are damaged or contradict themselves.
        """
        if checksum is not None and checksum != directory_checksum(encoded):
            raise PayloadCorrupted(
                f"group {group_id!r}: the payload directory fails its checksum", group_id=group_id
            )
        try:
            return cls(*_read_directory(encoded))
        except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
            raise PayloadCorrupted(
                f"group {group_id!r}: unreadable payload directory: {error}", group_id=group_id
            ) from error


def directory_checksum(encoded: bytes) -> int:
    """Return the xxh3_64 of a packed directory; it covers all columns through their checksums."""
    return xxhash.xxh3_64_intdigest(encoded)


def aligned(offset: int) -> int:
    """Return the next offset at which a column may start."""
    return offset + -offset % ARRAY_ALIGNMENT_BYTES


def even_bounds(row_count: int, row_bytes: int) -> Sequence[int]:
    """Return the bounds of rows that all take the same number of bytes."""
    if row_bytes:
        return range(0, row_count * row_bytes + 1, row_bytes)
    return (0,) * (row_count + 1)


def read_plan(
    directory: Directory,
    *,
    fields: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
) -> list[ByteRange]:
    """Return the bytes to read for these fields and rows, all of them by default.

    Neighbouring rows of one column become one range. Rows and columns without bytes are left out,
    because GETRANGE cannot ask for nothing: length 0 at offset 0 returns everything.

    Raises:
        ValueError: No such field, or no such row.
    """
    plan: list[ByteRange] = []
    columns = directory.select(fields)
    runs = [(0, directory.row_count)] if rows is None else list(_runs(directory, rows=rows))
    for column in columns:
        for start_row, stop_row in runs:
            start, stop = column.bounds[start_row], column.bounds[stop_row]
            if start == stop:
                continue
            plan.append(
                ByteRange(
                    field=column.name,
                    start_row=start_row,
                    stop_row=stop_row,
                    offset=column.offset + start,
                    length=stop - start,
                    whole_column=stop - start == column.length,
                )
            )
    return plan


def _runs(directory: Directory, *, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the half-open runs of neighbouring rows, each row once, upwards."""
    wanted = sorted(set(rows))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < directory.row_count:
        raise ValueError(f"rows {wanted} are not all between 0 and {directory.row_count - 1}")
    start = 0
    for position in range(1, len(wanted) + 1):
        if position == len(wanted) or wanted[position] != wanted[position - 1] + 1:
            yield wanted[start], wanted[position - 1] + 1
            start = position


def _read_directory(encoded: bytes) -> tuple[int, int, tuple[Column, ...]]:
    unpacked: Any = msgpack.unpackb(encoded)
    directory_format, row_count, payload_bytes, entries = unpacked
    if directory_format != DIRECTORY_FORMAT:
        raise ValueError(f"format {directory_format!r} instead of {DIRECTORY_FORMAT}")
    if type(row_count) is not int or not 1 <= row_count <= MAX_ROWS:
        raise ValueError(f"{row_count!r} rows")
    columns: list[Column] = []
    position = 0
    for entry in entries:
        column = _read_column(entry, row_count=row_count)
        if column.offset != aligned(position):
            raise ValueError(f"column {column.name!r} starts at {column.offset}")
        position = column.offset + column.length
        columns.append(column)
    if type(payload_bytes) is not int or payload_bytes != position:
        raise ValueError(f"the columns end at {position}, the payload at {payload_bytes!r}")
    if not columns or len({column.name for column in columns}) != len(columns):
        raise ValueError("no fields, or one of them twice")
    return row_count, payload_bytes, tuple(columns)


def _read_column(entry: Any, *, row_count: int) -> Column:
    name, kind, dtype, offset, length, checksum, sizes = entry
    if not type(name) is type(kind) is type(dtype) is str:
        raise ValueError("a column has a malformed name, kind or dtype")
    if not type(offset) is type(length) is type(checksum) is int or min(offset, length) < 0:
        raise ValueError(f"column {name!r} has a malformed offset, length or checksum")
    shapes: tuple[tuple[int, ...], ...] = ()
    bounds: Sequence[int]
    if kind == CELLS:
        bounds = _cell_bounds(sizes, row_count=row_count, length=length)
    else:
        shapes, bounds = _array_bounds(sizes, row_count=row_count, length=length)
    if bounds[-1] != length or len(bounds) != row_count + 1:
        raise ValueError(f"the rows of column {name!r} do not fill it")
    return Column(name, kind, dtype, offset, length, checksum, shapes, bounds)


def _cell_bounds(sizes: Any, *, row_count: int, length: int) -> Sequence[int]:
    shared = type(sizes) is int
    lengths: tuple[Any, ...] = (sizes,) if shared else tuple(sizes)
    if any(type(cell) is not int or not 1 <= cell <= length for cell in lengths):
        raise ValueError("a cell has a malformed length")
    if shared:
        return even_bounds(row_count, lengths[0])
    return tuple(accumulate(lengths, initial=0))


def _array_bounds(
    sizes: Any, *, row_count: int, length: int
) -> tuple[tuple[tuple[int, ...], ...], Sequence[int]]:
    """Return shapes and bounds; the width of an element follows from the length of the column.

    Where it does not follow, the bounds do not end where the column does.
    """
    per_row = bool(sizes) and type(sizes[0]) is list
    shapes = tuple(as_shape(shape) for shape in sizes) if per_row else (as_shape(sizes),)
    counts = [math.prod(shape) for shape in shapes]
    total = sum(counts) if per_row else counts[0] * row_count
    item_bytes = length // total if total else 0
    if not per_row:
        return shapes, even_bounds(row_count, counts[0] * item_bytes)
    return shapes, tuple(accumulate((count * item_bytes for count in counts), initial=0))
