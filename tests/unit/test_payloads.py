"""A group's rows come back exactly, whole, by column or by row, or their damage is found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from redis_replay.codec import encode_value
from redis_replay.errors import ConfigurationError, PayloadCorrupted, SchemaMismatch
from redis_replay.fields import FieldOptions
from redis_replay.payloads import (
    ByteRange,
    Directory,
    EncodedGroup,
    decode_columns,
    decode_group,
    directory_checksum,
    encode_group,
    read_plan,
)

Rows = Sequence[Mapping[str, Any]]


def exactly(value: Any) -> Any:
    """Return what is equal only for the same types and bits: the bytes of the codec."""
    return encode_value(value, "x")


def decoded(group: EncodedGroup, **options: Any) -> list[dict[str, Any]]:
    return decode_group("g", group.directory, group.payload, **options)


def received(group: EncodedGroup, plan: Sequence[ByteRange]) -> dict[ByteRange, bytes]:
    """Answer a plan as GETRANGE would."""
    return {part: group.payload[part.offset : part.offset + part.length] for part in plan}


def directory_of(group: EncodedGroup) -> Directory:
    return Directory.from_bytes(group.directory)


def assert_round_trip(rows: Rows) -> None:
    assert [exactly(row) for row in rows] == [
        exactly(row) for row in decoded(encode_group("g", rows))
    ]


def standard_rows(count: int = 16, length: int = 64) -> list[dict[str, Any]]:
    rng = np.random.default_rng(7)
    return [
        {
            "input_ids": rng.integers(0, 150_000, length - row, dtype=np.int32),
            "generation_logprobs": rng.standard_normal(length - row, dtype=np.float32),
            "token_mask": np.ones(length - row, np.uint8),
            "reward": float(row % 2),
            "length": length - row,
        }
        for row in range(count)
    ]


ODD_COLUMNS: dict[str, list[Any]] = {
    "python scalars": [7, 7.0, True, None],
    "floats": [0.5, -0.0, math.nan, math.inf],
    "integers of one width": [1, 2, 3, 4],
    "integers of several widths": [1, -200, 2**40, 2**70],
    "long text": ["a" * 9000, "", "b" * 9000, "c"],
    "numpy scalars": [np.float32(0.5), np.float32(-0.0), np.float32(math.nan), np.float32(1)],
    "numpy scalars of several types": [np.float32(0.5), np.float64(0.5), np.int64(2), np.bool_(1)],
    "zero-dimensional arrays": [np.array(row, "f8") for row in range(4)],
    "arrays and scalars": [np.array(5.0), np.float64(5.0), np.array([5.0]), 5.0],
    "memory maps and arrays": [np.zeros(3).view(np.memmap), np.ones(3), np.ones(3), np.ones(3)],
    "one shape": [np.full((2, 3), row, ">f4") for row in range(4)],
    "jagged": [np.arange(row, dtype="i8") for row in (5, 0, 9, 1)],
    "jagged in several dimensions": [np.zeros(shape) for shape in ((2, 3), (1,), (), (4, 0, 1))],
    "empty": [np.zeros((0, 7), "i4")] * 4,
    "empty in several ways": [np.zeros(shape, "i4") for shape in ((0,), (0, 7), (3, 0), (1, 0, 2))],
    "several dtypes": [np.zeros(2, dtype) for dtype in ("i4", "i8", "f4", ">i4")],
    "bfloat16": [np.ones((3, 4), ml_dtypes.bfloat16)] * 4,
    "bfloat16 scalars": [ml_dtypes.bfloat16(row) for row in range(4)],
    "structures": [np.ones(2, np.dtype([("a", "u1"), ("b", "f8")], align=True))] * 4,
    "time": [np.array([row], "M8[ms]") for row in range(4)],
    "text": ["", "a", "\ud800", "длинный текст"],
    "long texts": ["x" * length for length in (20_000, 0, 30_000, 40_000)],
    "messages": [[{"role": "user", "content": "x" * row, "seen": (row,)}] for row in range(4)],
    "arrays of text": [np.array(["a", "bc"])] * 4,
    "empty values": ["", b"", [], {}],
    "nested": [{"a": [np.arange(3), (1, 2)]}, {1: {}}, (), [[]]],
    "bytes": [b"", b"\x80\xff", bytes(100), b"x"],
    "views": [
        np.arange(6).reshape(2, 3).T,
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.broadcast_to(np.array(5), (4, 4)),
        np.arange(100)[::-3],
    ],
}


@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_a_column_comes_back_exactly(column: str) -> None:
    assert_round_trip([{"before": 1, column: cell, "x:y/z": 2} for cell in ODD_COLUMNS[column]])


@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_a_group_of_one_row_comes_back_exactly(column: str) -> None:
    for cell in ODD_COLUMNS[column]:
        assert_round_trip([{column: cell}])


@pytest.mark.parametrize("column", ODD_COLUMNS)
def test_a_field_is_stored_the_same_with_options_that_ask_for_nothing(column: str) -> None:
    rows = [{column: cell} for cell in ODD_COLUMNS[column]]
    assert encode_group("g", rows) == encode_group("g", rows, fields={column: FieldOptions()})


@pytest.mark.parametrize("axes", [31, 32, 63, 64])
def test_arrays_of_many_axes_come_back_exactly(axes: int) -> None:
    assert_round_trip([{"x": np.full((1,) * axes, row, "i4")} for row in range(2)])
    assert_round_trip([{"x": np.zeros((1,) * (axes - 1) + (row,), "i4")} for row in range(2)])


def test_a_standard_group_comes_back_exactly() -> None:
    assert_round_trip(standard_rows())


def test_four_scalar_rows_stack_to_shape_four() -> None:
    group = encode_group("g", [{"x": np.array(row, "f4")} for row in range(4)])
    stacked = np.stack([row["x"] for row in decoded(group)])
    assert ((4,), np.dtype("f4")) == (stacked.shape, stacked.dtype)


def test_fields_keep_the_order_of_the_first_row() -> None:
    group = encode_group("g", [{"b": 1, "a": 2}, {"a": 3, "b": 4}])
    assert ("b", "a") == group.fields == directory_of(group).fields
    assert [{"b": 1, "a": 2}, {"b": 4, "a": 3}] == decoded(group)
    assert ["b", "a"] == list(decoded(group)[1])


def test_selected_fields_come_in_the_order_asked_for() -> None:
    group = encode_group("g", [{"a": 1, "b": 2, "c": 3}])
    assert ["c", "a"] == list(decoded(group, select_fields=["c", "a", "c"])[0])
    assert [{}] == decoded(group, select_fields=[])


def test_an_unknown_field_is_named_with_those_there_are() -> None:
    group = encode_group("g", [{"a": 1, "b": 2}])
    with pytest.raises(ValueError, match="no field 'z'; there are 'a', 'b'"):
        decoded(group, select_fields=["a", "z"])


def test_the_bytes_do_not_change_with_the_caller_s_buffers() -> None:
    buffer, groups = np.zeros(4), list[EncodedGroup]()
    for step in range(3):
        buffer[:] = step
        groups.append(encode_group("g", [{"x": buffer, "tags": {"step": step}}]))
    assert [0.0, 1.0, 2.0] == [decoded(group)[0]["x"][3] for group in groups]


def test_a_slice_is_stored_without_its_base() -> None:
    base = np.zeros((1000, 1024), np.float32)
    assert 4096 == encode_group("g", [{"x": base[3]}]).payload_bytes


def test_decoded_arrays_are_read_only_views_over_the_received_bytes() -> None:
    group = encode_group("g", standard_rows())
    payload = bytearray(group.payload)
    array = decode_group("g", group.directory, payload)[2]["input_ids"]
    assert not array.flags.writeable
    assert array.flags.aligned
    assert np.shares_memory(array, np.frombuffer(payload, np.uint8))


def test_the_directory_of_a_jagged_group_is_small() -> None:
    assert len(encode_group("g", standard_rows(16, 4096)).directory) < 100


def test_columns_start_at_multiples_of_sixteen() -> None:
    group = encode_group("g", [{"a": b"x" * row, "b": np.arange(row), "c": row} for row in (3, 4)])
    assert [0, 0, 0] == [column.offset % 16 for column in directory_of(group).columns]


# --- reading less than everything ------------------------------------------------------------


def test_a_plan_asks_for_whole_columns_in_the_order_asked_for() -> None:
    group = encode_group("g", standard_rows())
    plan = read_plan(directory_of(group), fields=["reward", "input_ids"])
    assert ["reward", "input_ids"] == [part.field for part in plan]
    assert [(0, 16, True)] * 2 == [(p.start_row, p.stop_row, p.whole_column) for p in plan]


def test_a_plan_is_its_caller_s_own() -> None:
    directory = directory_of(encode_group("g", standard_rows()))
    read_plan(directory, fields=["reward"]).clear()
    assert ["reward"] == [part.field for part in read_plan(directory, fields=["reward"])]


def test_neighbouring_rows_are_read_together_and_unverified() -> None:
    group = encode_group("g", [{"x": np.arange(4, dtype="i4")} for _ in range(8)])
    plan = read_plan(directory_of(group), rows=[5, 1, 2, 1, 7])
    assert [
        ByteRange("x", 1, 3, 16, 32, whole_column=False),
        ByteRange("x", 5, 6, 80, 16, whole_column=False),
        ByteRange("x", 7, 8, 112, 16, whole_column=False),
    ] == plan


def test_nothing_without_bytes_is_asked_for_and_yet_it_is_there() -> None:
    rows = [{"x": np.arange(length), "none": np.zeros((0, 3))} for length in (5, 0, 9, 1)]
    group = encode_group("g", rows)
    directory = directory_of(group)
    for wanted in ([1], [0, 1], [1, 3], None):
        plan = read_plan(directory, rows=wanted)
        assert [] == [part for part in plan if part.length < 1 or part.field == "none"]
        columns = decode_columns(directory, received(group, plan), rows=wanted)
        expected = [rows[row] for row in (range(4) if wanted is None else wanted)]
        for name in ("x", "none"):
            assert exactly([row[name] for row in expected]) == exactly(columns[name])


def test_a_payload_without_bytes_needs_no_read() -> None:
    group = encode_group("g", [{"x": np.zeros(0, "i4")}] * 2)
    assert (b"", []) == (group.payload, read_plan(directory_of(group)))
    assert exactly([np.zeros(0, "i4")] * 2) == exactly(decode_columns(directory_of(group), {})["x"])
    assert_round_trip([{"x": np.zeros(0, "i4")}] * 2)


@pytest.mark.parametrize("rows", [[-1], [4], [0, 9]])
def test_a_row_that_does_not_exist_is_refused(rows: list[int]) -> None:
    directory = directory_of(encode_group("g", [{"a": 1}] * 4))
    with pytest.raises(ValueError, match="not all between 0 and 3"):
        read_plan(directory, rows=rows)


def test_no_rows_are_no_cells() -> None:
    directory = directory_of(encode_group("g", [{"a": 1}] * 4))
    assert {"a": []} == decode_columns(directory, {}, rows=[])


def test_rows_come_in_the_order_asked_for() -> None:
    group = encode_group("g", [{"a": row, "x": np.int8(row)} for row in range(5)])
    plan = read_plan(directory_of(group), fields=["x", "a"], rows=[3, 0, 3])
    columns = decode_columns(
        directory_of(group), received(group, plan), fields=["x", "a"], rows=[3, 0, 3]
    )
    assert {"x": [3, 0, 3], "a": [3, 0, 3]} == columns
    assert ["x", "a"] == list(columns)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_reply_of_another_length_is_corruption(change: int) -> None:
    group = encode_group("g", standard_rows())
    directory = directory_of(group)
    buffers = {
        part: reply[:-1] if change < 0 else reply + b"\0"
        for part, reply in received(group, read_plan(directory, rows=[3])).items()
    }
    with pytest.raises(PayloadCorrupted, match=r"field 'input_ids': .* bytes instead of") as caught:
        decode_columns(directory, buffers, rows=[3], group_id="g7")
    assert "g7" == caught.value.group_id


def test_a_range_that_was_not_read_is_named() -> None:
    group = encode_group("g", [{"a": 1}])
    with pytest.raises(ValueError, match=r"nothing was received for .*'a'"):
        decode_columns(directory_of(group), {})


def test_damage_in_a_whole_column_is_found() -> None:
    group = encode_group("g", standard_rows())
    directory = directory_of(group)
    for part, reply in received(group, read_plan(directory)).items():
        damaged = bytearray(reply)
        damaged[len(damaged) // 2] ^= 1
        with pytest.raises(PayloadCorrupted, match=f"'{part.field}'.*checksum"):
            decode_columns(directory, {part: bytes(damaged)}, fields=[part.field])


# --- damage ----------------------------------------------------------------------------------


def test_a_flipped_bit_is_found_in_the_field_it_is_in_and_harms_no_other() -> None:
    group = encode_group("g", standard_rows())
    column = directory_of(group).columns[1]
    damaged = bytearray(group.payload)
    damaged[column.offset] ^= 0x80
    with pytest.raises(PayloadCorrupted, match="'g7', field 'generation_logprobs'") as caught:
        decode_group("g7", group.directory, damaged)
    assert "g7" == caught.value.group_id
    untouched = decode_group("g7", group.directory, damaged, select_fields=["input_ids"])
    assert exactly(standard_rows()[5]["input_ids"]) == exactly(untouched[5]["input_ids"])


@pytest.mark.parametrize("change", [-1, 1])
def test_a_payload_of_another_length_is_corruption(change: int) -> None:
    group = encode_group("g", standard_rows())
    payload = group.payload[:-1] if change < 0 else group.payload + b"\0"
    with pytest.raises(PayloadCorrupted, match="payload bytes instead of"):
        decode_group("g", group.directory, payload)


def test_the_checksum_of_the_directory_covers_what_no_column_covers() -> None:
    group = encode_group("g", [{"a": 1}])
    checksum = directory_checksum(group.directory)
    renamed = group.directory.replace(b"\xa1a", b"\xa1b")
    assert [{"b": 1}] == decode_group("g", renamed, group.payload)
    assert [{"a": 1}] == decoded(group, checksum=checksum)
    with pytest.raises(PayloadCorrupted, match="directory fails its checksum"):
        decode_group("g", renamed, group.payload, checksum=checksum)


# --- properties ------------------------------------------------------------------------------


DTYPES = st.one_of(npst.scalar_dtypes(), npst.unicode_string_dtypes(max_len=3))
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3)
)


@st.composite
def groups(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Rows with up to four columns: arrays of one dtype, scalars, or anything."""
    count = draw(st.integers(1, 5))
    names = draw(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=4, unique=True))
    columns: dict[str, list[Any]] = {}
    for name in (name for name in names if name not in ("reward", "length")):
        dtype = draw(DTYPES)
        cell: st.SearchStrategy[Any] = draw(
            st.sampled_from([npst.arrays(dtype, SHAPES), npst.arrays(dtype, draw(SHAPES)), CELLS])
        )
        columns[name] = draw(st.lists(cell, min_size=count, max_size=count))
    columns.setdefault("always", list(range(count)))
    return [{name: cells[row] for name, cells in columns.items()} for row in range(count)]


@settings(max_examples=150, deadline=None)
@given(groups(), st.data())
def test_any_group_comes_back_whole_and_in_parts(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    assert_round_trip(rows)
    group = encode_group("g", rows)
    directory = directory_of(group)
    fields = data.draw(st.none() | st.lists(st.sampled_from(sorted(rows[0]))))
    wanted = data.draw(st.none() | st.lists(st.integers(0, len(rows) - 1)))
    plan = read_plan(directory, fields=fields, rows=wanted)
    columns = decode_columns(directory, received(group, plan), fields=fields, rows=wanted)
    expected = {
        name: [rows[row][name] for row in (range(len(rows)) if wanted is None else wanted)]
        for name in (rows[0] if fields is None else dict.fromkeys(fields))
    }
    assert exactly(expected) == exactly(columns)


@settings(max_examples=100, deadline=None)
@given(groups())
def test_any_field_is_stored_the_same_with_options_that_ask_for_nothing(
    rows: list[dict[str, Any]],
) -> None:
    options = dict.fromkeys(rows[0], FieldOptions())
    assert encode_group("g", rows) == encode_group("g", rows, fields=options)


@settings(max_examples=300, deadline=None)
@given(groups(), st.data())
def test_a_damaged_directory_is_rows_or_corruption_and_nothing_else(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    group = encode_group("g", rows)
    damaged = bytearray(group.directory)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        survived = decode_group("g", bytes(damaged), group.payload)
    except (PayloadCorrupted, ConfigurationError, SchemaMismatch):
        return
    assert len(rows) == len(survived)
