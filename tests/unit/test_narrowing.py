"""A narrowed field takes fewer bytes and reads back as it was given, or is refused by its value."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from redis_replay.directory import Directory, directory_checksum, read_plan
from redis_replay.errors import PayloadCorrupted
from redis_replay.fields import FieldOptions
from redis_replay.narrowing import narrow, narrow_together, narrowed_name
from redis_replay.payloads import decode_columns, decode_group, encode_group
from tests.identity import identity_of


def encoded(rows: list[dict[str, Any]], narrow_to: str, compression: Any = None) -> Any:
    options = FieldOptions(narrow_to=narrow_to, compression=compression)
    return encode_group("g7", rows, fields={"x": options})


FITTING: dict[str, tuple[str, list[Any], int]] = {
    "ids": ("int32", [np.arange(10), np.array([-(2**31), 2**31 - 1])], 12 * 4),
    "jagged and empty": ("int16", [np.arange(n) for n in (5, 0, 9)], 14 * 2),
    "big-endian": ("uint8", [np.arange(256, dtype=">i8")] * 2, 512),
    "mask as bytes": ("uint8", [np.array([0, 1, 1])] * 2, 6),
    "mask as truth values": ("bool", [np.array([0, 1, 1])] * 2, 6),
    "mask as bits": ("bits", [np.ones(9, np.int64), np.arange(17) % 2], 2 + 3),
    "bits of truth values": ("bits", [np.array([True, False, True])] * 2, 2),
    "bits of floats": ("bits", [np.array([0.0, 1.0])] * 2, 2),
    "bits of nothing": ("bits", [np.zeros((0, 7), bool)] * 2, 0),
    "bits in two axes": ("bits", [np.eye(5, dtype=np.int32)] * 2, 2 * 4),
    "floats": ("float16", [np.array([0.5, -0.0, np.inf, 65504.0])] * 2, 16),
    "whole floats": ("int8", [np.array([1.0, -128.0])] * 2, 4),
    "scalars": ("int8", [np.int64(5), np.int64(-1)], 2),
    "no axes": ("int8", [np.array(5), np.array(-1)], 2),
    "transposed": ("int8", [np.arange(6).reshape(2, 3).T] * 2, 12),
    "backwards": ("int8", [np.arange(9)[::-2]] * 2, 10),
}


@pytest.mark.parametrize("case", FITTING)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_what_fits_is_stored_narrow_and_comes_back_as_given(case: str, compression: Any) -> None:
    narrow_to, cells, stored_bytes = FITTING[case]
    rows = [{"x": cell, "y": 1} for cell in cells]
    group = encoded(rows, narrow_to, compression)
    directory = Directory.from_bytes(group.directory)
    if compression is None:
        assert stored_bytes == directory.columns[0].length
    read = decode_group("g7", group.directory, group.payload)
    assert identity_of(rows) == identity_of(read)
    for row in range(len(rows)):
        plan = read_plan(directory, fields=["x"], rows=[row])
        buffers = {p: group.payload[p.offset : p.offset + p.length] for p in plan}
        [cell] = decode_columns(directory, buffers, fields=["x"], rows=[row])["x"]
        assert identity_of(cells[row]) == identity_of(cell)


UNFIT: dict[str, tuple[str, Any, str]] = {
    "too large": ("int32", np.array([[1, 2], [3, 2**31]]), "x[1, 1] is 2147483648, which int32"),
    "negative": ("uint8", np.array([0, -1]), "x[1] is -1, which uint8"),
    "a mask of twos": ("bits", np.array([0, 1, 2]), "x[2] is 2, which bits"),
    "minus nothing": ("int8", np.array([-0.0]), "x[0] is -0.0, which int8"),
    "not a number": ("int8", np.array([math.nan]), "x[0] is nan, which int8"),
    "not a number, as a truth value": ("bits", np.array([math.nan]), "x[0] is nan, which bits"),
    "half": ("int32", np.array([0.5]), "x[0] is 0.5, which int32"),
    "rounded": ("float16", np.array([1.0, 0.1]), "x[1] is 0.1, which float16"),
    "overflow": ("float16", np.array([1e6]), "x[0] is 1000000.0, which float16"),
    "a scalar": ("int8", np.int64(300), "x is 300, which int8"),
    "no axes": ("int8", np.array(300), "x is 300, which int8"),
    "backwards": ("int8", np.arange(300)[::-1], "x[0] is 299, which int8"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_a_value_that_would_not_come_back_is_refused_by_its_place(case: str) -> None:
    narrow_to, unfit, message = UNFIT[case]
    fitting = np.zeros_like(unfit) if isinstance(unfit, np.ndarray) else np.int64(0)
    with pytest.raises(ValueError, match="does not hold exactly") as refused:
        encoded([{"x": fitting}, {"x": unfit}], narrow_to)
    assert str(refused.value).startswith(f"group 'g7', row 1: {message}")


def test_the_row_that_is_named_is_that_of_the_group() -> None:
    rows: list[dict[str, Any]] = [{"y": 1}, {"x": np.array([1])}, {"y": 1}, {"x": np.array([300])}]
    with pytest.raises(ValueError, match=r"row 3: x\[0\] is 300"):
        encoded(rows, "int8")


AS_THEY_ARE: dict[str, tuple[str, list[Any]]] = {
    "no wider": ("int32", [np.arange(3, dtype=np.int32)] * 2),
    "narrower": ("int32", [np.arange(3, dtype=np.uint8)] * 2),
    "other numbers as wide": ("int32", [np.array([0.5], np.float32)] * 2),
    "text": ("int8", [np.array(["12"])] * 2),
    "dates": ("int8", [np.array([5], "M8[s]")] * 2),
    "bfloat16": ("int8", [np.array([5], ml_dtypes.bfloat16)] * 2),
    "complex": ("int8", [np.array([5], "c8")] * 2),
    "lists": ("int8", [[1000], [2]]),
    "several dtypes": ("int8", [np.array([1000]), np.array([1], "i4")]),
    "nothing": ("int8", [None, np.array([1000])]),
}


@pytest.mark.parametrize("case", AS_THEY_ARE)
def test_what_is_no_wider_array_of_numbers_is_stored_as_it_is(case: str) -> None:
    narrow_to, cells = AS_THEY_ARE[case]
    rows = [{"x": cell} for cell in cells]
    group = encoded(rows, narrow_to)
    assert encode_group("g7", rows).payload == group.payload
    assert identity_of(rows) == identity_of(decode_group("g7", group.directory, group.payload))


@pytest.mark.parametrize(
    "name", ["int7", "i4", "<i4", "object", "str", "complex64", "M8[s]", "", 4]
)
def test_only_dtypes_of_numbers_can_be_narrowed_to(name: Any) -> None:
    with pytest.raises(ValueError, match="narrow_to must be"):
        FieldOptions(narrow_to=name)


def test_options_of_a_field_that_is_not_there_change_nothing() -> None:
    assert encode_group("g", [{"y": 1}]) == encode_group(
        "g", [{"y": 1}], fields={"x": FieldOptions(narrow_to="bits")}
    )


NUMBERS = st.sampled_from(["?", "<i1", ">i2", "<i4", ">i8", "<u2", "<u8", "<f2", ">f4", "<f8"])
TARGETS = st.sampled_from(["bits", "bool", "int8", "uint16", "int32", "float16", "float32"])


ARRAYS = NUMBERS.flatmap(
    lambda dtype: st.lists(
        npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4)),
        min_size=1,
        max_size=3,
    )
)


@settings(max_examples=150, deadline=None)
@given(ARRAYS, TARGETS)
def test_narrowing_is_exact_or_refused(cells: list[Any], narrow_to: str) -> None:
    rows, refused = [{"x": cell} for cell in cells], ""
    try:
        group = encoded(rows, narrow_to)
    except ValueError as error:
        refused = str(error)
    if refused:
        assert "does not hold exactly" in refused
        return
    assert identity_of(rows) == identity_of(decode_group("g7", group.directory, group.payload))


@settings(max_examples=150, deadline=None)
@given(ARRAYS, TARGETS)
def test_arrays_are_narrowed_together_as_one_by_one(arrays: list[Any], target: str) -> None:
    name = narrowed_name(arrays[0].dtype, target=target)
    assume(name is not None)
    assert name is not None
    alone: list[Any] | None = None
    with suppress(ValueError):
        alone = [narrow(array, name=name).tobytes() for array in arrays]
    together = narrow_together(arrays, name=name)
    assert alone == (None if together is None else [array.tobytes() for array in together])


def test_large_arrays_are_narrowed_one_by_one() -> None:
    rows = [{"x": np.arange(row, 100_000 + row)} for row in range(2)]
    assert narrow_together([row["x"] for row in rows], name="<i4") is None
    group = encoded(rows, "int32")
    assert 2 * 4 * 100_000 == group.payload_bytes
    assert identity_of(rows) == identity_of(decode_group("g7", group.directory, group.payload))


def hostile(narrowed: Any, *, length: int = 2, kind: str = "array") -> bytes:
    entry = ["a", kind, "<i8" if kind == "array" else "", 0, length]
    place = [directory_checksum(bytes(length)), [9] if kind == "array" else 1]
    return msgpack.packb([2, 1, length, [[*entry, *place, {"narrowed": narrowed}]]])


def test_the_directory_that_the_hostile_ones_vary_is_good() -> None:
    assert [0] * 9 == decode_group("g", hostile("bits"), bytes(2))[0]["a"].tolist()


@pytest.mark.parametrize(
    "directory",
    [
        hostile(8),
        hostile("bits", length=3),
        hostile("<i2"),
        hostile("bits", length=1, kind="cells"),
    ],
)
def test_a_hostile_narrowing_is_corruption(directory: bytes) -> None:
    with pytest.raises(PayloadCorrupted, match="'g': unreadable payload directory"):
        Directory.from_bytes(directory, group_id="g")


@pytest.mark.parametrize("narrowed", ["|u9", "|O", "<i4", "bit"])
def test_a_narrowing_that_does_not_fit_the_bytes_is_corruption(narrowed: str) -> None:
    with pytest.raises(PayloadCorrupted, match="'g', row 0, field 'a'"):
        decode_group("g", hostile(narrowed, length=18), bytes(18))
