"""Arrays of numbers stored in a narrower dtype, where each of them comes back bit for bit."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from redis_replay.arrays import Array, Buffer, view_over
from redis_replay.dtypes import dtype_named
from redis_replay.fields import BITS

_NUMBERS: Final = "biuf"
_BITS_A_BYTE: Final = 8


def narrowed_name(dtype: np.dtype[Any], *, target: str) -> str | None:
    """Return what arrays of a dtype are to be stored as, ``None`` for as they are."""
    if dtype.kind not in _NUMBERS:
        return None
    if target == BITS:
        return BITS
    narrow = np.dtype(target).newbyteorder("<")
    return narrow.str if narrow.itemsize < dtype.itemsize else None


def narrow(array: Array, *, name: str) -> Array:
    """Return a contiguous array in the narrower dtype, or its bits as whole bytes.

    Raises:
        ValueError: A value would not come back; names it and its place.
    """
    dtype = np.dtype(np.bool_) if name == BITS else dtype_named(name)
    with np.errstate(all="ignore"):
        small = np.ascontiguousarray(array.astype(dtype).reshape(array.shape))
        changed = _bits_of(small.astype(array.dtype)) != _bits_of(array)
    if changed.any():
        place = np.unravel_index(int(changed.argmax()), array.shape)
        at = f"[{', '.join(map(str, place))}]" if place else ""
        shown = BITS if name == BITS else dtype.name
        raise ValueError(f"{at} is {array[place]}, which {shown} does not hold exactly")
    return np.packbits(small.reshape(-1), bitorder="little") if name == BITS else small


def widened(stored: Buffer, *, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Return an array of its own, in the dtype that `narrow` was given, from one row's bytes.

    Raises:
        ValueError: The bytes are not such a row's.
    """
    count = math.prod(shape)
    narrow_dtype = np.dtype("u1") if name == BITS else dtype_named(name)
    length = packed_bytes(count) if name == BITS else count
    if len(stored) != length * narrow_dtype.itemsize:
        raise ValueError(f"{len(stored)} bytes hold no {shape} narrowed to {name}")
    elements = view_over(stored, dtype=narrow_dtype, shape=(length,))
    if name == BITS:
        elements = np.unpackbits(elements, count=count, bitorder="little")
    return elements.astype(dtype).reshape(shape)


def packed_bytes(count: int) -> int:
    """Return how many bytes so many truth values take."""
    return -(-count // _BITS_A_BYTE)


def _bits_of(array: Array) -> Array:
    """Return an array of numbers as integers of the same bits, flat."""
    return np.ascontiguousarray(array).reshape(-1).view(np.dtype(f"u{array.dtype.itemsize}"))
