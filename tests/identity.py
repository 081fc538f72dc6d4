"""What tells apart all values that must not be confused: equal only for the same types and bits."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np


def type_of(value: object) -> type[object]:
    """Return the exact type of a value."""
    return type(value)


def identity_of(value: Any) -> Any:
    """Return something comparable that tells apart all that must not be confused."""
    kind = type_of(value)
    if kind is np.ndarray or issubclass(kind, np.generic):
        form = "array" if kind is np.ndarray else "scalar"
        names = value.dtype.names
        bits = [identity_of(value[name]) for name in names] if names else value.tobytes()
        return (form, repr(value.dtype), value.shape, bits)
    if kind is float:
        return ("float", struct.pack("<d", value))
    if kind in (list, tuple):
        return (kind.__name__, [identity_of(item) for item in value])
    if kind is dict:
        return ("dict", [(identity_of(key), identity_of(item)) for key, item in value.items()])
    return (kind.__name__, value)
