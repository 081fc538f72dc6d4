"""A value comes back as what it was, or is refused before anything is written."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import math
import re
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from redis_replay.codec import (
    MAX_DEPTH,
    decode_value,
    decode_values,
    encode_value,
    lower_value,
    value_packer,
)
from redis_replay.errors import PayloadCorrupted
from tests.identity import identity_of


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.IntEnum):
    RED = 1


class Opaque:
    """A class the codec has never heard of."""


def round_trip(value: Any) -> Any:
    return decode_value(encode_value(value, "field"), "field")


def assert_round_trip(value: Any) -> None:
    assert identity_of(value) == identity_of(round_trip(value))


LOOK_ALIKES: list[Any] = [
    None, True, False, 0, 1, 7, 7.0, -0.0, 0.0, "", b"", [], (), {}, [None], (None,), "7", b"7",
    [1, 2], (1, 2), [[1], [2]], ((1,), (2,)), {"1": 0}, {1: 0}, {True: 0}, {b"1": 0}, {None: 0},
    {(1, 2): 0}, {1.0: 0}, np.array(1), np.int64(1), np.array([1]), np.bool_(True), np.float64(7.0),
    np.float32(7.0), math.nan, math.inf, -math.inf, 2**63, 2**64, -(2**63) - 1, 2**70, -(2**70),
]  # fmt: skip


@pytest.mark.parametrize("value", LOOK_ALIKES, ids=repr)
def test_a_value_keeps_its_type_and_its_bits(value: Any) -> None:
    assert_round_trip(value)


def test_no_two_look_alikes_have_the_same_bytes() -> None:
    encoded = [encode_value(value, "field") for value in LOOK_ALIKES]
    assert len(LOOK_ALIKES) == len(set(encoded))


def test_the_payload_of_a_python_nan_is_kept() -> None:
    bits = 0x7FF8_0000_DEAD_BEEF
    [value] = struct.unpack("<d", struct.pack("<Q", bits))
    assert bits == struct.unpack("<Q", struct.pack("<d", round_trip(value)))[0]


def test_text_with_a_lone_surrogate_is_kept() -> None:
    assert_round_trip(["\ud800", {"\udfff": "pi-π-группа-🙂"}])


def test_numpy_text_reads_back_as_plain_text_and_bytes() -> None:
    value = {"a": [np.str_("π"), np.bytes_(b"\x80")], np.str_("key"): 1}
    assert identity_of({"a": ["π", b"\x80"], "key": 1}) == identity_of(round_trip(value))


def test_arrays_inside_containers_keep_dtype_and_shape() -> None:
    assert_round_trip(
        {
            "a": [np.arange(6, dtype=">i2").reshape(2, 3), (np.zeros((0, 7), "f4"), np.int8(3))],
            (1, (2, b"x")): {"deep": {3: np.array("text"), 2**80: np.array(b"raw")}},
        }
    )


DTYPES = [
    "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "<f2", ">f4", "<f8", "|i1", "|b1", "<u2",
    "<i8", ">i8", "<c8", ">c16", "<M8[ns]", "<M8[25s]", ">m8[D]", "<U5", ">U5", "|S3", "|V3",
]  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (0, 7), (3, 0), (1, 0, 2), (3, 4)], ids=str)
def test_every_dtype_keeps_its_name_and_shape_and_raw_bytes(
    name: str, shape: tuple[int, ...]
) -> None:
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name, name))
    array = np.arange(math.prod(shape)).reshape(shape).astype("S3" if name == "|V3" else dtype)
    assert_round_trip(array.view(dtype))
    if array.size and not np.issubdtype(array.dtype, np.character):
        assert_round_trip(array.reshape(-1)[-1])


def test_bit_patterns_of_narrow_floats_are_kept() -> None:
    for dtype, width in ((ml_dtypes.bfloat16, "u2"), (ml_dtypes.float8_e5m2, "u1"), ("f2", "u2")):
        patterns = np.arange(256**2 if width == "u2" else 256, dtype=width)
        array = patterns.view(dtype)
        assert array.nbytes == patterns.nbytes
        assert patterns.tobytes() == round_trip(array).tobytes()


def test_bfloat16_takes_two_bytes_an_element() -> None:
    one, two = (encode_value(np.zeros((n, 4), ml_dtypes.bfloat16), "x") for n in (3, 6))
    assert 24 == len(two) - len(one)


def test_arrays_have_up_to_64_axes() -> None:
    assert_round_trip(np.ones((1,) * 64, np.int8))


VIEWS: dict[str, Callable[[], Any]] = {
    "transposed": lambda: np.arange(6).reshape(2, 3).T,
    "backwards": lambda: np.arange(100)[::-3],
    "fortran": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "broadcast": lambda: np.broadcast_to(np.array(5), (4, 4)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_stored_by_its_values(view: str) -> None:
    array = VIEWS[view]()
    assert_round_trip(array)


def test_a_slice_does_not_drag_its_base_along() -> None:
    base = np.zeros((1000, 1024), np.float32)
    assert len(encode_value(base[7], "x")) < 5000


def test_nothing_that_was_encoded_changes_with_the_caller_s_objects() -> None:
    array, items = np.zeros(4), [1, [2]]
    encoded = encode_value({"a": array, "b": items}, "x")
    array[:] = 9
    items.append(3)
    assert identity_of({"a": np.zeros(4), "b": [1, [2]]}) == identity_of(decode_value(encoded, "x"))


def test_decoded_arrays_are_read_only_and_aligned() -> None:
    array = round_trip([1, np.arange(5, dtype=np.complex128)])[1]
    assert not array.flags.writeable
    assert array.flags.aligned
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_two_readings_share_nothing() -> None:
    encoded = encode_value({"a": [1]}, "x")
    first: Any = decode_value(encoded, "x")
    first["a"].append(2)
    assert {"a": [1]} == decode_value(encoded, "x")


UNSTORABLE: dict[str, tuple[Any, str, str]] = {
    "set": ({"a": [0, 1, 2, {3}]}, "extra.a[3]", "set"),
    "frozenset": (frozenset({1}), "extra", "frozenset"),
    "datetime": ({"when": datetime.datetime(2026, 11, 1)}, "extra.when", "datetime"),
    "date": ([datetime.date(2026, 11, 1)], "extra[0]", "date"),
    "decimal": ((1, decimal.Decimal("0.5")), "extra[1]", "Decimal"),
    "fraction": (fractions.Fraction(1, 2), "extra", "Fraction"),
    "function": ({"not a name": [len]}, "extra['not a name'][0]", "builtin_function"),
    "class": ({2: Opaque()}, "extra[2]", "Opaque"),
    "class in a key": ({Opaque: 1}, "key of extra[", "type"),
    "objects": ({"a": np.array([1, None], object)}, "extra.a", "object"),
    "structure with titles": (np.zeros(2, [(("title", "a"), "i4")]), "extra", "title"),
    "structure of objects": (np.zeros(2, [("a", "i4"), ("b", "O")]), "extra", "O"),
    "record array": (np.zeros(2, np.dtype((np.record, [("a", "i4")]))), "extra", "record"),
    "long double": (np.zeros(2, np.longdouble), "extra", "float"),
    "long double scalar": ([np.longdouble(1)], "extra[0]", "float"),
    "void without width": (np.zeros(2, "V0"), "extra", "V0"),
    "foreign byte order": (
        np.zeros(2, np.dtype(ml_dtypes.bfloat16).newbyteorder(">")),
        "extra",
        "V2",
    ),
    "masked array": (np.ma.MaskedArray([1, 2], [True, False]), "extra", "MaskedArray"),
    "variable text": (np.array(["a"], np.dtypes.StringDType()), "extra", "StringDType"),
    "named tuple": (Point(1, 2), "extra", "Point"),
    "enum": (Colour.RED, "extra", "Colour"),
    "ordered dict": (OrderedDict(a=1), "extra", "OrderedDict"),
    "bytearray": (bytearray(b"x"), "extra", "bytearray"),
    "complex": (1j, "extra", "complex"),
}


@pytest.mark.parametrize("case", UNSTORABLE)
def test_what_cannot_be_stored_is_refused_by_its_path(case: str) -> None:
    value, path, name = UNSTORABLE[case]
    with pytest.raises(TypeError, match=f"^{re.escape(path)}.*{re.escape(name)}"):
        encode_value(value, "extra")


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = wrap(value)
    return value


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "lists": lambda value: [value],
    "tuples": lambda value: (value,),
    "mappings": lambda value: {"k": value},
    "mappings with other keys": lambda value: {1: value},
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_nesting_is_limited_on_the_way_in(wrapper: str) -> None:
    assert_round_trip(nested(MAX_DEPTH, WRAPPERS[wrapper]))
    for depth in (MAX_DEPTH + 1, 200):
        with pytest.raises(TypeError, match=rf"^x[^:]*: nested deeper than {MAX_DEPTH} levels"):
            encode_value(nested(depth, WRAPPERS[wrapper]), "x")


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="nested deeper"):
        encode_value(endless, "x")


def hostile_array(header: Any, raw: bytes = b"", code: int = 16) -> bytes:
    packed = msgpack.packb(header)
    padding = bytes(-(2 + len(packed)) % 16)
    body = len(packed).to_bytes(2, "little") + packed + padding + raw
    return msgpack.packb(msgpack.ExtType(code, body))


FOREIGN: dict[str, bytes] = {
    "nothing": b"",
    "trailing bytes": encode_value(1, "x") + b"\x00",
    "cut short": encode_value([1, "text"], "x")[:-1],
    "reserved byte": b"\xc1",
    "unknown extension": msgpack.packb(msgpack.ExtType(99, b"abc")),
    "timestamp": msgpack.packb(msgpack.Timestamp(1, 2)),
    "timestamp inside": msgpack.packb([[msgpack.Timestamp(1, 2)]]),
    "bad text": b"\xa1\xff",
    "integer key": msgpack.packb({1: 2}),
    "too deep": b"\x91" * 65 + b"\x90",
    "far too deep": b"\x91" * 5000 + b"\x90",
    "huge list": b"\xdd\xff\xff\xff\xff",
    "tuple sign alone": msgpack.packb(msgpack.ExtType(1, b"")),
    "tuple sign inside": msgpack.packb([1, msgpack.ExtType(1, b"")]),
    "tuple sign with a body": msgpack.packb([msgpack.ExtType(1, b"x"), 1]),
    "mapping without a value": msgpack.packb([msgpack.ExtType(2, b""), 1]),
    "mapping with a key twice": msgpack.packb([msgpack.ExtType(2, b""), 1, 2, 1, 3]),
    "mapping with a list as key": msgpack.packb([msgpack.ExtType(2, b""), [], 2]),
    "array without a header": msgpack.packb(msgpack.ExtType(16, b"")),
    "array header of other shape": hostile_array(["<i4"]),
    "array too short": hostile_array(["<i4", [3]], bytes(8)),
    "array too long": hostile_array(["<i4", [3]], bytes(16)),
    "array of huge shape": hostile_array(["<i4", [2**62, 2**62]]),
    "array of huge empty shape": hostile_array(["<i4", [0, 2**62, 2**62]]),
    "array with a negative axis": hostile_array(["<i4", [-1, -3]], bytes(12)),
    "array with a fractional axis": hostile_array(["<i4", [3.0]], bytes(12)),
    "array with 65 axes": hostile_array(["<i4", [1] * 65], bytes(4)),
    "objects": hostile_array(["|O", [1]], bytes(8)),
    "structure": hostile_array(["i4,f4", [1]], bytes(8)),
    "subarray": hostile_array(["2i4", [1]], bytes(8)),
    "no width": hostile_array(["<U0", [1]]),
    "byte order where there is none": hostile_array([">u1", [1]], bytes(1)),
    "unknown dtype": hostile_array(["bfloat17", [1]], bytes(2)),
    "a name that is no dtype": hostile_array(["finfo", [1]], bytes(2)),
    "dtype that is no text": hostile_array([4, [1]], bytes(4)),
    "text scalar": hostile_array(["<U1", []], bytes(4), code=17),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_bytes_that_are_not_ours_are_corruption(case: str) -> None:
    with pytest.raises(PayloadCorrupted, match=r"^extra: unreadable value"):
        decode_value(FOREIGN[case], "extra")


def test_a_type_that_msgpack_knows_and_we_do_not_is_named() -> None:
    with pytest.raises(PayloadCorrupted, match="a Timestamp is out of place"):
        decode_value(FOREIGN["timestamp inside"], "x")
    with pytest.raises(PayloadCorrupted, match="unknown extension type 99"):
        decode_value(FOREIGN["unknown extension"], "x")


def test_a_packer_serves_many_values() -> None:
    pack = value_packer()
    assert [encode_value(value, "x") for value in LOOK_ALIKES] == [
        pack(lower_value(value, "x")) for value in LOOK_ALIKES
    ]


FIXED_WIDTH = st.one_of(
    npst.scalar_dtypes(),
    npst.unicode_string_dtypes(max_len=5),
    npst.byte_string_dtypes(max_len=5),
)
ARRAYS = npst.arrays(FIXED_WIDTH, npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
SCALARS = npst.scalar_dtypes().flatmap(npst.from_dtype)
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.binary(),
    st.floats(), st.text(st.characters(codec=None)),
)  # fmt: skip
KEYS = st.recursive(PLAIN, lambda inner: st.tuples(inner, inner), max_leaves=3)
VALUES = st.recursive(
    PLAIN | ARRAYS | SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=3) | KEYS, inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_any_storable_value_comes_back_exactly(value: Any) -> None:
    assert_round_trip(value)


@settings(max_examples=300, deadline=None)
@given(VALUES, st.data())
def test_damaged_bytes_are_a_value_or_corruption_and_nothing_else(
    value: Any, data: st.DataObject
) -> None:
    damaged = bytearray(encode_value(value, "x"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    try:
        decoded = decode_value(bytes(damaged), "x")
    except PayloadCorrupted:
        return
    assert_round_trip(decoded)


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, max_size=5), st.integers(1, 3))
def test_values_back_to_back_come_back_together_if_they_are_so_many(
    values: list[Any], more: int
) -> None:
    encoded = b"".join(encode_value(value, "x") for value in values)
    for received in (encoded, memoryview(bytearray(encoded))):
        decoded = decode_values(received, "x", count=len(values))
        assert identity_of([decode_value(encode_value(v, "x"), "x") for v in values]) == (
            identity_of(decoded)
        )
    for count, bytes_there in (
        (len(values) + more, encoded),
        (max(len(values) - more, 0), encoded + b"\xc0" * (not values)),
        (len(values), encoded + b"\xc0"),
        (len(values) + 1, encoded + b"\xc4"),
    ):
        with pytest.raises(PayloadCorrupted, match="x: unreadable values"):
            decode_values(bytes_there, "x", count=count)


@pytest.mark.parametrize("value", [[], {}, [[[]]], (), {1: 2}, np.arange(3), 2**70, b""])
def test_one_value_among_plain_ones_is_what_it_was(value: Any) -> None:
    values = [1, "a", value, None]
    encoded = b"".join(encode_value(one, "x") for one in values)
    assert identity_of(values) == identity_of(decode_values(encoded, "x", count=4))
