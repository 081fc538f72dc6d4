"""One value as bytes and back, exactly: msgpack with a few extension types of our own.

Every storable value reads back with its type: ``True`` is not ``1``, ``7`` is not ``7.0``, ``""``,
``b""``, ``[]``, ``()``, ``{}`` and ``None`` differ, a tuple stays a tuple, keys of a mapping stay
what they were, ``-0.0`` and the bits of a NaN are kept, and so are dtype, byte order and shape of
arrays. What msgpack lacks is added so:

==========  ===================================================================================
code        meaning
==========  ===================================================================================
1 (empty)   first element of an array: the rest is a tuple
2 (empty)   first element of an array: the rest is the keys and values of a mapping in turn,
            used as soon as one key is not plain text
3           integer beyond 64 bits, little-endian two's complement
16 and up   `arrays.ArrayKind`: header length (two bytes), msgpack ``[dtype, shape]``, zeros up to
            a multiple of 16, raw bytes
==========  ===================================================================================

Never pickle: reading runs no code that the bytes choose. Lossless widenings of type are refused
like everything else that would come back as something else, with two exceptions: ``np.str_`` reads
back as ``str`` and ``np.bytes_`` as ``bytes``. Subclasses (named tuples, enums, ordered or default
dictionaries, masked arrays), sets, dates, decimals and fractions are a ``TypeError``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Final

import msgpack
import numpy as np

from redis_replay.arrays import (
    ARRAY_ALIGNMENT_BYTES,
    Array,
    ArrayKind,
    Buffer,
    as_shape,
    dtype_name,
    dtype_named,
    kind_coded,
    kind_of,
    view_over,
)
from redis_replay.errors import PayloadCorrupted

Value = (
    bool | int | float | str | bytes | list[Any] | tuple[Any, ...] | dict[Any, Any]
    | Array | np.generic | None
)  # fmt: skip
"""What a cell may hold; containers hold the same again, `MAX_DEPTH` levels deep.

Writing asks for it; reading is typed ``Any``, so that nobody has to narrow what they know.
"""

MAX_DEPTH: Final = 64
"""Most containers inside one another, on both ways."""

_PLAIN: Final = frozenset({type(None), bool, int, float, str, bytes})
_BIG_INTEGER: Final = 3


class _Form(Enum):
    """What the rest of an array is, when one of these is its first element."""

    TUPLE = 1
    MAPPING = 2


_TUPLE: Final = msgpack.ExtType(_Form.TUPLE.value, b"")
_MAPPING: Final = msgpack.ExtType(_Form.MAPPING.value, b"")


def encode_value(value: Value, path: str) -> bytes:
    """Return the bytes of one value; nothing in them refers to the value afterwards.

    Args:
        value: Any `Value`.
        path: What to call it in an error, usually the field's name.

    Raises:
        TypeError: Something in it cannot be stored. The message starts with its path, such as
            ``extra.a[3]``.
    """
    return value_encoder()(value, path)


def value_encoder() -> Callable[[Value, str], bytes]:
    """Return an `encode_value` for many values in a row, seven times as fast on plain ones.

    It is for one thread, and of no further use once it has raised.
    """
    pack = msgpack.Packer(
        default=_big_integer, strict_types=True, unicode_errors="surrogatepass"
    ).pack
    return lambda value, path: pack(_lowered(value, path, 0))


def decode_value(encoded: Buffer, path: str) -> Any:
    """Return the `Value` that `encode_value` was given. Arrays in it are read-only.

    Raises:
        PayloadCorrupted: The bytes are not those of exactly one value.
        ConfigurationError: An array needs a package that is not installed.
    """
    try:
        packed = msgpack.unpackb(encoded, ext_hook=_read_extension, unicode_errors="surrogatepass")
        return _restored(packed, 0)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise PayloadCorrupted(f"{path}: unreadable value: {error}") from error


def _lowered(value: object, path: str, depth: int) -> Any:
    """Return the value in terms of what msgpack packs as it is."""
    if type(value) in _PLAIN:
        return value
    lower = _LOWER_CONTAINER.get(type(value))
    if lower is not None:
        if depth == MAX_DEPTH:
            raise TypeError(f"{path}: nested deeper than {MAX_DEPTH} levels")
        return lower(value, path, depth + 1)
    kind = kind_of(value)
    if kind is not None:
        return _lowered_array(kind, value, path)
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.bytes_):
        return bytes(value)
    cls = type(value)
    raise TypeError(
        f"{path}: cannot store a {cls.__module__}.{cls.__qualname__}; storable are None, bool, "
        "int, float, str, bytes, NumPy arrays and scalars, and lists, tuples and dicts of those"
    )


def _lowered_list(items: list[Any] | tuple[Any, ...], path: str, depth: int) -> list[Any]:
    if _PLAIN.issuperset(map(type, items)):
        return list(items)
    return [_lowered(item, f"{path}[{i}]", depth) for i, item in enumerate(items)]


def _lowered_tuple(items: tuple[Any, ...], path: str, depth: int) -> list[Any]:
    return [_TUPLE, *_lowered_list(items, path, depth)]


def _lowered_mapping(items: dict[Any, Any], path: str, depth: int) -> Any:
    if all(type(key) is str for key in items):
        if _PLAIN.issuperset(map(type, items.values())):
            return items
        return {key: _lowered(item, _member(path, key), depth) for key, item in items.items()}
    flat: list[Any] = [_MAPPING]
    for key, item in items.items():
        member = _member(path, key)
        flat.append(_lowered(key, f"key of {member}", depth))
        flat.append(_lowered(item, member, depth))
    return flat


_LOWER_CONTAINER: Final[dict[type, Callable[[Any, str, int], Any]]] = {
    list: _lowered_list,
    tuple: _lowered_tuple,
    dict: _lowered_mapping,
}


def _member(path: str, key: object) -> str:
    return f"{path}.{key}" if type(key) is str and key.isidentifier() else f"{path}[{key!r}]"


def _lowered_array(kind: ArrayKind, value: Any, path: str) -> msgpack.ExtType:
    array = kind.to_array(value)
    header = msgpack.packb([dtype_name(array.dtype, path=path), array.shape])
    padding = -(2 + len(header)) % ARRAY_ALIGNMENT_BYTES
    prefix = len(header).to_bytes(2, "little") + header + bytes(padding)
    return msgpack.ExtType(kind.extension_code, prefix + array.tobytes())


def _big_integer(value: Any) -> msgpack.ExtType:
    """Pack what msgpack could not: after `_lowered` that is an integer beyond 64 bits."""
    return msgpack.ExtType(
        _BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    )


def _read_extension(code: int, body: bytes) -> Any:
    if code == _BIG_INTEGER:
        return int.from_bytes(body, "little", signed=True)
    if code in (_Form.TUPLE.value, _Form.MAPPING.value) and not body:
        return _Form(code)
    return _read_array(kind_coded(code), body)


def _read_array(kind: ArrayKind, body: bytes) -> Any:
    header_end = 2 + int.from_bytes(body[:2], "little")
    name, dimensions = msgpack.unpackb(body[2:header_end])
    dtype = dtype_named(name)
    shape = as_shape(dimensions)
    start = header_end + -header_end % ARRAY_ALIGNMENT_BYTES
    if start + math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError(f"{len(body)} bytes hold no {shape} of {name}")
    return kind.from_array(view_over(body, dtype=dtype, shape=shape, start=start))


def _restored(packed: object, depth: int) -> Any:
    """Turn what msgpack unpacked into what `_lowered` was given."""
    if type(packed) in _PLAIN or kind_of(packed) is not None:
        return packed
    restore = _RESTORE_CONTAINER.get(type(packed))
    if restore is None:
        raise ValueError(f"a {type(packed).__qualname__} is out of place")
    if depth == MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return restore(packed, depth + 1)


def _restored_array(packed: list[Any], depth: int) -> Any:
    if _PLAIN.issuperset(map(type, packed)):
        return packed
    form = packed[0] if type(packed[0]) is _Form else None
    members = [_restored(item, depth) for item in (packed[1:] if form else packed)]
    if form is _Form.TUPLE:
        return tuple(members)
    if form is _Form.MAPPING:
        mapping = dict(zip(members[::2], members[1::2], strict=True))
        if 2 * len(mapping) != len(members):
            raise ValueError("a mapping has a key twice")
        return mapping
    return members


def _restored_mapping(packed: dict[str, Any], depth: int) -> dict[str, Any]:
    return {key: _restored(item, depth) for key, item in packed.items()}


_RESTORE_CONTAINER: Final[dict[type, Callable[[Any, int], Any]]] = {
    list: _restored_array,
    dict: _restored_mapping,
}
