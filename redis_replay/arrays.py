"""Arrays at the door: which values are arrays, how bytes become a view, how a view is handed out.

An `ArrayKind` says how a family of values becomes a NumPy array and how it comes back. NumPy arrays
and NumPy scalars are two kinds, so that ``np.float32(1)`` and ``np.array(1, "f4")`` read back as
what they were. Another library joins with `register_array_kind`, or with `store_as_array` when its
values need not be told from NumPy's; nothing else in this package has to know it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview
HandOut = Callable[[Array], Any]
"""Turns an array over received bytes into what a reader asked for (`forms`)."""

ARRAY_ALIGNMENT_BYTES: Final = 16
"""Where raw array bytes start: a multiple of this, so that views over them are aligned."""

MAX_DIMENSIONS: Final = 64


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """A family of values that is stored as dtype, shape and raw bytes.

    Attributes:
        name: How a column of such values is marked in a payload directory.
        extension_code: How one such value is marked inside a cell (16 to 127).
        to_array: Returns the value as a NumPy array, without a copy where that is possible.
        from_array: Returns a value of the family over a read-only array; ``None`` where the array
            itself is handed out.
    """

    name: str
    extension_code: int
    to_array: Callable[[Any], Array]
    from_array: Callable[[Array], Any] | None

    def restored(self, array: Array, hand_out: HandOut) -> Any:
        """Return the value of this kind over an array."""
        return hand_out(array) if self.from_array is None else self.from_array(read_only(array))


def read_only(array: Array) -> Array:
    """Return the same array, which cannot be written to from now on."""
    array.flags.writeable = False
    return array


def _as_scalar(array: Array) -> Any:
    return array[()]


ARRAY: Final = ArrayKind("array", 16, np.asarray, None)
SCALAR: Final = ArrayKind("scalar", 17, np.asarray, _as_scalar)

_kind_by_type: dict[type, ArrayKind] = {np.ndarray: ARRAY, np.memmap: ARRAY}
_kind_by_type_name: dict[tuple[str, str], ArrayKind] = {}
_kind_by_name: dict[str, ArrayKind] = {kind.name: kind for kind in (ARRAY, SCALAR)}
_kind_by_code: dict[int, ArrayKind] = {kind.extension_code: kind for kind in (ARRAY, SCALAR)}


def register_array_kind(kind: ArrayKind, *, types: tuple[type, ...]) -> None:
    """Store values of exactly these ``types`` as ``kind`` from now on, in this process.

    Raises:
        ValueError: Name, code or one of the types is taken, or the code is out of range.
    """
    if not 16 <= kind.extension_code <= 127:
        raise ValueError(f"extension code {kind.extension_code} is not between 16 and 127")
    if kind.name in _kind_by_name or kind.extension_code in _kind_by_code:
        raise ValueError(f"array kind {kind.name!r} or its code {kind.extension_code} is taken")
    taken = [cls.__qualname__ for cls in types if cls in _kind_by_type]
    if taken:
        raise ValueError(f"stored as another array kind already: {', '.join(taken)}")
    _kind_by_name[kind.name] = kind
    _kind_by_code[kind.extension_code] = kind
    _kind_by_type.update(dict.fromkeys(types, kind))


def store_as_array(module: str, *, name: str, to_array: Callable[[Any], Array]) -> None:
    """Store values of the class of this name as NumPy arrays; the class is not imported for it."""
    kind = ArrayKind(ARRAY.name, ARRAY.extension_code, to_array, None)
    _kind_by_type_name[module, name] = kind


def kind_of(value: object) -> ArrayKind | None:
    """Return the array kind of a value, ``None`` when it is no array.

    Subclasses are not taken for their base: a masked array would lose its mask.
    """
    cls = type(value)
    kind = _kind_by_type.get(cls)
    if kind is not None:
        return kind
    if isinstance(value, np.generic):
        return None if isinstance(value, np.character) else SCALAR
    return _kind_by_type_name.get((cls.__module__, cls.__qualname__))


def as_array(kind: ArrayKind, value: Any, *, path: str) -> Array:
    """Return a value of a kind as an array.

    Raises:
        TypeError: It cannot be one; names ``path``.
    """
    try:
        return kind.to_array(value)
    except TypeError as error:
        raise TypeError(f"{path}: {error}") from None


def without_padding(array: Array) -> Array:
    """Return a copy of a structured array with zeros between its fields.

    A copy that NumPy makes has whatever the memory held there before: the same values would have
    other bytes each time, and what else this process holds would be stored with them.
    """
    copy = np.zeros(array.shape, array.dtype)
    copy[...] = array
    return copy


def kind_named(name: str) -> ArrayKind:
    """Return the array kind of this name.

    Raises:
        ValueError: No such kind is registered in this process.
    """
    kind = _kind_by_name.get(name)
    if kind is None:
        raise ValueError(f"unknown array kind {name!r}")
    return kind


def kind_coded(extension_code: int) -> ArrayKind:
    """Return the array kind with this extension code.

    Raises:
        ValueError: No such kind is registered in this process.
    """
    kind = _kind_by_code.get(extension_code)
    if kind is None:
        raise ValueError(f"unknown extension type {extension_code}")
    return kind


def as_shape(dimensions: Any) -> tuple[int, ...]:
    """Return a stored list of axis lengths as a shape.

    Raises:
        ValueError: There are more than `MAX_DIMENSIONS`, or one is no integer from 0 on.
        TypeError: It is no list.
    """
    shape: tuple[Any, ...] = tuple(dimensions)
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"an array has {len(shape)} dimensions")
    for length in shape:
        if type(length) is not int or length < 0:
            raise ValueError(f"an array has an axis of length {length!r}")
    return shape


def view_over(
    buffer: Buffer, *, dtype: np.dtype[Any], shape: tuple[int, ...], start: int = 0
) -> Array:
    """Return an array over ``buffer`` from byte ``start`` on, without copying it.

    It can be written to only where the buffer can.

    Raises:
        ValueError: The buffer ends too early, or NumPy cannot hold the shape.
        OverflowError: No array is that large.
    """
    count = math.prod(shape)
    if count:
        return np.frombuffer(buffer, dtype, count, start).reshape(shape)
    return np.empty(shape, dtype)
