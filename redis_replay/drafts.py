"""One column of a payload, drafted: the cells of a field as bytes that have no place yet.

Cells that are arrays of one kind and one dtype become their raw bytes, back to back, whatever their
shapes. All other columns hold one encoded value per row, arrays of mixed dtypes included, and so do
columns of large arrays that several rows share: the shared ones stand before the cells, once each.
Rows that lack the field take no bytes. `columns` reads what is drafted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from redis_replay.arrays import (
    ARRAY,
    ARRAY_ALIGNMENT_BYTES,
    Array,
    ArrayKind,
    as_array,
    kind_of,
    without_padding,
)
from redis_replay.codec import are_plain, lower_value, value_packer
from redis_replay.compression import MAX_EXPANDED_BYTES, squeezer
from redis_replay.dtypes import dtype_name, stored_name
from redis_replay.fields import AS_GIVEN, FieldOptions
from redis_replay.layout import (
    BYTES,
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
from redis_replay.narrowing import narrow, narrow_together, narrowed_name
from redis_replay.rows import FieldCells
from redis_replay.sharing import LEAST_SHARED_BYTES, Shared, SharedValues, mostly_shared

_SHORT_BYTES: Final = 1024
"""Of a piece: shorter ones are joined first, since each costs more than its bytes."""

Draft = tuple[Column, Sequence[Any]]
"""A column, and its bytes: one contiguous buffer after the other."""


def draft_as_given(name: str, cells: Sequence[Any], *, offset: int) -> Draft | None:
    """Lay out a usual field at once, as `draft_column` would; ``None`` for any other.

    That is one which all rows have and which is stored as it is given: plain values, or NumPy
    arrays of one dtype that are too small to be shared.
    """
    types = set(map(type, cells))
    if are_plain(types):
        packed = list(map(value_packer(), cells))
        bounds = _bounds_of(packed)
        length = bounds[-1]
        return Column(name, CELLS, "", offset, length, (), bounds), _few(packed, length)
    if types != {np.ndarray}:
        return None
    dtypes = [array.dtype for array in cells]
    dtype = dtypes[0]
    stored = stored_name(dtype)
    if stored is None or dtype.names is not None or dtypes.count(dtype) < len(dtypes):
        return None
    shapes = tuple([array.shape for array in cells])
    if shapes.count(shapes[0]) == len(shapes):
        shapes, bounds = shapes[:1], even_bounds(len(shapes), cells[0].nbytes)
    else:
        bounds = tuple(accumulate([array.nbytes for array in cells], initial=0))
    length = bounds[-1]
    if length >= LEAST_SHARED_BYTES * len(cells):
        return None
    pieces = list(map(np.ascontiguousarray, cells))
    return Column(name, ARRAY.name, stored, offset, length, shapes, bounds), _few(pieces, length)


def draft_column(source: FieldCells, *, offset: int, options: FieldOptions = AS_GIVEN) -> Draft:
    """Lay out one field of all rows; the pieces of arrays still refer to the caller's memory.

    Args:
        source: The cells.
        offset: Where the column starts in the payload.
        options: How the field is stored.

    Raises:
        TypeError: A cell cannot be stored. The message names group, row and field path.
        ValueError: A value does not fit what its field is to be narrowed to, or the column is too
            large to be compressed.
    """
    return _array_draft(source, offset, options) or _cell_draft(source, offset, options)


def _array_draft(source: FieldCells, offset: int, options: FieldOptions) -> Draft | None:
    """Lay out a field of arrays, ``None`` if its cells are not of one array kind and dtype."""
    cells, narrow_to = source.cells, options.narrow_to
    kind = _kind_of_all(source)
    if kind is None:
        return None
    arrays = _arrays(source, kind)
    dtypes = [array.dtype for array in arrays]
    dtype = dtypes[0]
    if dtypes.count(dtype) < len(dtypes):
        return None
    stored = dtype_name(dtype, path=source.path(0))
    if dtype.names is not None:
        arrays = [without_padding(array) for array in arrays]
    narrowed = narrow_to and narrowed_name(dtype, target=narrow_to)
    if not narrowed and mostly_shared(cells, arrays):
        return None
    shapes = tuple([array.shape for array in arrays])
    if shapes.count(shapes[0]) == len(shapes):
        shapes = shapes[:1]
    if narrowed:
        pieces = narrow_together(arrays, name=narrowed) or [
            _narrowed(source, at, array, narrowed) for at, array in enumerate(arrays)
        ]
    else:
        pieces = list(map(np.ascontiguousarray, arrays))
    if len(shapes) == 1:
        bounds = even_bounds(len(pieces), pieces[0].nbytes)
    else:
        bounds = tuple(accumulate([piece.nbytes for piece in pieces], initial=0))
    column = Column(source.name, kind.name, stored, offset, bounds[-1], shapes, bounds)
    return _specially_stored(column, pieces, source, options, narrowed=narrowed or "")


def _kind_of_all(source: FieldCells) -> ArrayKind | None:
    kind = kind_of(source.cells[0])
    if kind is None or len(set(map(type, source.cells))) == 1:
        return kind
    return kind if all(kind_of(cell) is kind for cell in source.cells) else None


def _arrays(source: FieldCells, kind: ArrayKind) -> list[Array]:
    try:
        return list(map(kind.to_array, source.cells))
    except TypeError:  # once more, for the row
        return [as_array(kind, cell, path=source.path(at)) for at, cell in enumerate(source.cells)]


def _narrowed(source: FieldCells, at: int, array: Array, name: str) -> Array:
    try:
        return narrow(array, name=name)
    except ValueError as error:
        raise ValueError(
            f"{source.path(at)}{error}, to which the field is narrowed (narrow_to); nothing was "
            "written"
        ) from None


def _cell_draft(source: FieldCells, offset: int, options: FieldOptions) -> Draft:
    packables: Sequence[Any] = source.cells
    shared: Sequence[Shared] = ()
    uses: tuple[tuple[int, ...], ...] = ()
    if not are_plain(set(map(type, source.cells))):
        values, packables = _lowered(source)
        shared = values.choose()
        uses = values.uses() if shared else ()
    cells = list(map(value_packer(), packables))
    bounds = _bounds_of(cells)
    column = Column(source.name, CELLS, "", offset, bounds[-1], (), bounds)
    column, pieces = _specially_stored(column, cells, source, options, shared=shared, uses=uses)
    return column, _few(pieces, column.length)


def _lowered(source: FieldCells) -> tuple[SharedValues, list[Any]]:
    """Return the cells as they are packed, and the large values in them."""
    shared, lowered = SharedValues(), list[Any]()
    for at, cell in enumerate(source.cells):
        shared.begin_cell()
        try:
            lowered.append(lower_value(cell, source.name, shared))
        except TypeError as error:
            row = source.present[at]
            raise TypeError(f"group {source.group_id!r}, row {row}: {error}") from None
    return shared, lowered


def _few(pieces: Sequence[Any], length: int) -> Sequence[Any]:
    return [b"".join(pieces)] if length <= _SHORT_BYTES * len(pieces) else pieces


def _bounds_of(pieces: Sequence[bytes]) -> Sequence[int]:
    lengths = list(map(len, pieces))
    if lengths.count(lengths[0]) == len(lengths):
        return even_bounds(len(lengths), lengths[0])
    return tuple(accumulate(lengths, initial=0))


def _specially_stored(
    column: Column,
    pieces: Sequence[Any],
    source: FieldCells,
    options: FieldOptions,
    *,
    narrowed: str = "",
    shared: Sequence[Shared] = (),
    uses: tuple[tuple[int, ...], ...] = (),
) -> Draft:
    """Put shared values before the rows, compress both where asked, and count rows through."""
    if source.is_complete and not (narrowed or shared or options.compression):
        return column, pieces
    present, row_count, bounds = source.present, source.row_count, column.bounds
    values = [value.content for value in shared]
    sizes = [_size_of(value) for value in values]
    expanded = None
    if options.compression is not None:
        _require_compressible(source, bounds[-1] + sum(sizes))
        squeeze = squeezer(options.level)
        expanded = spread_bounds(bounds, present=present, row_count=row_count)
        values, pieces = [squeeze(value) for value in values], [squeeze(p) for p in pieces]
        bounds = _bounds_of(pieces)
    blobs, before, first = list[Blob](), list[Any](), 0
    for value, content, size in zip(shared, values, sizes, strict=True):
        length = _size_of(content)
        name = BYTES if value.kind is None else value.kind.name
        blobs.append(Blob(name, value.dtype, value.shape, first, length, size))
        before += [content, bytes(-length % ARRAY_ALIGNMENT_BYTES)]
        first = aligned(first + length)
    storage = Storage(
        absent=absent_rows(present, row_count),
        narrowed=narrowed,
        expanded=expanded,
        blobs=tuple(blobs),
        uses=spread(uses, present=present, row_count=row_count, absent=()),
    )
    shapes = spread(column.shapes, present=present, row_count=row_count, absent=())
    bounds = spread_bounds(bounds, present=present, row_count=row_count, first=first)
    special = column._replace(length=bounds[-1], shapes=shapes, bounds=bounds, storage=storage)
    return special, [*before, *pieces]


def _require_compressible(source: FieldCells, column_bytes: int) -> None:
    if column_bytes > MAX_EXPANDED_BYTES:
        raise ValueError(
            f"group {source.group_id!r}: field {source.name!r} has {column_bytes} bytes, and a "
            f"compressed field may have {MAX_EXPANDED_BYTES}; leave it uncompressed"
        )


def _size_of(content: Any) -> int:
    return len(content) if isinstance(content, bytes) else int(content.nbytes)
