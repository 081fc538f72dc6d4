"""Where the rows of a group lie in its payload: columns as numbers, and how rows are counted.

Bounds, shapes and uses are per row of the group, rows that lack the field included; what is stored
of them (`shorthand`, `entries`) leaves those rows out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeVar

from redis_replay.arrays import ARRAY_ALIGNMENT_BYTES

T = TypeVar("T")

CELLS: Final = "cells"
"""The kind of a column that holds one encoded value per row."""

BYTES: Final = "bytes"
"""The kind of a blob that is a plain byte string."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A large value that rows of a column share.

    Attributes:
        kind: `BYTES`, or the name of an `arrays.ArrayKind`.
        dtype: Stored dtype name, empty for bytes.
        shape: Of the array, empty for bytes.
        offset: First byte in the column.
        length: Stored bytes.
        expanded: Bytes of the value; `length` but for a compressed column.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    expanded: int


@dataclass(frozen=True, slots=True)
class Storage:
    """What is special about how a column is stored.

    Attributes:
        absent: Rows that lack the field; they have no bytes.
        narrowed: Name of the dtype that the elements are stored in, or `BITS`; empty for their own.
        expanded: Bounds that the rows of a compressed column have once expanded, from zero on.
        blobs: What rows share; kept before the first row.
        uses: Numbers of the blobs that each row refers to, or once those that all rows do.
    """

    absent: frozenset[int] = frozenset()
    narrowed: str = ""
    expanded: Sequence[int] | None = None
    blobs: tuple[Blob, ...] = ()
    uses: tuple[tuple[int, ...], ...] = ()


AS_IS: Final = Storage()
"""Nothing is; compared by identity."""


class Column(NamedTuple):
    """One field of all rows. A tuple, because a read makes several for each of its groups.

    Attributes:
        name: The field.
        kind: `CELLS`, or the name of an `arrays.ArrayKind`.
        dtype: Name of the dtype that its arrays have, empty for cells.
        offset: First byte in the payload.
        length: Bytes of the column.
        shapes: One shape per row, or a single one that all rows have; empty for cells.
        bounds: Row ``i`` is bytes ``bounds[i]`` to ``bounds[i + 1]`` of the column.
        storage: What is special about it.
    """

    name: str
    kind: str
    dtype: str
    offset: int
    length: int
    shapes: tuple[tuple[int, ...], ...]
    bounds: Sequence[int]
    storage: Storage = AS_IS

    @property
    def is_raw(self) -> bool:
        """Whether its bytes are those of the arrays of all rows, back to back."""
        return self.kind != CELLS and self.storage is AS_IS

    def shape_of(self, row: int) -> tuple[int, ...]:
        """Return the shape of one row's array."""
        return self.shapes[0] if len(self.shapes) == 1 else self.shapes[row]

    def blobs_of(self, rows: Iterable[int]) -> list[int]:
        """Return the numbers of the blobs that rows refer to, each once, upwards."""
        uses = self.storage.uses
        if len(uses) == 1:
            return sorted({*uses[0]})
        return sorted({number for row in rows for number in uses[row]} if uses else ())


@dataclass(eq=False)
class Layout:
    """All columns of one payload; groups of one shape share it, so nobody changes one.

    Attributes:
        row_count: Rows of the group.
        payload_bytes: Length of the whole payload.
        fields: Names of the columns, in the order in which they were given.
        columns: In this order, which is the order of the bytes.
        lengths: Sequence length of each row; empty where the directory does not say it.
        is_shared: Whether other groups have it too, so that what follows from it is worth keeping.
    """

    row_count: int
    payload_bytes: int
    fields: tuple[str, ...]
    columns: tuple[Column, ...]
    lengths: tuple[int, ...] = ()
    is_shared: bool = False

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.fields)}

    def places(self, fields: Sequence[str] | None) -> Sequence[int]:
        """Return the places of these fields among the columns, all of them for ``None``.

        Raises:
            ValueError: A field is named that the payload has not; the message lists what it has.
        """
        if fields is None:
            return range(len(self.columns))
        unknown = [name for name in fields if name not in self._place_of]
        if unknown:
            raise ValueError(
                f"no field {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(map(repr, self.fields))}"
            )
        return [self._place_of[name] for name in dict.fromkeys(fields)]

    @cached_property
    def has_absent_rows(self) -> bool:
        """Return whether any row lacks a field."""
        return any(column.storage.absent for column in self.columns)


def check_names(fields: Sequence[str]) -> None:
    """Refuse a directory that names no field, or one of them twice.

    Raises:
        ValueError: It does.
    """
    if not fields or len(set(fields)) != len(fields):
        raise ValueError("no fields, or one of them twice")


def aligned(offset: int) -> int:
    """Return the next offset at which a column, or something in one, may start."""
    return offset + -offset % ARRAY_ALIGNMENT_BYTES


def even_bounds(row_count: int, row_bytes: int) -> Sequence[int]:
    """Return the bounds of rows that all take the same number of bytes."""
    if row_bytes:
        return range(0, row_count * row_bytes + 1, row_bytes)
    return (0,) * (row_count + 1)


def spread_bounds(
    bounds: Sequence[int], *, present: Sequence[int], row_count: int, first: int = 0
) -> Sequence[int]:
    """Return the bounds of all rows from those of the rows that have bytes, counted from first."""
    if len(present) == row_count:
        return bounds if not first else tuple(first + bound for bound in bounds)
    lengths = dict(zip(present, (stop - start for start, stop in pairwise(bounds)), strict=True))
    return tuple(accumulate((lengths.get(row, 0) for row in range(row_count)), initial=first))


def spread(
    items: Sequence[T], *, present: Sequence[int], row_count: int, absent: T
) -> tuple[T, ...]:
    """Return one item per row from one per row that has the field; a single one stays alone."""
    if len(items) <= 1 or len(present) == row_count:
        return tuple(items)
    found = dict(zip(present, items, strict=True))
    return tuple(found.get(row, absent) for row in range(row_count))


def absent_rows(present: Sequence[int], row_count: int) -> frozenset[int]:
    """Return the rows that are not among those that have a field."""
    everybody = len(present) == row_count
    return frozenset() if everybody else frozenset(range(row_count)).difference(present)
