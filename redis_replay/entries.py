"""One column as an entry of the packed directory, and back.

::

    [name, kind, dtype, offset, length, checksum, sizes]              format 1
    [name, kind, dtype, offset, length, checksum, sizes, extras]      format 2

``sizes`` is the shape that all rows have, or one shape per row; for cells the length in bytes that
all rows have, or one length per row. Rows that lack the field are in none of the lists. ``extras``
is there only where it says something:

=============  ====================================================================================
``present``    bitmap of the rows that have the field; all have it otherwise
``narrowed``   dtype the elements are stored in, or ``"bits"``; ``dtype`` otherwise
``zstd``       ``[bytes that the rows expand to, stored lengths of the rows]``
``blobs``      what several rows share, kept once before the rows, each at a multiple of 16:
               ``[kind, dtype, shape, bytes, stored bytes]``
``uses``       the blobs that all rows refer to, or those of each row
=============  ====================================================================================

Reading trusts nothing: every number is checked against the others before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final, TypeVar

from redis_replay.arrays import as_shape
from redis_replay.compression import MAX_EXPANDED_BYTES
from redis_replay.fields import BITS
from redis_replay.layout import (
    AS_IS,
    CELLS,
    Blob,
    Column,
    Storage,
    absent_rows,
    aligned,
    even_bounds,
    spread,
    spread_bounds,
)
from redis_replay.narrowing import packed_bytes

T = TypeVar("T")

_EXTRAS: Final = frozenset({"present", "narrowed", "zstd", "blobs", "uses"})


def entry_of(column: Column, checksum: int) -> list[Any]:
    """Return the entry of a column, of format 1 where that can say all there is to say."""
    place = [column.offset, column.length, checksum]
    entry = [column.name, column.kind, column.dtype, *place, _sizes(column)]
    return entry if column.is_plain else [*entry, _extras(column)]


def _sizes(column: Column) -> Any:
    storage = column.storage
    if column.kind == CELLS:
        bounds = column.bounds if storage.expanded is None else storage.expanded
        if isinstance(bounds, range):  # all rows are there and take the same
            return bounds.step
        return _once_if_equal(_dense(column, [b - a for a, b in pairwise(bounds)]))
    return column.shapes[0] if len(column.shapes) == 1 else _dense(column, column.shapes)


def _dense(column: Column, items: Sequence[T]) -> Sequence[T]:
    """Return the items of the rows that have the field."""
    absent = column.storage.absent
    return [item for row, item in enumerate(items) if row not in absent] if absent else items


def _once_if_equal(lengths: Sequence[int]) -> int | Sequence[int]:
    return lengths[0] if lengths.count(lengths[0]) == len(lengths) else lengths


def _extras(column: Column) -> dict[str, Any]:
    storage, extras = column.storage, dict[str, Any]()
    rows = range(len(column.bounds) - 1)
    if storage.absent:
        extras["present"] = _bitmap(_dense(column, rows), len(rows))
    if storage.narrowed:
        extras["narrowed"] = storage.narrowed
    if storage.expanded is not None:
        stored = _dense(column, [b - a for a, b in pairwise(column.bounds)])
        extras["zstd"] = [storage.expanded[-1], _once_if_equal(stored)]
    if storage.blobs:
        extras["blobs"] = [
            [blob.kind, blob.dtype, blob.shape, blob.expanded, blob.length]
            for blob in storage.blobs
        ]
        uses = storage.uses
        extras["uses"] = uses if len(uses) == 1 else _dense(column, uses)
    return extras


def read_entry(entry: Any, *, row_count: int, directory_format: int) -> tuple[Column, int]:
    """Return the column of an entry and its checksum.

    Raises:
        ValueError, TypeError, OverflowError: The entry is malformed or contradicts itself.
    """
    name, kind, dtype, offset, length, checksum, sizes, *more = entry
    if not type(name) is type(kind) is type(dtype) is str:
        raise ValueError("a column has a malformed name, kind or dtype")
    if not type(offset) is type(length) is type(checksum) is int or min(offset, length) < 0:
        raise ValueError(f"column {name!r} has a malformed offset, length or checksum")
    if more:
        if directory_format == 1 or len(more) > 1 or not isinstance(more[0], dict):
            raise ValueError(f"column {name!r} says more than its format allows")
        extras: dict[str, Any] = more[0]
        column = Column(name, kind, dtype, offset, length, (), ())
        return _read_special(column, sizes, extras, row_count=row_count), checksum
    shapes, bounds = _read_sizes(sizes, kind, row_count, length, "")
    return Column(name, kind, dtype, offset, length, shapes, bounds), checksum


def _read_special(column: Column, sizes: Any, extras: dict[str, Any], *, row_count: int) -> Column:
    if not extras.keys() <= _EXTRAS:
        raise ValueError(f"column {column.name!r} says {sorted(extras)}, which is not known")
    present = _present_rows(extras.get("present"), row_count)
    narrowed = extras.get("narrowed", "")
    blobs, first = _read_blobs(extras.get("blobs", []), compressed="zstd" in extras)
    if type(narrowed) is not str or (narrowed if column.kind == CELLS else blobs):
        raise ValueError(f"column {column.name!r} has narrowed cells or arrays that share values")
    total, stored = column.length - first, None
    if "zstd" in extras:
        total, stored = extras["zstd"]
        _check_expansion(total, blobs)
    shapes, dense = _read_sizes(sizes, column.kind, len(present), total, narrowed)
    kept = dense if stored is None else _stored_bounds(stored, dense=dense)
    bounds = spread_bounds(kept, present=present, row_count=row_count, first=first)
    if bounds[-1] != column.length:
        raise ValueError(f"the stored rows of column {column.name!r} do not fill it")
    storage = Storage(
        absent=absent_rows(present, row_count),
        narrowed=narrowed,
        expanded=None
        if stored is None
        else spread_bounds(dense, present=present, row_count=row_count),
        blobs=blobs,
        uses=_read_uses(extras.get("uses", []), blobs, present=present, row_count=row_count),
    )
    shapes = spread(shapes, present=present, row_count=row_count, absent=())
    return replace(
        column, shapes=shapes, bounds=bounds, storage=AS_IS if storage == AS_IS else storage
    )


def _bitmap(rows: Iterable[int], row_count: int) -> bytes:
    packed = bytearray(packed_bytes(row_count))
    for row in rows:
        packed[row // 8] |= 1 << row % 8
    return bytes(packed)


def _present_rows(bitmap: Any, row_count: int) -> Sequence[int]:
    if bitmap is None:
        return range(row_count)
    if type(bitmap) is bytes and len(bitmap) == packed_bytes(row_count):
        present = [row for row in range(row_count) if bitmap[row // 8] >> row % 8 & 1]
        if 0 < len(present) < row_count and bitmap == _bitmap(present, row_count):
            return present
    raise ValueError("a column has a malformed list of the rows that have it")


def _check_expansion(total: Any, blobs: Sequence[Blob]) -> None:
    if type(total) is not int or total < 0:
        raise ValueError("a compressed column has a malformed size")
    expanded = total + sum(blob.expanded for blob in blobs)
    if expanded > MAX_EXPANDED_BYTES:
        raise ValueError(
            f"a compressed column would expand to {expanded} bytes, and {MAX_EXPANDED_BYTES} are "
            "the most"
        )


def _stored_bounds(stored: Any, *, dense: Sequence[int]) -> Sequence[int]:
    lengths = [stored] * (len(dense) - 1) if type(stored) is int else list(stored)
    for length, (start, stop) in zip(lengths, pairwise(dense), strict=True):
        if type(length) is not int or length < 0 or (length == 0) != (start == stop):
            raise ValueError("a compressed row has a malformed length")
    return tuple(accumulate(lengths, initial=0))


def _read_blobs(entries: Any, *, compressed: bool) -> tuple[tuple[Blob, ...], int]:
    """Return the blobs of a column, and where its rows begin."""
    blobs: list[Blob] = []
    at = 0
    for kind, dtype, shape, expanded, length in entries:
        if not type(kind) is type(dtype) is str or not type(expanded) is type(length) is int:
            raise ValueError("a shared value has a malformed kind or length")
        if min(expanded, length) < 1 or not (compressed or expanded == length):
            raise ValueError("a shared value has a malformed length")
        blobs.append(Blob(kind, dtype, as_shape(shape), at, length, expanded))
        at = aligned(at + length)
    return tuple(blobs), at


def _read_uses(
    uses: Any, blobs: Sequence[Blob], *, present: Sequence[int], row_count: int
) -> tuple[tuple[int, ...], ...]:
    found = tuple(tuple(numbers) for numbers in uses)
    if len(found) not in ((1, len(present)) if blobs else (0,)):
        raise ValueError("a column has a malformed list of what its rows share")
    if any(type(n) is not int or not 0 <= n < len(blobs) for numbers in found for n in numbers):
        raise ValueError("a row refers to a shared value that is not there")
    return spread(found, present=present, row_count=row_count, absent=())


def _read_sizes(
    sizes: Any, kind: str, count: int, total: int, narrowed: str
) -> tuple[tuple[tuple[int, ...], ...], Sequence[int]]:
    """Return shapes and bounds of ``count`` rows that take ``total`` bytes together."""
    shapes: tuple[tuple[int, ...], ...] = ()
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
) -> tuple[tuple[tuple[int, ...], ...], Sequence[int]]:
    """Return shapes and bounds; the width of an element follows from the length of the column.

    Where it does not follow, the bounds do not end where the column does.
    """
    if not (sizes and type(sizes[0]) is list):
        shape = as_shape(sizes)
        elements = math.prod(shape)
        item_bytes = total // (elements * count) if elements else 0
        return (shape,), even_bounds(count, _row_bytes(elements, item_bytes, narrowed))
    shapes = tuple([as_shape(shape) for shape in sizes])
    counts = [math.prod(shape) for shape in shapes]
    item_bytes = total // sum(counts) if any(counts) else 0
    lengths = [_row_bytes(elements, item_bytes, narrowed) for elements in counts]
    return shapes, tuple(accumulate(lengths, initial=0))


def _row_bytes(elements: int, item_bytes: int, narrowed: str) -> int:
    return packed_bytes(elements) if narrowed == BITS else elements * item_bytes
