"""Large values that several rows of a field hold: found while cells are encoded, stored once.

An image that belongs to a prompt is in every sample of its group, as the same array object or as
equal bytes, on its own or deep inside a cell. From `LEAST_SHARED_BYTES` on such arrays and byte
strings are recognised, by identity first, else by dtype, shape and content, and kept beside the
cells of their column once (D60). Smaller ones are not looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import xxhash

from redis_replay.arrays import Array, ArrayKind

LEAST_SHARED_BYTES: Final = 65_536


@dataclass(slots=True, eq=False)
class Shared:
    """A large value in one or more cells.

    Attributes:
        kind: Of the array, ``None`` for plain bytes.
        dtype: Stored name of the array's dtype.
        shape: Of the array.
        content: Contiguous array, or the bytes themselves.
        occurrences: How often cells hold it.
        number: Its place among the values kept beside the cells; ``None`` while it has none.
    """

    kind: ArrayKind | None
    dtype: str
    shape: tuple[int, ...]
    content: Any
    occurrences: int = 0
    number: int | None = None


@dataclass(slots=True)
class SharedValues:
    """The large values in the cells of one column."""

    _by_identity: dict[int, tuple[object, Shared]] = field(default_factory=dict)
    _by_content: dict[object, list[Shared]] = field(default_factory=dict)
    _cells: list[list[Shared]] = field(default_factory=list)

    def begin_cell(self) -> None:
        """Count what is added from now on to the next cell."""
        self._cells.append([])

    def known(self, value: object) -> Shared | None:
        """Return what stands for this very object, counted once more, if it was added before."""
        found = self._by_identity.get(id(value))
        return None if found is None else self._counted(found[1])

    def add(
        self, value: object, content: Array | bytes, *, kind: ArrayKind | None, dtype: str
    ) -> Shared:
        """Return what stands for a value that is not `known`.

        Args:
            value: The object in the cell.
            content: Its bytes, or the array that it is.
            kind: Of the array, ``None`` for bytes.
            dtype: Stored name of the array's dtype, empty for bytes.
        """
        shape = () if isinstance(content, bytes) else content.shape
        if not isinstance(content, bytes) and not content.flags.c_contiguous:
            content = np.ascontiguousarray(content)
        alike = self._by_content.setdefault((kind, dtype, shape, _digest(content)), [])
        found = next((other for other in alike if _is_equal(other.content, content)), None)
        if found is None:
            found = Shared(kind, dtype, shape, content)
            alike.append(found)
        self._by_identity[id(value)] = (value, found)
        return self._counted(found)

    def _counted(self, found: Shared) -> Shared:
        found.occurrences += 1
        self._cells[-1].append(found)
        return found

    def choose(self) -> list[Shared]:
        """Number the values that occur more than once and return them in order."""
        found = dict.fromkeys(value for cell in self._cells for value in cell)
        chosen = [value for value in found if value.occurrences > 1]
        for number, value in enumerate(chosen):
            value.number = number
        return chosen

    def uses(self) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of the chosen values in each cell; once, if all hold the same."""
        numbers = [
            tuple(sorted({value.number for value in cell if value.number is not None}))
            for cell in self._cells
        ]
        return tuple(numbers[:1] if len(set(numbers)) == 1 else numbers)


def mostly_shared(cells: Sequence[object], arrays: Sequence[Array]) -> bool:
    """Return whether keeping equal large arrays of a column once leaves at most half of them."""
    most = len(arrays) // 2
    if arrays[0].nbytes < LEAST_SHARED_BYTES or not most:
        return False
    if min(array.nbytes for array in arrays) < LEAST_SHARED_BYTES:
        return False
    if not _has_more_than(most, map(id, cells)):
        return True
    if _has_more_than(most, ((array.shape, _sample(array)) for array in arrays)):
        return False
    contents = map(np.ascontiguousarray, arrays)
    return not _has_more_than(most, ((content.shape, _digest(content)) for content in contents))


def _has_more_than(most: int, keys: Iterable[Hashable]) -> bool:
    """Return whether there are more different keys than that, looking at no more than it takes."""
    seen = set[Hashable]()
    for key in keys:
        seen.add(key)
        if len(seen) > most:
            return True
    return False


def _sample(array: Array) -> bytes:
    """Return some elements from the inside, where rows that begin and end alike differ."""
    quarter = max(1, array.size // 4)
    return array.flat[quarter::quarter].tobytes()


def _digest(content: Any) -> bytes:
    return xxhash.xxh3_128_digest(content)


def _is_equal(left: Array | bytes, right: Array | bytes) -> bool:
    if isinstance(left, bytes) or isinstance(right, bytes):
        return left == right
    return bool((_flat(left) == _flat(right)).all())


def _flat(content: Array) -> Array:
    return content.reshape(-1).view(np.uint8)
