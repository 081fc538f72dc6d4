"""What a dtype is called where arrays are stored, and which dtypes have a name at all.

By NumPy's own string (``"<i4"``, ``">f4"``, ``"<M8[ns]"``, ``"|V3"``), so that byte order is kept;
the types of ``ml_dtypes``, which have no such string, by their name (``"bfloat16"``); structures by
their fields as JSON. Only dtypes of a fixed width whose bytes mean the same on every host have a
name: object, variable-width and extended-precision dtypes have none, nor have structures with
titles or with a scalar class of their own.
"""

from __future__ import annotations

import importlib
import json
import re
from functools import lru_cache
from typing import Any, Final

import numpy as np

from redis_replay.errors import ConfigurationError

Dtype = np.dtype[Any]

_FIXED_WIDTH_KINDS: Final = frozenset("biufcmMSUV")
_LONG_DOUBLES: Final = frozenset("gG")
_REGISTERED_BY_ANOTHER_PACKAGE: Final = 2
_EXTENSION_PACKAGE: Final = "ml_dtypes"
_NUMPY_NAME: Final = re.compile(r"[<>|][biufcmMSUV][0-9]{1,9}(\[[0-9]{0,9}[a-zA-Z]{1,2}\])?")
_EXTENSION_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
_LONGEST_NAME: Final = 65_536


def dtype_name(dtype: Dtype, *, path: str) -> str:
    """Return the name that `dtype_named` turns into exactly this dtype.

    Raises:
        TypeError: The dtype has no fixed width or depends on the host; names ``path`` and dtype.
    """
    name = stored_name(dtype)
    if name is None:
        raise TypeError(
            f"{path}: arrays of dtype {dtype} cannot be stored; use a dtype of fixed width whose "
            "bytes mean the same on every host (no objects, titles or long doubles)"
        )
    return name


def stored_name(dtype: Dtype) -> str | None:
    """Return the name of a dtype, ``None`` if arrays of it cannot be stored."""
    if dtype.names is None:
        return _element_name(dtype)
    described = _described(dtype)
    name = json.dumps(described, separators=(",", ":"))
    return name if described is not None and len(name) <= _LONGEST_NAME else None


@lru_cache(maxsize=256)
def dtype_named(name: str) -> Dtype:
    """Return the dtype of a stored name.

    Raises:
        ValueError: No dtype that may be stored has this name.
        ConfigurationError: The dtype belongs to ``ml_dtypes``, which is not installed here.
    """
    try:
        dtype: Dtype = _built(json.loads(name) if name[:1] == "{" else name)
        if stored_name(dtype) == name:
            return dtype
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        pass
    raise ValueError(f"unknown dtype {name!r:.80}")


@lru_cache(maxsize=256)
def _element_name(dtype: Dtype) -> str | None:
    if dtype.isbuiltin == _REGISTERED_BY_ANOTHER_PACKAGE:
        ours = dtype.type.__module__ == _EXTENSION_PACKAGE and dtype.isnative
        return dtype.name if ours else None
    if dtype.kind not in _FIXED_WIDTH_KINDS or dtype.char in _LONG_DOUBLES or not dtype.itemsize:
        return None
    return dtype.str


def _described(dtype: Dtype) -> Any:
    """Return an element's name, or a structure as JSON holds it; ``None`` if it has no name.

    Never cached by the dtype: structures are equal that differ in alignment or scalar class.
    """
    if dtype.names is None:
        return _element_name(dtype)
    if dtype.type is not np.void or not dtype.itemsize:
        return None
    places: Any = dtype.fields or {}
    fields: list[Any] = []
    for name in dtype.names:
        field, offset, *title = places[name]
        element, shape = field.subdtype or (field, ())
        described = _described(element)
        if title or described is None:
            return None
        fields.append([name, described, offset, list(shape)])
    return {"fields": fields, "itemsize": dtype.itemsize, "aligned": int(dtype.isalignedstruct)}


def _built(described: Any) -> Any:
    built: Any
    if isinstance(described, dict):
        names, elements, offsets, shapes = zip(*described["fields"], strict=True)
        formats = [(_built(e), tuple(s)) for e, s in zip(elements, shapes, strict=True)]
        built = {"names": names, "formats": formats, "offsets": offsets}
        built["itemsize"] = described["itemsize"]
        return np.dtype(built, align=bool(described["aligned"]))
    if _NUMPY_NAME.fullmatch(described):
        return np.dtype(described)
    if _EXTENSION_NAME.fullmatch(described):
        built = getattr(_extension_package(described), described, None)
        return np.dtype(built)
    raise ValueError(f"unknown dtype {described!r}")


def _extension_package(name: str) -> Any:
    try:
        return importlib.import_module(_EXTENSION_PACKAGE)
    except ImportError:
        raise ConfigurationError(
            f"a stored array has dtype {name!r}: install {_EXTENSION_PACKAGE} to read it"
        ) from None
