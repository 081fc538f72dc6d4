"""A row may lack a field that others have: it reads back without it, never with a zero or None."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from redis_replay.directory import Directory, directory_checksum, read_plan
from redis_replay.errors import PayloadCorrupted
from redis_replay.fields import FieldOptions
from redis_replay.payloads import ABSENT, decode_columns, decode_group, encode_group
from tests.identity import identity_of

IMAGE = np.arange(20_000, dtype=np.int64)
ROWS: list[dict[str, Any]] = [
    {"ids": np.arange(3), "reward": 0.0, "note": None},
    {"ids": np.arange(4), "reward": 1.0, "image": IMAGE, "score": np.float32(0.5)},
    {"ids": np.arange(0), "reward": 1.0, "image": IMAGE, "shape": np.zeros((2, 3), "u1")},
    {"reward": 0.5, "late": "x", "score": np.float32(-0.0), "shape": np.zeros((2, 3), "u1")},
]
OPTIONS = {
    "ids": FieldOptions(narrow_to="int32"),
    "image": FieldOptions(compression="zstd"),
    "late": FieldOptions(compression="zstd"),
    "shape": FieldOptions(narrow_to="bits", compression="zstd"),
}
every_way = pytest.mark.parametrize("options", [{}, OPTIONS], ids=["as given", "with options"])


@every_way
def test_a_row_reads_back_with_exactly_its_own_fields(options: dict[str, FieldOptions]) -> None:
    group = encode_group("g", ROWS, fields=options)
    assert ("ids", "reward", "note", "image", "score", "shape", "late") == group.fields
    read = decode_group("g", group.directory, group.payload)
    assert [set(row) for row in ROWS] == [set(row) for row in read]
    for row, found in zip(ROWS, read, strict=True):
        assert {k: identity_of(v) for k, v in row.items()} == {
            k: identity_of(v) for k, v in found.items()
        }


@every_way
@pytest.mark.parametrize("wanted", [[0], [3], [1, 2], [2, 0], [3, 0, 1], [0, 3]])
def test_rows_are_read_in_parts_whatever_they_lack(
    options: dict[str, FieldOptions], wanted: list[int]
) -> None:
    group = encode_group("g", ROWS, fields=options)
    directory = Directory.from_bytes(group.directory)
    plan = read_plan(directory, rows=wanted)
    buffers = {part: group.payload[part.offset : part.offset + part.length] for part in plan}
    columns = decode_columns(directory, buffers, rows=wanted)
    for name in group.fields:
        expected = [ROWS[row].get(name, ABSENT) for row in wanted]
        assert identity_of(expected) == identity_of(columns[name])


def test_absent_is_neither_none_nor_empty_nor_zero() -> None:
    rows: list[dict[str, Any]] = [
        {"a": 1},
        {"a": 1, "x": None},
        {"a": 1, "x": ""},
        {"a": 1, "x": 0},
    ]
    group = encode_group("g", rows)
    assert rows == decode_group("g", group.directory, group.payload)


def test_a_row_may_lack_every_field() -> None:
    rows: list[dict[str, Any]] = [{}, {"a": 1}, {}]
    group = encode_group("g", rows)
    assert (rows, (0, 0, 0)) == (
        decode_group("g", group.directory, group.payload),
        group.lengths,
    )


def test_a_selected_field_is_no_key_of_a_row_that_lacks_it() -> None:
    group = encode_group("g", ROWS)
    read = decode_group("g", group.directory, group.payload, select_fields=["late", "note"])
    assert [{"note": None}, {}, {}, {"late": "x"}] == read


def test_a_field_that_one_row_in_many_has_costs_a_bit_for_each() -> None:
    rows: list[dict[str, Any]] = [{"a": 1} for _ in range(8000)]
    rows[4321]["b"] = 7
    with_field, without = encode_group("g", rows), encode_group("g", [{"a": 1}] * 8000)
    assert 1000 <= len(with_field.directory) - len(without.directory) < 1100
    assert 16 >= with_field.payload_bytes - without.payload_bytes


def hostile(present: Any, sizes: Any = (2,), length: int = 16, rows: int = 3) -> bytes:
    entry = ["a", "array", "<i8", 0, length, directory_checksum(bytes(length)), sizes]
    return msgpack.packb([2, rows, length, [[*entry, {"present": present}]]])


def test_the_directory_that_the_hostile_ones_vary_is_good() -> None:
    read = decode_group("g", hostile(b"\x02"), bytes(16))
    assert [{}, {"a": [0, 0]}, {}] == [{k: v.tolist() for k, v in row.items()} for row in read]


HOSTILE: dict[str, bytes] = {
    "no row has it": hostile(b"\x00", length=0),
    "all rows have it": hostile(b"\x07", length=48),
    "a row too many": hostile(b"\x0a"),
    "no bytes": hostile(b""),
    "bytes too many": hostile(b"\x02\x00"),
    "no bytes at all": hostile(2),
    "text": hostile("\x02"),
    "rows that do not fill it": hostile(b"\x03", (3,)),
    "a shape for each row of the group": hostile(b"\x02", [[2], [2], [2]]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_list_of_rows_is_corruption(case: str) -> None:
    with pytest.raises(PayloadCorrupted, match="'g': unreadable payload directory"):
        Directory.from_bytes(HOSTILE[case], group_id="g")


def test_rows_of_another_width_than_their_dtype_are_corruption() -> None:
    with pytest.raises(PayloadCorrupted, match=r"'g', row 0, field 'a': 8 bytes hold no") as caught:
        decode_group("g", hostile(b"\x03"), bytes(16))
    assert ("g", "a", 0) == (caught.value.group_id, caught.value.field, caught.value.row)
