"""One column of a payload: its rows as bytes, and the bytes as rows.

Cells that are arrays of one kind and one dtype become their raw bytes, back to back, whatever their
shapes. All other columns hold one encoded value per row, arrays of mixed dtypes included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import xxhash

from redis_replay.arrays import (
    MAX_DIMENSIONS,
    Array,
    Buffer,
    dtype_name,
    dtype_named,
    kind_named,
    kind_of,
    view_over,
)
from redis_replay.codec import Value, decode_value, value_encoder
from redis_replay.directory import CELLS, Column, even_bounds
from redis_replay.errors import PayloadCorrupted


@dataclass(frozen=True, slots=True)
class ColumnDraft:
    """A column that has no place in the payload yet.

    The attributes are those of `Column`; ``pieces`` are its rows, one contiguous buffer each.
    """

    name: str
    kind: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    bounds: Sequence[int]
    pieces: list[Array] | list[bytes]

    @property
    def length(self) -> int:
        """Bytes of all rows."""
        return self.bounds[-1]


def draft_column(group_id: str, *, name: str, cells: Sequence[Value]) -> ColumnDraft:
    """Lay out one field of all rows; the pieces of arrays still refer to the caller's memory.

    Raises:
        TypeError: A cell cannot be stored. The message names group, row and field path.
    """
    return _array_draft(group_id, name, cells) or _cell_draft(group_id, name, cells)


def verify_column(column: Column, buffer: Buffer, *, start: int, group_id: str | None) -> None:
    """Check the bytes of a whole column, which begin at ``start`` in the buffer.

    Raises:
        PayloadCorrupted: They fail their checksum.
    """
    stored = memoryview(buffer)[start : start + column.length]
    if xxhash.xxh3_64_intdigest(stored) != column.checksum:
        raise PayloadCorrupted(
            f"group {group_id!r}, field {column.name!r}: the stored bytes fail their checksum",
            group_id=group_id,
        )


def decode_rows(
    column: Column, buffer: Buffer, *, start: int, rows: range, group_id: str | None
) -> list[Any]:
    """Return the cells of neighbouring rows; the first one begins at ``start`` in the buffer.

    Raises:
        PayloadCorrupted: The bytes are not such cells.
        ConfigurationError: An array needs a package that is not installed.
    """
    if column.kind == CELLS:
        return _decoded_cells(column, buffer, start=start, rows=rows, group_id=group_id)
    try:
        return _decoded_arrays(column, buffer, start=start, rows=rows)
    except (ValueError, OverflowError) as error:
        raise PayloadCorrupted(
            f"group {group_id!r}, field {column.name!r}: {error}", group_id=group_id
        ) from error


def _array_draft(group_id: str, name: str, cells: Sequence[Value]) -> ColumnDraft | None:
    """Lay out a field of arrays, ``None`` if its cells are not of one array kind and dtype."""
    kind = kind_of(cells[0])
    if kind is None or any(kind_of(cell) is not kind for cell in cells):
        return None
    arrays: list[Array] = [kind.to_array(cell) for cell in cells]
    dtype = arrays[0].dtype
    if any(array.dtype != dtype for array in arrays):
        return None
    shapes = tuple(array.shape for array in arrays)
    bounds: Sequence[int]
    if shapes.count(shapes[0]) == len(shapes):
        shapes, bounds = shapes[:1], even_bounds(len(arrays), arrays[0].nbytes)
    else:
        bounds = tuple(accumulate((array.nbytes for array in arrays), initial=0))
    return ColumnDraft(
        name=name,
        kind=kind.name,
        dtype=dtype_name(dtype, path=f"group {group_id!r}: {name}"),
        shapes=shapes,
        bounds=bounds,
        pieces=[
            array if array.flags.c_contiguous else np.ascontiguousarray(array) for array in arrays
        ],
    )


def _cell_draft(group_id: str, name: str, cells: Sequence[Value]) -> ColumnDraft:
    encode = value_encoder()
    encoded: list[bytes] = []
    for row, cell in enumerate(cells):
        try:
            encoded.append(encode(cell, name))
        except TypeError as error:
            raise TypeError(f"group {group_id!r}, row {row}: {error}") from None
    return ColumnDraft(
        name, CELLS, "", (), tuple(accumulate(map(len, encoded), initial=0)), encoded
    )


def _decoded_cells(
    column: Column, buffer: Buffer, *, start: int, rows: range, group_id: str | None
) -> list[Any]:
    bounds, view = column.bounds, memoryview(buffer)
    shift = start - bounds[rows.start]
    cells: list[Any] = []
    for row in rows:
        try:
            cell = decode_value(view[bounds[row] + shift : bounds[row + 1] + shift], column.name)
        except PayloadCorrupted as error:
            raise PayloadCorrupted(
                f"group {group_id!r}, row {row}: {error}", group_id=group_id
            ) from error
        cells.append(cell)
    return cells


def _decoded_arrays(column: Column, buffer: Buffer, *, start: int, rows: range) -> list[Any]:
    kind, dtype = kind_named(column.kind), dtype_named(column.dtype)
    first = column.bounds[rows.start]
    count, rest = divmod(column.bounds[rows.stop] - first, dtype.itemsize)
    if rest:
        raise ValueError(f"its bytes are not a number of {dtype}")
    elements = view_over(buffer, dtype=dtype, shape=(count,), start=start)
    if len(column.shapes) == 1 and 0 < len(column.shapes[0]) < MAX_DIMENSIONS:
        stacked = elements.reshape(len(rows), *column.shapes[0])
        return [kind.from_array(row) for row in stacked]
    edges = [(edge - first) // dtype.itemsize for edge in column.bounds[rows.start : rows.stop + 1]]
    return [
        kind.from_array(elements[begin:end].reshape(column.shape_of(row)))
        for row, (begin, end) in zip(rows, pairwise(edges), strict=True)
    ]
