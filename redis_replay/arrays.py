"""Arrays at the door: what may be stored, what its dtype is called, how bytes become a view.

Two questions are answered here and nowhere else.

*Which values are arrays?* An `ArrayKind` says how a family of values becomes a NumPy array and how
it comes back. NumPy arrays and NumPy scalars are two kinds, so that ``np.float32(1)`` and
``np.array(1, "f4")`` read back as what they were. Another library joins with
`register_array_kind`; nothing else in this package has to know it.

*What is a dtype called?* By NumPy's own string (``"<i4"``, ``">f4"``, ``"<M8[ns]"``), so that byte
order is kept, or, for the types of ``ml_dtypes`` that have no such string, by their name
(``"bfloat16"``). Only dtypes of a fixed width whose bytes mean the same on every host have a name:
object, structured, variable-width and extended-precision dtypes have none.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from redis_replay.errors import ConfigurationError

Array = NDArray[Any]
Buffer = bytes | bytearray | memoryview

ARRAY_ALIGNMENT_BYTES: Final = 16
"""Where raw array bytes start: a multiple of this, so that views over them are aligned."""

MAX_DIMENSIONS: Final = 64

_FIXED_WIDTH_KINDS: Final = frozenset("biufcmMSU")
_LONG_DOUBLES: Final = frozenset("gG")
_REGISTERED_BY_ANOTHER_PACKAGE: Final = 2
_EXTENSION_PACKAGE: Final = "ml_dtypes"
_NUMPY_NAME: Final = re.compile(r"[<>|][biufcmMSU][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
_EXTENSION_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """A family of values that is stored as dtype, shape and raw bytes.

    Attributes:
        name: How a column of such values is marked in a payload directory.
        extension_code: How one such value is marked inside a cell (16 to 127).
        to_array: Returns the value as a NumPy array, without a copy where that is possible.
        from_array: Returns a value of the family over a read-only array.
    """

    name: str
    extension_code: int
    to_array: Callable[[Any], Array]
    from_array: Callable[[Array], Any]


def _unchanged(array: Array) -> Array:
    return array


def _as_scalar(array: Array) -> Any:
    return array[()]


ARRAY: Final = ArrayKind("array", 16, np.asarray, _unchanged)
SCALAR: Final = ArrayKind("scalar", 17, np.asarray, _as_scalar)

_kind_by_type: dict[type, ArrayKind] = {np.ndarray: ARRAY, np.memmap: ARRAY}
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


def kind_of(value: object) -> ArrayKind | None:
    """Return the array kind of a value, ``None`` when it is no array.

    Subclasses are not taken for their base: a masked array would lose its mask.
    """
    kind = _kind_by_type.get(type(value))
    if kind is None and isinstance(value, np.generic) and not isinstance(value, np.character):
        return SCALAR
    return kind


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


def dtype_name(dtype: np.dtype[Any], *, path: str) -> str:
    """Return the name that `dtype_named` turns into exactly this dtype.

    Raises:
        TypeError: The dtype has no fixed width or depends on the host; names ``path`` and dtype.
    """
    name = _stored_name(dtype)
    if name is None:
        raise TypeError(
            f"{path}: arrays of dtype {dtype} cannot be stored; use a dtype of fixed width whose "
            "bytes mean the same on every host (no objects, structures or long doubles)"
        )
    return name


@lru_cache(maxsize=256)
def _stored_name(dtype: np.dtype[Any]) -> str | None:
    if dtype.isbuiltin == _REGISTERED_BY_ANOTHER_PACKAGE:
        ours = dtype.type.__module__ == _EXTENSION_PACKAGE and dtype.isnative
        return dtype.name if ours else None
    if dtype.kind not in _FIXED_WIDTH_KINDS or dtype.char in _LONG_DOUBLES or not dtype.itemsize:
        return None
    return dtype.str


@lru_cache(maxsize=256)
def dtype_named(name: str) -> np.dtype[Any]:
    """Return the dtype of a stored name.

    Raises:
        ValueError: No dtype that may be stored has this name.
        ConfigurationError: The dtype belongs to ``ml_dtypes``, which is not installed here.
    """
    candidate: Any = None
    if _NUMPY_NAME.fullmatch(name):
        candidate = name
    elif _EXTENSION_NAME.fullmatch(name):
        candidate = getattr(_extension_package(name), name, None)
    if candidate is not None:
        try:
            dtype: np.dtype[Any] = np.dtype(candidate)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"unknown dtype {name!r}") from None
        if _stored_name(dtype) == name:
            return dtype
    raise ValueError(f"unknown dtype {name!r}")


def _extension_package(name: str) -> Any:
    try:
        return importlib.import_module(_EXTENSION_PACKAGE)
    except ImportError:
        raise ConfigurationError(
            f"a stored array has dtype {name!r}: install {_EXTENSION_PACKAGE} to read it"
        ) from None


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
    """Return a read-only array over ``buffer`` from byte ``start`` on, without copying it.

    Raises:
        ValueError: The buffer ends too early, or NumPy cannot hold the shape.
        OverflowError: No array is that large.
    """
    count = math.prod(shape)
    if count:
        array = np.frombuffer(buffer, dtype, count, start).reshape(shape)
    else:
        array = np.empty(shape, dtype)
    array.flags.writeable = False
    return array
