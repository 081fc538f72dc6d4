"""Directories of format 1 and 2, which are read for ever and no longer written.

::

    [format, rows, payload bytes, [entry, ...]]

    [name, kind, dtype, offset, length, checksum, sizes]              format 1
    [name, kind, dtype, offset, length, checksum, sizes, extras]      format 2

``sizes`` is the shape that all rows have, or one shape per row; for cells the length in bytes that
all rows have, or one length per row. Rows that lack the field are in none of the lists. ``extras``
are those of `extras`, with ``zstd`` as ``[bytes that the rows expand to, stored lengths]``, or a
single length where all are equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from redis_replay.arrays import as_shape
from redis_replay.extras import Shapes, SpecialColumn
from redis_replay.fields import BITS
from redis_replay.layout import CELLS, Column, Layout, aligned, check_names, even_bounds
from redis_replay.narrowing import packed_bytes


def read_entries(
    directory_format: int, row_count: int, payload_bytes: Any, entries: Any
) -> tuple[Layout, tuple[int, ...]]:
    """Return the layout of a directory, and the checksums of its columns.

    Raises:
        ValueError, TypeError, OverflowError: It is malformed or contradicts itself.
    """
    columns: list[Column] = []
    checksums: list[int] = []
    position = 0
    for entry in entries:
        column, checksum = _read_entry(entry, row_count, directory_format)
        if column.offset != aligned(position):
            raise ValueError(f"column {column.name!r} starts at {column.offset}")
        position = column.offset + column.length
        columns.append(column)
        checksums.append(checksum)
    if type(payload_bytes) is not int or payload_bytes != position:
        raise ValueError(f"the columns end at {position}, the payload at {payload_bytes!r}")
    fields = tuple([column.name for column in columns])
    check_names(fields)
    return Layout(row_count, position, fields, tuple(columns)), tuple(checksums)


def _read_entry(entry: Any, row_count: int, directory_format: int) -> tuple[Column, int]:
    name, kind, dtype, offset, length, checksum, sizes, *more = entry
    if not type(name) is type(kind) is type(dtype) is str:
        raise ValueError("a column has a malformed name, kind or dtype")
    if not type(offset) is type(length) is type(checksum) is int or min(offset, length) < 0:
        raise ValueError(f"column {name!r} has a malformed offset, length or checksum")
    if not more:
        shapes, bounds = _read_sizes(sizes, kind, row_count, length, "")
        return Column(name, kind, dtype, offset, length, shapes, bounds), checksum
    if directory_format == 1 or len(more) > 1 or not isinstance(more[0], dict):
        raise ValueError(f"column {name!r} says more than its format allows")
    extras: dict[str, Any] = more[0]
    special = SpecialColumn(name, kind, extras, row_count=row_count)
    count, total, stored = len(special.present), length - special.first, None
    if "zstd" in extras:
        total, lengths = extras["zstd"]
        special.check_expansion(total)
        stored = (lengths,) * count if type(lengths) is int else lengths
    shapes, bounds = _read_sizes(sizes, kind, count, total, special.narrowed)
    column = special.column(dtype, offset, shapes=shapes, bounds=bounds, stored=stored)
    if column.length != length:
        raise ValueError(f"the stored rows of column {name!r} do not fill it")
    return column, checksum


def _read_sizes(
    sizes: Any, kind: str, count: int, total: int, narrowed: str
) -> tuple[Shapes, Sequence[int]]:
    """Return shapes and bounds of ``count`` rows that take ``total`` bytes together."""
    shapes: Shapes = ()
    if kind == CELLS:
        bounds = _cell_bounds(sizes, count, total)
    else:
        shapes, bounds = _array_bounds(sizes, count, total, narrowed)
    if bounds[-1] != total or len(bounds) != count + 1:
        raise ValueError("the rows of a column do not fill it")
    return shapes, bounds


def _cell_bounds(sizes: Any, count: int, total: int) -> Sequence[int]:
    shared = type(sizes) is int
    lengths: tuple[Any, ...] = (sizes,) if shared else tuple(sizes)
    if any(type(cell) is not int or not 1 <= cell <= total for cell in lengths):
        raise ValueError("a cell has a malformed length")
    if shared:
        return even_bounds(count, lengths[0])
    return tuple(accumulate(lengths, initial=0))


def _array_bounds(
    sizes: Any, count: int, total: int, narrowed: str
) -> tuple[Shapes, Sequence[int]]:
    """Return shapes and bounds; the width of an element follows from the length of the column.

    Where it does not follow, the bounds do not end where the column does.
    """
    if not (sizes and type(sizes[0]) is tuple):
        shape = as_shape(sizes)
        elements = math.prod(shape)
        item_bytes = total // (elements * count) if elements else 0
        return (shape,), even_bounds(count, row_bytes(elements, item_bytes, narrowed))
    shapes = tuple([as_shape(shape) for shape in sizes])
    counts = [math.prod(shape) for shape in shapes]
    item_bytes = total // sum(counts) if any(counts) else 0
    lengths = [row_bytes(elements, item_bytes, narrowed) for elements in counts]
    return shapes, tuple(accumulate(lengths, initial=0))


def row_bytes(elements: int, item_bytes: int, narrowed: str) -> int:
    """Return the bytes of a row of so many elements."""
    return packed_bytes(elements) if narrowed == BITS else elements * item_bytes
