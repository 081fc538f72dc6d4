"""One column of a payload, drafted: the cells of a field as bytes that have no place yet.

Cells that are arrays of one kind and one dtype become their raw bytes, back to back, whatever their
shapes. All other columns hold one encoded value per row, arrays of mixed dtypes included, and so do
columns of large arrays that several rows share: the shared ones stand before the cells, once each.
Rows that lack the field take no bytes. `columns` reads what is drafted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from redis_replay.arrays import (
    ARRAY_ALIGNMENT_BYTES,
    Array,
    ArrayKind,
    as_array,
    kind_of,
    without_padding,
)
from redis_replay.codec import Value, are_plain, lower_value, value_packer
from redis_replay.compression import MAX_EXPANDED_BYTES, squeezer
from redis_replay.dtypes import dtype_name
from redis_replay.fields import AS_GIVEN, FieldOptions
from redis_replay.layout import (
    AS_IS,
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
from redis_replay.narrowing import narrow, narrowed_name
from redis_replay.sharing import Shared, SharedValues, mostly_shared


@dataclass(slots=True)
class ColumnDraft:
    """A column that has no place in the payload yet.

    Attributes:
        place: Returns the column, once its offset is known.
        length: Bytes of the column.
        pieces: Its bytes, one contiguous buffer after the other.
    """

    place: Callable[[int], Column]
    length: int
    pieces: list[Any]


@dataclass(slots=True)
class _Source:
    """The cells of a field, and what to call them in errors.

    Attributes:
        present: Numbers of the rows that the cells belong to.
        row_count: Rows of the group.
    """

    group_id: str
    name: str
    cells: Sequence[Value]
    present: Sequence[int]
    row_count: int
    options: FieldOptions

    def path(self, at: int) -> str:
        return f"group {self.group_id!r}, row {self.present[at]}: {self.name}"


def draft_column(
    group_id: str,
    *,
    name: str,
    cells: Sequence[Value],
    present: Sequence[int] | None = None,
    row_count: int | None = None,
    options: FieldOptions = AS_GIVEN,
) -> ColumnDraft:
    """Lay out one field of all rows; the pieces of arrays still refer to the caller's memory.

    Args:
        group_id: Named in errors.
        name: Of the field.
        cells: One per row that has the field.
        present: The numbers of those rows, upwards; all rows by default.
        row_count: Rows of the group; as many as there are cells by default.
        options: How the field is stored.

    Raises:
        TypeError: A cell cannot be stored. The message names group, row and field path.
        ValueError: A value does not fit what its field is to be narrowed to, or the column is too
            large to be compressed.
    """
    rows = len(cells) if row_count is None else row_count
    numbers = range(rows) if present is None else present
    source = _Source(group_id, name, cells, numbers, rows, options)
    return _array_draft(source) or _cell_draft(source)


def _array_draft(source: _Source) -> ColumnDraft | None:
    """Lay out a field of arrays, ``None`` if its cells are not of one array kind and dtype."""
    cells, narrow_to = source.cells, source.options.narrow_to
    kind = kind_of(cells[0])
    if kind is None or any(kind_of(cell) is not kind for cell in cells):
        return None
    arrays = _arrays(source, kind)
    dtype = arrays[0].dtype
    if any(array.dtype != dtype for array in arrays):
        return None
    stored_name = dtype_name(dtype, path=source.path(0))
    if dtype.names is not None:
        arrays = [without_padding(array) for array in arrays]
    narrowed = narrow_to and narrowed_name(dtype, target=narrow_to)
    if not narrowed and mostly_shared(cells, arrays):
        return None
    shapes = tuple([array.shape for array in arrays])
    if shapes.count(shapes[0]) == len(shapes):
        shapes = shapes[:1]
    if narrowed:
        pieces = [_narrowed(source, at, array, narrowed) for at, array in enumerate(arrays)]
    else:
        pieces = [array if array.flags.c_contiguous else array.copy("C") for array in arrays]
    if len(shapes) == 1:
        bounds = even_bounds(len(pieces), pieces[0].nbytes)
    else:
        bounds = tuple(accumulate([piece.nbytes for piece in pieces], initial=0))
    return _drafted(source, kind.name, stored_name, shapes, pieces, bounds, narrowed=narrowed or "")


def _arrays(source: _Source, kind: ArrayKind) -> list[Array]:
    try:
        return [kind.to_array(cell) for cell in source.cells]
    except TypeError:  # once more, for the row
        return [as_array(kind, cell, path=source.path(at)) for at, cell in enumerate(source.cells)]


def _narrowed(source: _Source, at: int, array: Array, name: str) -> Array:
    try:
        return narrow(array, name=name)
    except ValueError as error:
        raise ValueError(
            f"{source.path(at)}{error}, to which the field is narrowed (narrow_to); nothing was "
            "written"
        ) from None


def _cell_draft(source: _Source) -> ColumnDraft:
    pack = value_packer()
    if are_plain(source.cells):
        pieces = [pack(cell) for cell in source.cells]
        return _drafted(source, CELLS, "", (), pieces, _bounds_of(pieces))
    shared, lowered = SharedValues(), list[Any]()
    for at, cell in enumerate(source.cells):
        shared.begin_cell()
        try:
            lowered.append(lower_value(cell, source.name, shared))
        except TypeError as error:
            row = source.present[at]
            raise TypeError(f"group {source.group_id!r}, row {row}: {error}") from None
    chosen = shared.choose()
    pieces = [pack(packable) for packable in lowered]
    uses = shared.uses() if chosen else ()
    return _drafted(source, CELLS, "", (), pieces, _bounds_of(pieces), shared=chosen, uses=uses)


def _bounds_of(pieces: Sequence[bytes]) -> Sequence[int]:
    return tuple(accumulate(map(len, pieces), initial=0))


def _drafted(
    source: _Source,
    kind: str,
    dtype: str,
    shapes: tuple[tuple[int, ...], ...],
    pieces: list[Any],
    bounds: Sequence[int],
    *,
    narrowed: str = "",
    shared: Sequence[Shared] = (),
    uses: tuple[tuple[int, ...], ...] = (),
) -> ColumnDraft:
    storage, compression = AS_IS, source.options.compression
    if narrowed or shared or compression or len(source.present) < source.row_count:
        storage, shapes, bounds, pieces = _special(
            source, shapes, pieces, bounds, narrowed=narrowed, shared=shared, uses=uses
        )
    length = bounds[-1]

    def place(offset: int) -> Column:
        return Column(source.name, kind, dtype, offset, length, shapes, bounds, storage)

    return ColumnDraft(place, length, pieces)


def _special(
    source: _Source,
    shapes: tuple[tuple[int, ...], ...],
    pieces: list[Any],
    bounds: Sequence[int],
    *,
    narrowed: str,
    shared: Sequence[Shared],
    uses: tuple[tuple[int, ...], ...],
) -> tuple[Storage, tuple[tuple[int, ...], ...], Sequence[int], list[Any]]:
    """Put shared values before the rows, compress both where asked, and count rows through.

    Returns:
        How the column is stored, and its shapes, bounds and pieces then.
    """
    present, row_count = source.present, source.row_count
    values = [value.content for value in shared]
    sizes = [_size_of(value) for value in values]
    expanded = None
    if source.options.compression is not None:
        _require_compressible(source, bounds[-1] + sum(sizes))
        squeeze = squeezer(source.options.level)
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
    shapes = spread(shapes, present=present, row_count=row_count, absent=())
    bounds = spread_bounds(bounds, present=present, row_count=row_count, first=first)
    return storage, shapes, bounds, before + pieces


def _require_compressible(source: _Source, column_bytes: int) -> None:
    if column_bytes > MAX_EXPANDED_BYTES:
        raise ValueError(
            f"group {source.group_id!r}: field {source.name!r} has {column_bytes} bytes, and a "
            f"compressed field may have {MAX_EXPANDED_BYTES}; leave it uncompressed"
        )


def _size_of(content: Any) -> int:
    return len(content) if isinstance(content, bytes) else int(content.nbytes)
