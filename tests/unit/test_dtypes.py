"""A dtype has one name, which names exactly it, or it has none and is refused."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from redis_replay.codec import decode_value, encode_value
from redis_replay.dtypes import dtype_name, dtype_named
from redis_replay.payloads import decode_group, encode_group
from tests.identity import identity_of

STRUCTURES: dict[str, Any] = {
    "two fields": "i4,>f4",
    "aligned": np.dtype([("a", "u1"), ("b", "f8")], align=True),
    "not aligned": [("a", "u1"), ("b", "f8")],
    "offsets": {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [2, 8], "itemsize": 16},
    "overlapping": {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [0, 2]},
    "nested": [("x", [("y", "S3"), ("z", "M8[ns]")]), ("w", "?")],
    "with axes": [("a", "<i4"), ("b", ">f8", (2, 3))],
    "of ml_dtypes": [("h", ml_dtypes.bfloat16), ("e", ml_dtypes.float8_e4m3fn, (4,))],
    "names of any text": [("\u043f\u043e\u043b\u0435", "i4"), ('"', "i4")],
    "raw bytes": "V7",
}


@pytest.mark.parametrize("case", STRUCTURES)
def test_a_structure_keeps_fields_offsets_and_alignment(case: str) -> None:
    dtype: np.dtype[Any] = np.dtype(STRUCTURES[case])
    named = dtype_named(dtype_name(dtype, path="x"))
    assert (repr(dtype), dtype.isalignedstruct) == (repr(named), named.isalignedstruct)


@pytest.mark.parametrize("case", STRUCTURES)
def test_arrays_and_scalars_of_a_structure_come_back_exactly(case: str) -> None:
    dtype: np.dtype[Any] = np.dtype(STRUCTURES[case])
    bits = np.random.default_rng(3).integers(0, 2, 6 * dtype.itemsize, dtype=np.uint8)
    array = bits.view(dtype).reshape(2, 3)
    for value in (array, array[0, 1], array[:, ::2], {"k": [array[1], array[1, 1]]}):
        assert identity_of(value) == identity_of(decode_value(encode_value(value, "x"), "x"))
    rows = [{"x": array[0], "y": array[row, 0]} for row in range(2)]
    group = encode_group("g", rows)
    read = decode_group("g", group.directory, group.payload)
    assert identity_of(rows) == identity_of(read)


def test_what_is_stored_of_a_structure_depends_on_its_values_alone() -> None:
    dtype = np.dtype([("a", "u1"), ("b", "f8")], align=True)
    ones, twos = np.full(48, 1, np.uint8).view(dtype), np.full(48, 2, np.uint8).view(dtype)
    for name in ("a", "b"):
        twos[name] = ones[name]
    assert encode_value([ones, ones[0]], "x") == encode_value([twos, twos[0]], "x")
    first, second = encode_group("g", [{"x": ones}]), encode_group("g", [{"x": twos}])
    assert (first.payload, first.directory) == (second.payload, second.directory)


FIELDS = st.tuples(
    st.text(min_size=1, max_size=3),
    npst.scalar_dtypes() | npst.unicode_string_dtypes(max_len=3),
    npst.array_shapes(min_dims=0, max_dims=2, max_side=3),
)
STRUCTURED = st.recursive(
    st.lists(FIELDS, min_size=1, max_size=3, unique_by=lambda field: field[0]),
    lambda inner: st.lists(
        st.tuples(st.text(min_size=1, max_size=3), inner, st.just((2,))),
        min_size=1,
        max_size=3,
        unique_by=lambda field: field[0],
    ),
    max_leaves=3,
)


@settings(max_examples=100, deadline=None)
@given(STRUCTURED, st.booleans())
def test_any_structure_has_a_name_of_its_own(fields: Any, align: bool) -> None:
    dtype: np.dtype[Any] = np.dtype(fields, align=align)
    assert repr(dtype) == repr(dtype_named(dtype_name(dtype, path="x")))


def structure(**changes: Any) -> str:
    described = {"fields": [["a", "<i4", 0, []]], "itemsize": 4, "aligned": 0, **changes}
    return json.dumps(described, separators=(",", ":"))


FOREIGN: dict[str, Any] = {
    "nothing": "",
    "no text": 4,
    "half a structure": "{",
    "an empty structure": "{}",
    "braces without end": "{" * 5000,
    "brackets without end": '{"fields":' + "[" * 5000,
    "no fields": structure(fields=[]),
    "fields that are no list": structure(fields=5),
    "objects": structure(fields=[["a", "|O", 0, []]], itemsize=8),
    "a field twice": structure(fields=[["a", "<i4", 0, []], ["a", "<i4", 4, []]], itemsize=8),
    "a negative offset": structure(fields=[["a", "<i4", -4, []]]),
    "a field beyond the end": structure(fields=[["a", "<i4", 2, []]]),
    "more axes than memory": structure(fields=[["a", "<i4", 0, [2**40, 2**40]]]),
    "a smaller width": structure(itemsize=2),
    "a width that is no number": structure(itemsize="4"),
    "spaces": structure().replace(",", ", "),
    "one more fact": structure(more=1),
    "raw bytes without width": "|V0",
    "long double": "<f16",
    "two widths": "2i4",
    "a function": "finfo",
}


def test_the_name_that_the_foreign_ones_vary_is_good() -> None:
    assert np.dtype([("a", "<i4")]) == dtype_named(structure())


@pytest.mark.parametrize("case", FOREIGN)
def test_a_name_that_names_nothing_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="unknown dtype"):
        dtype_named(FOREIGN[case])


def test_a_name_too_long_to_be_read_is_not_given() -> None:
    dtype = np.dtype([(f"field {number}", "i4") for number in range(3000)])
    with pytest.raises(TypeError, match=r"^x: arrays of dtype"):
        dtype_name(dtype, path="x")
