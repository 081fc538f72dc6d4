"""What is special about a column, as a directory says it: a mapping of what there is to say.

=============  ====================================================================================
``present``    bitmap of the rows that have the field; all have it otherwise
``narrowed``   dtype the elements are stored in, or ``"bits"``; ``dtype`` otherwise
``zstd``       the stored lengths of the rows, of which each is a frame of its own
``blobs``      what several rows share, kept once before the rows, each at a multiple of 16:
               ``[kind, dtype, shape, bytes, stored bytes]``
``uses``       the blobs that all rows refer to, or those of each row
=============  ====================================================================================

Rows that lack the field are in none of the lists. How lengths are written is the format's own
matter. Reading trusts nothing: every number is checked against the others before anything is
allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, TypeVar

from redis_replay.arrays import as_shape
from redis_replay.compression import MAX_EXPANDED_BYTES
from redis_replay.layout import (
    AS_IS,
    CELLS,
    Blob,
    Column,
    Storage,
    absent_rows,
    aligned,
    spread,
    spread_bounds,
)
from redis_replay.narrowing import packed_bytes

T = TypeVar("T")

_KNOWN: Final = frozenset({"present", "narrowed", "zstd", "blobs", "uses"})
Shapes = tuple[tuple[int, ...], ...]


def dense(column: Column, items: Sequence[T]) -> Sequence[T]:
    """Return the items of the rows that have the field."""
    absent = column.storage.absent
    return [item for row, item in enumerate(items) if row not in absent] if absent else items


def extras_of(column: Column) -> dict[str, Any]:
    """Return what is special about a column; ``zstd`` as the list of all stored lengths."""
    storage, extras = column.storage, dict[str, Any]()
    rows = range(len(column.bounds) - 1)
    if storage.absent:
        extras["present"] = _bitmap(dense(column, rows), len(rows))
    if storage.narrowed:
        extras["narrowed"] = storage.narrowed
    if storage.expanded is not None:
        extras["zstd"] = dense(column, [b - a for a, b in pairwise(column.bounds)])
    if storage.blobs:
        extras["blobs"] = [
            [blob.kind, blob.dtype, blob.shape, blob.expanded, blob.length]
            for blob in storage.blobs
        ]
        uses = storage.uses
        extras["uses"] = uses if len(uses) == 1 else dense(column, uses)
    return extras


class SpecialColumn:
    """A column on its way out of a directory that says something special about it.

    Attributes:
        present: Rows that have the field.
        narrowed: As in `layout.Storage`.
        first: Where the rows begin, behind what they share.

    Raises:
        ValueError, TypeError: What is said is malformed or contradicts itself.
    """

    def __init__(self, name: str, kind: str, extras: Mapping[str, Any], *, row_count: int) -> None:
        if not extras.keys() <= _KNOWN:
            raise ValueError(f"column {name!r} says {sorted(extras)}, which is not known")
        self._name, self._kind, self._extras, self._row_count = name, kind, extras, row_count
        self.present = _present_rows(extras.get("present"), row_count)
        self.narrowed = extras.get("narrowed", "")
        self._blobs, self.first = _read_blobs(extras.get("blobs", ()), compressed="zstd" in extras)
        if type(self.narrowed) is not str or (self.narrowed if kind == CELLS else self._blobs):
            raise ValueError(f"column {name!r} has narrowed cells or arrays that share values")

    def check_expansion(self, total: Any) -> None:
        """Refuse a compressed column whose rows would expand to so many bytes and more."""
        if type(total) is not int or total < 0:
            raise ValueError("a compressed column has a malformed size")
        expanded = total + sum(blob.expanded for blob in self._blobs)
        if expanded > MAX_EXPANDED_BYTES:
            raise ValueError(
                f"a compressed column would expand to {expanded} bytes, and {MAX_EXPANDED_BYTES} "
                "are the most"
            )

    def column(
        self,
        dtype: str,
        offset: int,
        *,
        shapes: Shapes,
        bounds: Sequence[int],
        stored: Sequence[Any] | None,
    ) -> Column:
        """Return the column.

        Args:
            dtype: Of the column.
            offset: Of the column.
            shapes: Of the rows that have the field, or the one that all of them have.
            bounds: Those of these rows as they are once expanded, from zero on.
            stored: Stored lengths of these rows, ``None`` where they are not compressed.
        """
        present, row_count = self.present, self._row_count
        kept = bounds if stored is None else _stored_bounds(stored, expanded=bounds)
        expanded = None
        if stored is not None:
            expanded = spread_bounds(bounds, present=present, row_count=row_count)
        uses = _read_uses(
            self._extras.get("uses", ()), self._blobs, present=present, row_count=row_count
        )
        storage = Storage(
            absent=absent_rows(present, row_count),
            narrowed=self.narrowed,
            expanded=expanded,
            blobs=self._blobs,
            uses=uses,
        )
        places = spread_bounds(kept, present=present, row_count=row_count, first=self.first)
        return Column(
            *(self._name, self._kind, dtype, offset, places[-1]),
            shapes=spread(shapes, present=present, row_count=row_count, absent=()),
            bounds=places,
            storage=AS_IS if storage == AS_IS else storage,
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


def _stored_bounds(stored: Sequence[Any], *, expanded: Sequence[int]) -> Sequence[int]:
    for length, (start, stop) in zip(stored, pairwise(expanded), strict=True):
        if type(length) is not int or length < 0 or (length == 0) != (start == stop):
            raise ValueError("a compressed row has a malformed length")
    return tuple(accumulate(stored, initial=0))


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
