"""A group's rows come back exactly, whole, by column or by row, or their damage is found."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from redis_replay.codec import encode_value
from redis_replay.directory import MAX_ROWS
from redis_replay.errors import ConfigurationError, PayloadCorrupted
from redis_replay.payloads import (
    ByteRange,
    Directory,
    EncodedGroup,
    chunk_offsets,
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
    "numpy scalars": [np.float32(0.5), np.float32(-0.0), np.float32(math.nan), np.float32(1)],
    "numpy scalars of several types": [np.float32(0.5), np.float64(0.5), np.int64(2), np.bool_(1)],
    "zero-dimensional arrays": [np.array(row, "f8") for row in range(4)],
    "arrays and scalars": [np.array(5.0), np.float64(5.0), np.array([5.0]), 5.0],
    "one shape": [np.full((2, 3), row, ">f4") for row in range(4)],
    "jagged": [np.arange(row, dtype="i8") for row in (5, 0, 9, 1)],
    "jagged in several dimensions": [np.zeros(shape) for shape in ((2, 3), (1,), (), (4, 0, 1))],
    "empty": [np.zeros((0, 7), "i4")] * 4,
    "empty in several ways": [np.zeros(shape, "i4") for shape in ((0,), (0, 7), (3, 0), (1, 0, 2))],
    "several dtypes": [np.zeros(2, dtype) for dtype in ("i4", "i8", "f4", ">i4")],
    "bfloat16": [np.ones((3, 4), ml_dtypes.bfloat16)] * 4,
    "bfloat16 scalars": [ml_dtypes.bfloat16(row) for row in range(4)],
    "time": [np.array([row], "M8[ms]") for row in range(4)],
    "text": ["", "a", "\ud800", "длинный текст"],
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
    assert len(encode_group("g", standard_rows(16, 4096)).directory) < 500


def test_columns_start_at_multiples_of_sixteen() -> None:
    group = encode_group("g", [{"a": b"x" * row, "b": np.arange(row), "c": row} for row in (3, 4)])
    assert [0, 0, 0] == [column.offset % 16 for column in directory_of(group).columns]


# --- what the rows must be -------------------------------------------------------------------


BAD_ROWS: dict[str, tuple[Any, type[Exception], str]] = {
    "no rows": ([], ValueError, "'g7': 0 rows"),
    "too many rows": ([{"a": 1}] * (MAX_ROWS + 1), ValueError, "'g7': 65537 rows"),
    "no fields": ([{}], ValueError, "'g7': the rows have no fields"),
    "a field less": ([{"a": 1, "b": 1}, {"a": 1}], ValueError, "row 1 and row 0 .* 'b'"),
    "a field more": ([{"a": 1}, {"a": 1}, {"a": 1, "c": 1}], ValueError, "row 2 and row 0 .* 'c'"),
    "empty name": ([{"": 1}], ValueError, "'' has 0 bytes"),
    "long name": ([{"π" * 129: 1}], ValueError, "has 258 bytes"),
    "broken name": ([{"\ud800": 1}], ValueError, "not valid text"),
    "name that is no text": ([{1: 1}], TypeError, "field name 1 is not text"),
    "row that is no mapping": ([{"a": 1}, [1]], TypeError, "row 1: a mapping .* list"),
    "columns instead of rows": ({"a": [1, 2]}, TypeError, "row 0: a mapping .* str"),
    "unstorable": ([{"a": 1}, {"a": [0, {3}]}], TypeError, r"'g7', row 1: a\[1\]: .*set"),
    "objects": ([{"a": np.array([None])}], TypeError, "'g7': a: arrays of dtype object"),
    "negative length": ([{"length": 1}, {"length": -1}], ValueError, "row 1: length -1"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_no_group_are_refused(case: str) -> None:
    rows, error, message = BAD_ROWS[case]
    with pytest.raises(error, match=message):
        encode_group("g7", rows)


def test_the_largest_group_is_accepted() -> None:
    rows = [{"x": row} for row in range(MAX_ROWS)]
    assert rows == decoded(encode_group("g", rows))


def test_the_longest_name_is_accepted() -> None:
    assert_round_trip([{"π" * 128: 1}])


LENGTHS: dict[str, tuple[dict[str, Any], int]] = {
    "given": ({"length": 5, "input_ids": np.zeros(9)}, 5),
    "given by numpy": ({"length": np.int64(5)}, 5),
    "given as an array": ({"length": np.array(5)}, 5),
    "zero": ({"length": 0, "input_ids": np.zeros(9)}, 0),
    "no integer": ({"length": 5.0, "input_ids": np.zeros(9)}, 9),
    "a truth value": ({"length": True, "input_ids": np.zeros(9)}, 9),
    "from an array": ({"input_ids": np.zeros((9, 2))}, 9),
    "from a list": ({"input_ids": [1, 2]}, 2),
    "from an empty array": ({"input_ids": np.zeros(0)}, 0),
    "from a scalar": ({"input_ids": np.array(3)}, 0),
    "unknown": ({"a": 1}, 0),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_the_length_of_a_row(case: str) -> None:
    row, length = LENGTHS[case]
    assert (length, length) == encode_group("g", [row, row]).lengths


def test_lengths_of_rows_that_ended_at_once_are_zero() -> None:
    rows = [{"input_ids": np.zeros(length, "i4")} for length in (5, 0, 9, 1)]
    assert (5, 0, 9, 1) == encode_group("g", rows).lengths


def test_rewards_are_plain_floats_and_their_cells_stay_as_given() -> None:
    given_rewards: list[Any] = [
        True,
        0,
        1,
        np.float32(0.5),
        np.float64(0.5),
        np.int64(2),
        np.array(0.25),
    ]
    group = encode_group("g", [{"reward": reward} for reward in given_rewards])
    assert (1.0, 0.0, 1.0, 0.5, 0.5, 2.0, 0.25) == group.rewards
    assert {float} == {type(reward) for reward in group.rewards or ()}
    assert exactly(given_rewards) == exactly([row["reward"] for row in decoded(group)])


def test_a_bfloat16_reward_is_the_value_it_had() -> None:
    assert (0.30078125,) == encode_group("g", [{"reward": ml_dtypes.bfloat16(0.3)}]).rewards


def test_a_group_without_rewards_has_none() -> None:
    assert encode_group("g", [{"a": 1}]).rewards is None


BAD_REWARDS: dict[str, tuple[Any, type[Exception]]] = {
    "nan": (math.nan, ValueError),
    "infinity": (-math.inf, ValueError),
    "numpy nan": (np.float32(math.nan), ValueError),
    "mapping": ({"acc": 1}, TypeError),
    "text": ("1.0", TypeError),
    "nothing": (None, TypeError),
    "list": ([1.0], TypeError),
    "shape (1,)": (np.ones(1), TypeError),
    "shape (4, 1)": (np.ones((4, 1)), TypeError),
    "complex": (np.complex64(1), TypeError),
}


@pytest.mark.parametrize("case", BAD_REWARDS)
def test_a_reward_that_is_not_one_finite_number_is_refused_by_group_and_row(case: str) -> None:
    reward, error = BAD_REWARDS[case]
    with pytest.raises(error, match="group 'g7', row 1: reward"):
        encode_group("g7", [{"reward": 0.5}, {"reward": reward}])


# --- reading less than everything ------------------------------------------------------------


def test_a_plan_asks_for_whole_columns_in_the_order_asked_for() -> None:
    group = encode_group("g", standard_rows())
    plan = read_plan(directory_of(group), fields=["reward", "input_ids"])
    assert ["reward", "input_ids"] == [part.field for part in plan]
    assert [(0, 16, True)] * 2 == [(p.start_row, p.stop_row, p.whole_column) for p in plan]


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
    renamed = group.directory.replace(b"\xa1a", b"\xa1b")
    assert [{"b": 1}] == decode_group("g", renamed, group.payload)
    assert directory_checksum(group.directory) == group.checksum
    assert [{"a": 1}] == decoded(group, checksum=group.checksum)
    with pytest.raises(PayloadCorrupted, match="directory fails its checksum"):
        decode_group("g", renamed, group.payload, checksum=group.checksum)


def test_a_damaged_cell_under_a_good_checksum_names_row_and_field() -> None:
    directory = hostile([["a", "cells", "", 0, 3, checksum_of(b"\x01\xc1\x03"), 1]], 3, rows=3)
    with pytest.raises(PayloadCorrupted, match="'g7', row 1: a: unreadable") as caught:
        decode_group("g7", directory, b"\x01\xc1\x03")
    assert "g7" == caught.value.group_id


def checksum_of(payload: bytes) -> int:
    return directory_checksum(payload)


def hostile(columns: Any, payload_bytes: Any = 16, *, rows: Any = 2, form: Any = 1) -> bytes:
    return msgpack.packb([form, rows, payload_bytes, columns])


ZEROS = checksum_of(bytes(16))
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "noise": b"\xc1\xff",
    "a number": msgpack.packb(1),
    "a mapping": msgpack.packb({"a": 1}),
    "an extension": msgpack.packb(msgpack.Timestamp(1)),
    "trailing bytes": hostile([["a", "array", "<i8", 0, 16, ZEROS, []]]) + b"\0",
    "another format": hostile([["a", "array", "<i8", 0, 16, ZEROS, []]], form=2),
    "no columns": hostile([], 0),
    "columns that are no list": hostile(7),
    "column without sizes": hostile([["a", "array", "<i8", 0, 16, ZEROS]]),
    "name that is no text": hostile([[1, "array", "<i8", 0, 16, ZEROS, []]]),
    "name twice": hostile(
        [["a", "array", "|u1", 0, 0, 0, [0]], ["a", "array", "|u1", 0, 0, 0, [0]]], 0
    ),
    "negative offset": hostile([["a", "array", "<i8", -16, 16, ZEROS, []]]),
    "negative length": hostile([["a", "array", "<i8", 0, -16, ZEROS, []]], -16),
    "length that is no integer": hostile([["a", "array", "<i8", 0, 16.0, ZEROS, []]]),
    "truth value as offset": hostile([["a", "array", "<i8", False, 16, ZEROS, []]]),
    "offset beyond the end": hostile([["a", "array", "<i8", 2**40, 16, ZEROS, []]]),
    "overlap": hostile(
        [["a", "array", "<i8", 0, 16, ZEROS, []], ["b", "array", "<i8", 0, 16, ZEROS, []]]
    ),
    "gap": hostile(
        [["a", "array", "<i8", 0, 16, ZEROS, []], ["b", "array", "<i8", 32, 16, 0, []]], 48
    ),
    "beyond the payload": hostile([["a", "array", "<i8", 0, 32, ZEROS, [2]]]),
    "no number of elements": hostile([["a", "array", "<i8", 0, 16, ZEROS, [3]]]),
    "less than the payload": hostile([["a", "array", "<i4", 0, 8, 0, []]]),
    "huge shape": hostile([["a", "array", "<i8", 0, 16, ZEROS, [2**62, 2**62]]]),
    "huge shape, jagged": hostile([["a", "array", "<i8", 0, 16, ZEROS, [[2**63], [2**63]]]]),
    "negative shape": hostile([["a", "array", "<i8", 0, 16, ZEROS, [-1]]]),
    "two negative axes": hostile([["a", "array", "<i8", 0, 16, ZEROS, [-1, -1]]]),
    "too many axes": hostile([["a", "array", "<i8", 0, 16, ZEROS, [1] * 65]]),
    "mixed shapes": hostile([["a", "array", "<i8", 0, 16, ZEROS, [[1], 1]]]),
    "shapes that are no list": hostile([["a", "array", "<i8", 0, 16, ZEROS, 1]]),
    "a shape too few": hostile([["a", "array", "<i8", 0, 16, ZEROS, [[2]]]]),
    "a shape too many": hostile([["a", "array", "<i8", 0, 16, ZEROS, [[1], [1], [0]]]]),
    "no rows": hostile([["a", "array", "<i8", 0, 16, ZEROS, []]], rows=0),
    "rows without end": hostile(
        [["a", "array", "<i8", 0, 0, checksum_of(b""), [0]]], 0, rows=2**60
    ),
    "rows that are no number": hostile([["a", "array", "<i8", 0, 16, ZEROS, []]], rows="2"),
    "cells too long": hostile([["a", "cells", "", 0, 16, ZEROS, [8, 9]]]),
    "cells too short": hostile([["a", "cells", "", 0, 16, ZEROS, 4]]),
    "cell without bytes": hostile([["a", "cells", "", 0, 16, ZEROS, [0, 16]]]),
    "cell of negative length": hostile([["a", "cells", "", 0, 16, ZEROS, [-1, 17]]]),
    "huge cell": hostile([["a", "cells", "", 0, 16, ZEROS, 2**63]]),
    "a cell too few": hostile([["a", "cells", "", 0, 16, ZEROS, [16]]]),
    "checksum that is no number": hostile([["a", "array", "<i8", 0, 16, None, []]]),
    "nested without end": b"\x94\x01\x02\x10" + b"\x91" * 500 + b"\xc0",
}


# What only the bytes of the column, or its dtype, can tell.
NEEDS_PAYLOAD: dict[str, tuple[bytes, bytes]] = {
    "unknown kind": (hostile([["a", "arrow", "<i8", 0, 16, ZEROS, []]]), bytes(16)),
    "unknown dtype": (hostile([["a", "array", "<i9", 0, 16, ZEROS, []]]), bytes(16)),
    "object dtype": (hostile([["a", "array", "|O", 0, 16, ZEROS, []]]), bytes(16)),
    "wider dtype": (hostile([["a", "array", "<c16", 0, 16, ZEROS, []]]), bytes(16)),
    "wider dtype, jagged": (hostile([["a", "array", "<c16", 0, 16, ZEROS, [[1], []]]]), bytes(16)),
    "narrower dtype": (hostile([["a", "array", "<i4", 0, 16, ZEROS, [1]]]), bytes(16)),
    "narrower dtype, jagged": (
        hostile([["a", "array", "<i4", 0, 16, ZEROS, [[1], []]]]),
        bytes(16),
    ),
    "a byte too many": (
        hostile([["a", "array", "<i8", 0, 9, checksum_of(bytes(9)), [1]]], 9, rows=1),
        bytes(9),
    ),
    "huge empty shape": (
        hostile([["a", "array", "<i8", 0, 0, checksum_of(b""), [0, 2**62, 9]]], 0),
        b"",
    ),
    "shape beyond an index": (
        hostile([["a", "array", "<i8", 0, 0, checksum_of(b""), [0, 2**64 - 1]]], 0),
        b"",
    ),
    "wrong checksum": (hostile([["a", "array", "<i8", 0, 16, ZEROS + 1, []]]), bytes(16)),
    "another payload": (hostile([["a", "array", "<i8", 0, 16, ZEROS, []]]), b"\1" * 16),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_directory_is_corruption(case: str) -> None:
    with pytest.raises(PayloadCorrupted, match="'g7': unreadable payload directory") as caught:
        Directory.from_bytes(HOSTILE[case], group_id="g7")
    assert "g7" == caught.value.group_id


@pytest.mark.parametrize("case", NEEDS_PAYLOAD)
def test_a_directory_that_does_not_fit_its_payload_is_corruption(case: str) -> None:
    directory, payload = NEEDS_PAYLOAD[case]
    with pytest.raises(PayloadCorrupted, match="'g7', field 'a'") as caught:
        decode_group("g7", directory, payload)
    assert "g7" == caught.value.group_id


def test_the_directory_that_the_hostile_ones_vary_is_good() -> None:
    assert [{"a": 0}, {"a": 0}] == decode_group(
        "g", hostile([["a", "array", "<i8", 0, 16, ZEROS, []]]), bytes(16)
    )


# --- chunks ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload_bytes", "chunk_bytes", "expected"),
    [
        (0, 4, [(0, 0)]),
        (1, 4, [(0, 1)]),
        (4, 4, [(0, 4)]),
        (5, 4, [(0, 4), (4, 1)]),
        (12, 4, [(0, 4), (4, 4), (8, 4)]),
        (2, 1, [(0, 1), (1, 1)]),
    ],
)
def test_chunks_cover_the_payload(
    payload_bytes: int, chunk_bytes: int, expected: list[tuple[int, int]]
) -> None:
    assert expected == chunk_offsets(payload_bytes, chunk_bytes)


@pytest.mark.parametrize(("payload_bytes", "chunk_bytes"), [(-1, 4), (4, 0), (4, -1)])
def test_chunks_without_size_are_refused(payload_bytes: int, chunk_bytes: int) -> None:
    with pytest.raises(ValueError, match="into chunks of"):
        chunk_offsets(payload_bytes, chunk_bytes)


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
    except (PayloadCorrupted, ConfigurationError):
        return
    assert len(rows) == len(survived)
