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
4           number of a value that stands beside the cells, because several of them share it
16 and up   `arrays.ArrayKind`: header length (two bytes), msgpack ``[dtype, shape]``, zeros up to
            a multiple of 16, raw bytes
==========  ===================================================================================

Never pickle: reading runs no code that the bytes choose. Lossless widenings of type are refused
like everything else that would come back as something else, with two exceptions: ``np.str_`` reads
back as ``str`` and ``np.bytes_`` as ``bytes``; Torch tensors are stored as the arrays they are.
Subclasses (named tuples, enums, ordered or default dictionaries, masked arrays), sets, dates,
decimals and fractions are a ``TypeError``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from enum import Enum
from typing import Any, Final, cast

import msgpack
import numpy as np

from redis_replay.arrays import (
    ARRAY_ALIGNMENT_BYTES,
    Array,
    ArrayKind,
    Buffer,
    HandOut,
    as_array,
    as_shape,
    kind_coded,
    kind_of,
    read_only,
    view_over,
    without_padding,
)
from redis_replay.dtypes import dtype_name, dtype_named
from redis_replay.errors import PayloadCorrupted
from redis_replay.sharing import LEAST_SHARED_BYTES, Shared, SharedValues

Value = (
    bool | int | float | str | bytes | list[Any] | tuple[Any, ...] | dict[Any, Any]
    | Array | np.generic | None
)  # fmt: skip
"""What a cell may hold; containers hold the same again, `MAX_DEPTH` levels deep.

Writing asks for it; reading is typed ``Any``, so that nobody has to narrow what they know.
"""

MAX_DEPTH: Final = 64
"""Most containers inside one another, on both ways."""

_PLAIN: Final = frozenset({type(None), bool, int, float, str})
_TEXT: Final = frozenset({str})
_UNPACKED: Final = _PLAIN | {bytes}
_BIG_INTEGER: Final = 3
_SHARED: Final = 4
_LIST_OF: Final = b"\xdd"
"""Before a number of four bytes and as many values, it makes them one list."""

_UNREADABLE: Final = (ValueError, TypeError, OverflowError, msgpack.UnpackException)


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
    return value_packer()(lower_value(value, path))


def lower_value(value: Value, path: str, shared: SharedValues | None = None) -> Any:
    """Check a value and everything in it, and return it in terms of what `value_packer` packs.

    Args:
        value: Any `Value`.
        path: What to call it in an error.
        shared: Where to note the large arrays and byte strings in it. Values that were chosen there
            before the packing are packed as their number.

    Raises:
        TypeError: Something in it cannot be stored; the message starts with its path.
    """
    return _lowered(value, path, 0, shared)


def are_plain(types: Set[type]) -> bool:
    """Return whether values of these types may be packed as they are."""
    return types <= _PLAIN


def value_packer() -> Callable[[Any], bytes]:
    """Return what packs values from `lower_value`; a packer of one's own is far from free.

    It is for one thread.
    """
    pack: Callable[[Any], bytes] = msgpack.Packer(
        default=_packed_apart, strict_types=True, unicode_errors="surrogatepass"
    ).pack
    return pack


def value_decoder(
    path: str, *, hand_out: HandOut = read_only, shared: Sequence[Any] = ()
) -> Callable[[Buffer], Any]:
    """Return a `decode_value` for many values of one column.

    Args:
        path: What to call a value in an error.
        hand_out: What becomes of each array over received bytes.
        shared: The values that stand beside the cells: bytes, or a kind and a read-only array.
    """

    read_extension = _extension_reader(hand_out, shared)

    def decode(encoded: Buffer) -> Any:
        try:
            packed = msgpack.unpackb(
                encoded, ext_hook=read_extension, unicode_errors="surrogatepass"
            )
            return packed if type(packed) in _UNPACKED else _restored(packed, 0)
        except _UNREADABLE as error:
            raise PayloadCorrupted(f"{path}: unreadable value: {error}") from error

    return decode


def decode_values(
    encoded: Buffer, path: str, *, count: int, hand_out: HandOut = read_only
) -> list[Any]:
    """Return values that stand back to back. Much faster than one after the other.

    Raises:
        PayloadCorrupted: The bytes are not those of exactly so many values.
        ConfigurationError: An array needs a package that is not installed.
    """
    whole = b"".join((_LIST_OF, count.to_bytes(4, "big"), encoded))
    try:
        packed: list[Any] = msgpack.unpackb(
            whole, ext_hook=_extension_reader(hand_out, ()), unicode_errors="surrogatepass"
        )
        if _UNPACKED.issuperset(map(type, packed)):
            return packed
        return [_restored(value, 0) for value in packed]
    except _UNREADABLE as error:
        raise PayloadCorrupted(f"{path}: unreadable values: {error}") from error


def _extension_reader(hand_out: HandOut, shared: Sequence[Any]) -> Callable[[int, bytes], Any]:
    def read_extension(code: int, body: bytes) -> Any:
        if code == _BIG_INTEGER:
            return int.from_bytes(body, "little", signed=True)
        if code in (_Form.TUPLE.value, _Form.MAPPING.value) and not body:
            return _Form(code)
        if code == _SHARED:
            return _shared_value(shared, body, hand_out)
        return _read_array(kind_coded(code), body, hand_out)

    return read_extension


def decode_value(encoded: Buffer, path: str, *, hand_out: HandOut = read_only) -> Any:
    """Return the `Value` that `encode_value` was given. Arrays in it are read-only by default.

    Raises:
        PayloadCorrupted: The bytes are not those of exactly one value.
        ConfigurationError: An array needs a package that is not installed.
    """
    return value_decoder(path, hand_out=hand_out)(encoded)


def _lowered(value: object, path: str, depth: int, shared: SharedValues | None) -> Any:
    cls = type(value)
    if cls in _PLAIN:
        return value
    lower = _LOWER_CONTAINER.get(cls)
    if lower is not None:
        if depth == MAX_DEPTH:
            raise TypeError(f"{path}: nested deeper than {MAX_DEPTH} levels")
        return lower(value, path, depth + 1, shared)
    kind = kind_of(value)
    if kind is not None:
        return _lowered_array(kind, value, path, shared)
    if cls is bytes or isinstance(value, np.bytes_):
        return _lowered_bytes(bytes(cast(bytes, value)), shared)
    if isinstance(value, np.str_):
        return str(value)
    raise TypeError(
        f"{path}: cannot store a {cls.__module__}.{cls.__qualname__}; storable are None, bool, "
        "int, float, str, bytes, NumPy arrays and scalars, Torch tensors, and lists, tuples and "
        "dicts of those"
    )


def _lowered_list(items: Any, path: str, depth: int, shared: SharedValues | None) -> list[Any]:
    if _PLAIN.issuperset(map(type, items)):
        return list(items)
    return [
        item if type(item) in _PLAIN else _lowered(item, f"{path}[{at}]", depth, shared)
        for at, item in enumerate(items)
    ]


def _lowered_tuple(items: Any, path: str, depth: int, shared: SharedValues | None) -> list[Any]:
    return [_TUPLE, *_lowered_list(items, path, depth, shared)]


def _lowered_mapping(
    items: dict[Any, Any], path: str, depth: int, shared: SharedValues | None
) -> Any:
    if _TEXT.issuperset(map(type, items)):
        if _PLAIN.issuperset(map(type, items.values())):
            return items
        return {
            key: item if type(item) in _PLAIN else _lowered(item, _member(path, key), depth, shared)
            for key, item in items.items()
        }
    flat: list[Any] = [_MAPPING]
    for key, item in items.items():
        member = _member(path, key)
        flat.append(_lowered(key, f"key of {member}", depth, None))
        flat.append(_lowered(item, member, depth, shared))
    return flat


_LOWER_CONTAINER: Final[dict[type, Callable[[Any, str, int, SharedValues | None], Any]]] = {
    list: _lowered_list,
    tuple: _lowered_tuple,
    dict: _lowered_mapping,
}


def _member(path: str, key: object) -> str:
    return f"{path}.{key}" if type(key) is str and key.isidentifier() else f"{path}[{key!r}]"


def _lowered_bytes(value: bytes, shared: SharedValues | None) -> bytes | Shared:
    if shared is None or len(value) < LEAST_SHARED_BYTES:
        return value
    return shared.known(value) or shared.add(value, value, kind=None, dtype="")


def _lowered_array(
    kind: ArrayKind, value: Any, path: str, shared: SharedValues | None
) -> msgpack.ExtType | Shared:
    found = shared.known(value) if shared is not None else None
    if found is not None:
        return found
    array = as_array(kind, value, path=path)
    dtype = dtype_name(array.dtype, path=path)
    if array.dtype.names is not None:
        array = without_padding(array)
    if shared is not None and array.nbytes >= LEAST_SHARED_BYTES:
        return shared.add(value, array, kind=kind, dtype=dtype)
    return _packed_array(kind, array, dtype)


def _packed_array(kind: ArrayKind, array: Array, dtype: str) -> msgpack.ExtType:
    header = msgpack.packb([dtype, array.shape])
    padding = -(2 + len(header)) % ARRAY_ALIGNMENT_BYTES
    prefix = len(header).to_bytes(2, "little") + header + bytes(padding)
    return msgpack.ExtType(kind.extension_code, prefix + array.tobytes())


def _packed_apart(value: Any) -> msgpack.ExtType | bytes:
    """Pack what msgpack could not: after `lower_value` large values and integers."""
    if type(value) is not Shared:
        return msgpack.ExtType(
            _BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        )
    if value.number is not None:
        return msgpack.ExtType(_SHARED, value.number.to_bytes(4, "little"))
    if value.kind is None:
        return cast(bytes, value.content)
    return _packed_array(value.kind, value.content.reshape(value.shape), value.dtype)


def _shared_value(shared: Sequence[Any], body: bytes, hand_out: HandOut) -> Any:
    number = int.from_bytes(body, "little")
    if len(body) != 4 or number >= len(shared) or shared[number] is None:
        raise ValueError(f"the shared value {number} is not there")
    if isinstance(shared[number], bytes):
        return shared[number]
    kind, array = shared[number]
    return kind.restored(array, hand_out)


def _read_array(kind: ArrayKind, body: bytes, hand_out: HandOut) -> Any:
    header_end = 2 + int.from_bytes(body[:2], "little")
    name, dimensions = msgpack.unpackb(body[2:header_end])
    dtype = dtype_named(name)
    shape = as_shape(dimensions)
    start = header_end + -header_end % ARRAY_ALIGNMENT_BYTES
    if start + math.prod(shape) * dtype.itemsize != len(body):
        raise ValueError(f"{len(body)} bytes hold no {shape} of {name}")
    return kind.restored(view_over(body, dtype=dtype, shape=shape, start=start), hand_out)


def _restored(packed: object, depth: int) -> Any:
    """Turn what msgpack unpacked into what `lower_value` was given."""
    cls = type(packed)
    if cls in _UNPACKED:
        return packed
    restore = _RESTORE_CONTAINER.get(cls)
    if restore is None:
        if kind_of(packed) is None:
            raise ValueError(f"a {cls.__qualname__} is out of place")
        return packed
    if depth == MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return restore(packed, depth + 1)


def _restored_array(packed: list[Any], depth: int) -> Any:
    if _UNPACKED.issuperset(map(type, packed)):
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
    if _UNPACKED.issuperset(map(type, packed.values())):
        return packed
    return {key: _restored(item, depth) for key, item in packed.items()}


_RESTORE_CONTAINER: Final[dict[type, Callable[[Any, int], Any]]] = {
    list: _restored_array,
    dict: _restored_mapping,
}
