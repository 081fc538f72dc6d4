"""One column of a payload, read: its bytes verified, and turned into the cells of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any, Final

import numpy as np
import xxhash

from redis_replay.arrays import (
    ARRAY,
    MAX_DIMENSIONS,
    Array,
    Buffer,
    HandOut,
    kind_named,
    read_only,
    view_over,
)
from redis_replay.codec import value_decoder
from redis_replay.compression import expander
from redis_replay.dtypes import dtype_named
from redis_replay.errors import PayloadCorrupted
from redis_replay.layout import BYTES, CELLS, Column
from redis_replay.narrowing import widened


class _Absent(Enum):
    ABSENT = "absent"


ABSENT: Final = _Absent.ABSENT
"""Stands in a list of cells for a row that lacks the field."""


def verify_column(column: Column, checksum: int, stored: Buffer, *, group_id: str | None) -> None:
    """Compare the bytes of a whole column with their checksum.

    Raises:
        PayloadCorrupted: They fail their checksum.
    """
    if xxhash.xxh3_64_intdigest(stored) != checksum:
        raise PayloadCorrupted(
            f"group {group_id!r}, field {column.name!r}: the stored bytes fail their checksum",
            group_id=group_id,
            field=column.name,
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
            return _raw_arrays(column, buffer, start=start, rows=rows, hand_out=hand_out)
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
    except (PayloadCorrupted, ValueError, OverflowError) as error:
        where = f"group {group_id!r}" if row is None else f"group {group_id!r}, row {row}"
        what = f": {error}" if decode is not None else f", field {column.name!r}: {error}"
        raise PayloadCorrupted(
            where + what,
            group_id=group_id,
            field=column.name,
            row=row,
        ) from error


def _raw_arrays(
    column: Column, buffer: Buffer, *, start: int, rows: range, hand_out: HandOut
) -> list[Any]:
    """Return arrays over the buffer; the width of their elements is checked against the rows."""
    kind, dtype = kind_named(column.kind), dtype_named(column.dtype)
    first = column.bounds[rows.start]
    count, rest = divmod(column.bounds[rows.stop] - first, dtype.itemsize)
    if rest:
        raise ValueError(f"its bytes are not a number of {dtype}")
    elements = view_over(buffer, dtype=dtype, shape=(count,), start=start)
    if hand_out is read_only:
        elements = read_only(elements)  # then so are all views of it
    arrays: list[Array]
    if len(column.shapes) == 1 and 0 < len(column.shapes[0]) < MAX_DIMENSIONS:
        arrays = list(elements.reshape(len(rows), *column.shapes[0]))
    else:
        width, bounds = dtype.itemsize, column.bounds[rows.start : rows.stop + 1]
        arrays = [
            elements[(begin - first) // width : (end - first) // width].reshape(
                column.shape_of(row)
            )
            for row, (begin, end) in zip(rows, pairwise(bounds), strict=True)
        ]
    if kind is ARRAY and hand_out is read_only:
        return arrays
    return [kind.restored(array, hand_out) for array in arrays]


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
