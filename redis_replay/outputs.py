"""Arrays of the caller that columns are read into: one entry per sample along the first axis.

Where the rows of a column lie in an array as they lie in the payload, they are received in place;
else they are copied there. Entries that are longer than their row keep what they had behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from redis_replay.arrays import Array, HandOut, kind_of
from redis_replay.directory import ByteRange
from redis_replay.dtypes import dtype_named
from redis_replay.layout import CELLS, Column
from redis_replay.tensors import memory_of_tensor

Place = tuple[str, int]
"""A group and a row of it."""


def as_it_is(array: Array) -> Array:
    """Hand out a view of a caller's array as the array that it is."""
    return array


class Outputs:
    """A caller's arrays for the samples of one read.

    Args:
        arrays: Field to array, or to tensor on the host: C-contiguous, writable, its first axis as
            long as there are samples.
        places: Group and row of each sample, in the order of the entries.
        fields: Fields that are read, ``None`` for all.
        hand_out: What a cell becomes once it is in its array.

    Raises:
        TypeError: Something is no NumPy array and no tensor on the host.
        ValueError: An array cannot be written to as it is, has another length, or is for a field
            that is not read.
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        *,
        places: Sequence[Place],
        fields: Sequence[str] | None,
        hand_out: HandOut = as_it_is,
    ) -> None:
        self._arrays = {name: _memory_of(name, given) for name, given in arrays.items()}
        self._hand_out = hand_out
        self._positions: dict[Place, list[int]] = {}
        for position, place in enumerate(places):
            self._positions.setdefault(place, []).append(position)
        for name, array in self._arrays.items():
            if not (array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(f"out[{name!r}] must be C-contiguous and writable")
            if array.ndim == 0 or len(array) != len(places):
                raise ValueError(
                    f"out[{name!r}] has shape {array.shape}, but {len(places)} samples are read"
                )
            if fields is not None and name not in fields:
                raise ValueError(f"out has an array for {name!r}, which is not among {fields}")

    @property
    def fields(self) -> frozenset[str]:
        """The fields that have an array."""
        return frozenset(self._arrays)

    def memory_for(self, group_id: str, column: Column, part: ByteRange) -> memoryview | None:
        """Return the memory that a part of a column is received into, ``None`` to copy it later.

        Raises:
            ValueError: The column has another dtype than its array, or a row does not fit.
            TypeError: The column does not hold arrays of one dtype.
        """
        array = self._arrays.get(part.field)
        if array is None or column.storage.blobs or column.storage.absent:
            return None
        self._check(group_id, column, array)
        if not column.is_raw:
            return None
        rows = range(part.start_row, part.stop_row)
        if any(column.shape_of(row) != array.shape[1:] for row in rows):
            return None
        positions = [self._positions[group_id, row] for row in rows]
        first = positions[0][0]
        if any(found != [first + at] for at, found in enumerate(positions)):
            return None
        entries = array[first : first + len(rows)]
        return entries.reshape(-1).view(np.uint8).data

    def _check(self, group_id: str, column: Column, array: Array) -> None:
        where = f"group {group_id!r}, field {column.name!r}"
        if column.kind == CELLS:
            raise TypeError(f"{where}: it does not hold arrays of one dtype, as out needs them")
        if dtype_named(column.dtype) != array.dtype:
            raise ValueError(f"{where}: it holds {column.dtype}, and out {array.dtype.str}")
        for shape in column.shapes:
            _check_fits(where, shape, array.shape[1:])

    def put(self, group_id: str, row: int, cells: dict[str, Any]) -> None:
        """Write the cells of one row that have an array into it, and replace them by views of it.

        Raises:
            ValueError, TypeError: A cell is no array that fits, which a written-back one may be.
        """
        for name, array in self._arrays.items():
            cell = _as_array(cells.get(name))
            where = f"group {group_id!r}, row {row}, field {name!r}"
            if not isinstance(cell, (np.ndarray, np.generic)):
                lacking = "" if name in cells else " (the row lacks the field)"
                raise TypeError(
                    f"{where}: a {type(cell).__qualname__}{lacking} cannot be read into an array"
                )
            if cell.dtype != array.dtype:
                raise ValueError(f"{where}: it holds {cell.dtype.str}, and out {array.dtype.str}")
            _check_fits(where, cell.shape, array.shape[1:])
            for position in self._positions[group_id, row]:
                entry: Array = array[position, ...]
                target = entry[: len(np.atleast_1d(cell))] if entry.ndim else entry
                if not np.may_share_memory(target, cell):  # else it was received there
                    target[...] = cell
                cells[name] = self._hand_out(target)


def _memory_of(name: str, given: Any) -> Array:
    if isinstance(given, np.ndarray):
        return given
    if isinstance(given, np.generic) or kind_of(given) is None:
        raise TypeError(
            f"out[{name!r}] must be a NumPy array or a tensor, got {type(given).__qualname__}"
        )
    try:
        return memory_of_tensor(given)
    except TypeError as unfit:
        raise TypeError(f"out[{name!r}]: {unfit}") from None


def _as_array(cell: Any) -> Any:
    """Return a cell that was handed out already as the array it is over."""
    kind = None if isinstance(cell, (np.ndarray, np.generic)) else kind_of(cell)
    return cell if kind is None else kind.to_array(cell)


def _check_fits(where: str, shape: Sequence[int], room: Sequence[int]) -> None:
    """Refuse a row that is not as large as its entry; it may be shorter along its first axis."""
    is_shorter = bool(shape) and bool(room) and shape[0] < room[0]
    if len(shape) != len(room) or tuple(shape[is_shorter:]) != tuple(room[is_shorter:]):
        raise ValueError(f"{where}: a row of shape {tuple(shape)} does not fit into {tuple(room)}")
