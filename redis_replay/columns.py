"""One column of a payload, read: its bytes verified, and turned into the cells of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np
import xxhash

from redis_replay.arrays import (
    ARRAY,
    MAX_DIMENSIONS,
    SCALAR,
    Array,
    Buffer,
    HandOut,
    kind_named,
    read_only,
    view_over,
)
from redis_replay.codec import decode_values, value_decoder
from redis_replay.compression import expander
from redis_replay.dtypes import dtype_named
from redis_replay.errors import PayloadCorrupted
from redis_replay.layout import AS_IS, BYTES, CELLS, Column
from redis_replay.narrowing import widened


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""Stands in a list of cells for a row that lacks the field."""

_VOID: Final = "V"
"""Scalars of this kind of dtype are views, and all others values of their own."""

_LONG_CELL_BYTES: Final = 16 * 1024
"""Cells this long are read one by one: together they would be copied once more."""

_NOT_CELLS: Final = (PayloadCorrupted, ValueError, OverflowError)


def whole_column(
    column: Column,
    checksum: int,
    stored: memoryview,
    *,
    group_id: str | None,
    hand_out: HandOut = read_only,
) -> list[Any]:
    """Compare all bytes of a column with their checksum, and return the cells of all rows.

    Args:
        column: The column.
        checksum: xxh3_64 of its bytes.
        stored: All its bytes.
        group_id: Named in errors.
        hand_out: What becomes of each array.

    Raises:
        PayloadCorrupted: They fail their checksum, or are not such cells.
        ConfigurationError: An array needs a package that is not installed.
    """
    if xxhash.xxh3_64_intdigest(stored) != checksum:
        raise PayloadCorrupted(
            f"group {group_id!r}, field {column.name!r}: the stored bytes fail their checksum",
            group_id=group_id,
            field=column.name,
        )
    rows = range(len(column.bounds) - 1)
    is_raw = column.is_raw
    if is_raw or (column.storage is AS_IS and column.length <= _LONG_CELL_BYTES * len(rows)):
        try:
            if is_raw:
                return _raw_arrays(column, stored, rows, hand_out)
            return decode_values(stored, column.name, count=len(rows), hand_out=hand_out)
        except _NOT_CELLS:
            pass  # what is wrong is found below, row by row
    blobs: dict[int, Buffer] = {
        at: stored[blob.offset : blob.offset + blob.length]
        for at, blob in enumerate(column.storage.blobs)
    }
    return decode_rows(
        column,
        stored,
        start=column.bounds[0],
        rows=rows,
        group_id=group_id,
        blobs=blobs,
        hand_out=hand_out,
    )


def decode_rows(
    column: Column,
    buffer: Buffer,
    *,
    start: int,
    rows: range,
    group_id: str | None,
    blobs: Mapping[int, Buffer] | None = None,
    hand_out: HandOut = read_only,
) -> list[Any]:
    """Return the cells of neighbouring rows, `ABSENT` for rows that lack the field.

    Args:
        column: The rows belong to it.
        buffer: Holds their stored bytes.
        start: Where the first row begins in the buffer.
        rows: Numbers of the rows.
        group_id: Named in errors.
        blobs: Stored bytes of the shared values, by number; none of those left out may be needed.
        hand_out: What becomes of each array.

    Raises:
        PayloadCorrupted: The bytes are not such cells.
        ConfigurationError: An array needs a package that is not installed.
    """
    storage, expanded = column.storage, column.storage.expanded
    decode = restore = row = None
    try:
        if column.is_raw:
            return _raw_arrays(column, memoryview(buffer)[start:], rows, hand_out)
        expand = None if expanded is None else expander()
        if column.kind == CELLS:
            shared = _shared_values(column, blobs or {}, expand) if storage.blobs else ()
            decode = value_decoder(column.name, hand_out=hand_out, shared=shared)
        else:
            restore = _array_reader(column, hand_out)
        view, bounds, absent = memoryview(buffer), column.bounds, storage.absent
        shift = start - bounds[rows.start]
        cells: list[Any] = []
        for row in rows:
            if absent and row in absent:
                cells.append(ABSENT)
                continue
            stored: Buffer = view[bounds[row] + shift : bounds[row + 1] + shift]
            if expand is not None and expanded is not None:
                stored = expand(stored, expanded[row + 1] - expanded[row])
            if decode is not None:
                cells.append(decode(stored))
            elif restore is not None:
                cells.append(restore(stored, column.shape_of(row)))
        return cells
    except _NOT_CELLS as error:
        where = f"group {group_id!r}" if row is None else f"group {group_id!r}, row {row}"
        what = f": {error}" if decode is not None else f", field {column.name!r}: {error}"
        raise PayloadCorrupted(
            where + what,
            group_id=group_id,
            field=column.name,
            row=row,
        ) from error


def _raw_arrays(column: Column, stored: memoryview, rows: range, hand_out: HandOut) -> list[Any]:
    """Return arrays over the bytes of rows, of which there must be as many as these need."""
    kind, dtype = kind_named(column.kind), dtype_named(column.dtype)
    elements = np.frombuffer(stored, dtype) if stored else np.empty(0, dtype)
    if hand_out is read_only and elements.flags.writeable:
        elements = read_only(elements)  # then so are all views of it
    [shape, *others] = column.shapes
    is_whole = len(elements) == len(rows) and not (shape or others)
    if kind is SCALAR and is_whole and dtype.kind != _VOID:
        return list(elements)
    if not others and 0 < len(shape) < MAX_DIMENSIONS:
        arrays: list[Array] = list(elements.reshape(len(rows), *shape))
    else:
        arrays = _one_by_one(column, elements, rows)
    if kind is ARRAY and hand_out is read_only:
        return arrays
    return [kind.restored(array, hand_out) for array in arrays]


def _one_by_one(column: Column, elements: Array, rows: range) -> list[Array]:
    """Return the arrays of rows whose shapes differ, over their elements."""
    is_even = len(column.shapes) == 1
    shapes = column.shapes * len(rows) if is_even else column.shapes[rows.start : rows.stop]
    bounds = list(accumulate(map(math.prod, shapes), initial=0))
    if bounds[-1] != len(elements):
        raise ValueError(f"{len(elements)} elements are not rows of {bounds[-1]}")
    arrays = [elements[start:stop] for start, stop in pairwise(bounds)]
    if {1}.issuperset(map(len, shapes)):
        return arrays
    return [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]


def _array_reader(column: Column, hand_out: HandOut) -> Callable[[Buffer, tuple[int, ...]], Any]:
    """Return what makes an array of the expanded bytes of one row."""
    kind, dtype = kind_named(column.kind), dtype_named(column.dtype)
    narrowed = column.storage.narrowed

    def restore(content: Buffer, shape: tuple[int, ...]) -> Any:
        if narrowed:
            array = widened(content, name=narrowed, dtype=dtype, shape=shape)
        else:
            array = _exactly(content, dtype=dtype, shape=shape)
        return kind.restored(array, hand_out)

    return restore


def _shared_values(
    column: Column, blobs: Mapping[int, Buffer], expand: Callable[[Buffer, int], bytes] | None
) -> list[Any]:
    """Return the values that stand beside the cells, as `codec.value_decoder` takes them."""
    shared: list[Any] = [None] * len(column.storage.blobs)
    for number, stored in blobs.items():
        blob = column.storage.blobs[number]
        content = stored if expand is None else expand(stored, blob.expanded)
        if blob.kind == BYTES:
            shared[number] = bytes(content)
        else:
            array = _exactly(content, dtype=dtype_named(blob.dtype), shape=blob.shape)
            shared[number] = (kind_named(blob.kind), read_only(array))
    return shared


def _exactly(content: Buffer, *, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes hold no {shape} of {dtype}")
    return view_over(content, dtype=dtype, shape=shape)
