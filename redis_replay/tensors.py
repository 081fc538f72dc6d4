"""Torch tensors: stored as arrays of their dtype and shape, handed out as tensors on request.

Torch is imported only where a tensor is at hand or was asked for, so programs without it pay
nothing. A tensor on the host is stored without an intermediate copy, whatever its strides; one on
another device is fetched. What is stored are its values: neither device nor gradient.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import numpy as np

from redis_replay.arrays import Array, read_only, store_as_array
from redis_replay.dtypes import dtype_named
from redis_replay.errors import ConfigurationError

_SAME_NAME: Final = frozenset(
    {
        *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    }
)
"""Dtypes that Torch and NumPy share."""

_CARRIERS: Final = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
"""Dtypes that NumPy has from ``ml_dtypes``, and the integer under which Torch gives their bits."""


def array_of_tensor(tensor: Any) -> Array:
    """Return the values of a tensor as an array, over the same memory where that is the host's.

    Raises:
        TypeError: It is sparse, nested, quantised, without data, or of a dtype that is not stored.
        ConfigurationError: The dtype needs ``ml_dtypes``, which is not installed.
    """
    name = _name_of(tensor.dtype)
    if name in _SAME_NAME:
        with suppress(RuntimeError, TypeError):  # there is more to do, or a reason to refuse it
            return np.asarray(tensor.numpy())
    torch = importlib.import_module("torch")
    if tensor.layout != torch.strided or tensor.is_nested or tensor.device.type == "meta":
        raise TypeError("a tensor that is sparse, nested or without data cannot be stored")
    if name not in _SAME_NAME and name not in _CARRIERS:
        raise TypeError(f"tensors of dtype {tensor.dtype} cannot be stored")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if name in _SAME_NAME:
        return np.asarray(plain.numpy())
    bits: Array = plain.view(getattr(torch, _CARRIERS[name])).numpy()
    return bits.view(dtype_named(name))


@lru_cache
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def memory_of_tensor(tensor: Any) -> Array:
    """Return an array over the memory of a tensor on the host, pinned or not.

    Raises:
        TypeError: It is on another device, needs a gradient, or its dtype is not stored.
    """
    if tensor.device.type != "cpu" or tensor.requires_grad:
        raise TypeError("a tensor must be on the host and need no gradient to be read into")
    array = array_of_tensor(tensor)
    if tensor.numel() and array.ctypes.data != tensor.data_ptr():
        raise TypeError("a tensor that is conjugated or negated has no memory of its own values")
    return array


def tensor_of_array(array: Array) -> Any:
    """Return an array as a tensor: over its memory where that can be written to, else over a copy.

    Byte order becomes the host's. An array of a dtype that Torch lacks, such as text or dates, is
    returned as it is, read-only.

    Raises:
        ConfigurationError: Torch is not installed.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise ConfigurationError(
            "tensors were asked for: install Torch, or redis-replay[torch]"
        ) from None
    name = array.dtype.name
    dtype = getattr(torch, name, None) if name in _SAME_NAME or name in _CARRIERS else None
    if dtype is None:
        return read_only(array)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    elif not array.flags.writeable:
        array = array.copy()
    if name in _SAME_NAME:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.dtype(_CARRIERS[name]))).view(dtype)


store_as_array("torch", name="Tensor", to_array=array_of_tensor)
