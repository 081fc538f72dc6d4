"""Arrays of numbers stored in a narrower dtype, where each of them comes back bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import numpy as np

from redis_replay.arrays import Array, Buffer, view_over
from redis_replay.dtypes import dtype_named
from redis_replay.fields import BITS

_NUMBERS: Final = "biuf"
_BITS_A_BYTE: Final = 8
_MOST_TOGETHER_BYTES: Final = 1024 * 1024


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
    small, changed = _cast(array, name)
    if changed.any():
        place = np.unravel_index(int(changed.argmax()), array.shape)
        at = f"[{', '.join(map(str, place))}]" if place else ""
        shown = BITS if name == BITS else small.dtype.name
        raise ValueError(f"{at} is {array[place]}, which {shown} does not hold exactly")
    return np.packbits(small.reshape(-1), bitorder="little") if name == BITS else small


def narrow_together(arrays: Sequence[Array], *, name: str) -> list[Array] | None:
    """Return flat what `narrow` makes of each of several arrays of one dtype, in fewer steps.

    ``None`` if a value would not come back, or if the arrays are so large that it takes no longer
    one by one.
    """
    if sum([array.nbytes for array in arrays]) > _MOST_TOGETHER_BYTES:
        return None
    small, changed = _cast(np.concatenate([array.reshape(-1) for array in arrays]), name)
    if changed.any():
        return None
    stops = accumulate([array.size for array in arrays], initial=0)
    parts = [small[start:stop] for start, stop in pairwise(stops)]
    return [np.packbits(part, bitorder="little") for part in parts] if name == BITS else parts


def _cast(array: Array, name: str) -> tuple[Array, Array]:
    """Return an array in the dtype of this name, and which elements would not come back, flat."""
    dtype = np.dtype(np.bool_) if name == BITS else dtype_named(name)
    with np.errstate(all="ignore"):
        small = np.ascontiguousarray(array.astype(dtype).reshape(array.shape))
        return small, _bits_of(small.astype(array.dtype)) != _bits_of(array)


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
