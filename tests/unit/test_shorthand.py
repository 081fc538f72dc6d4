"""Layouts in few bytes: groups of one shape share one, and none says what cannot be."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import msgpack
import numpy as np
import pytest

from redis_replay.directory import MAX_ROWS, Directory, directory_checksum, read_plan
from redis_replay.errors import PayloadCorrupted
from redis_replay.fields import FieldOptions
from redis_replay.payloads import decode_group, encode_group


def rows_of(*lengths: int, seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Return rows as rollouts make them."""
    return [
        {
            "input_ids": np.full(length, seed, np.int32),
            "generation_logprobs": np.full(length, seed, np.float32),
            "token_mask": np.ones(length, np.uint8),
            "reward": float(seed),
            "length": length,
            **more,
        }
        for length in lengths
    ]


def directory_of(rows: list[dict[str, Any]], **options: Any) -> Directory:
    return Directory.from_bytes(encode_group("g", rows, **options).directory)


# --- what is shared --------------------------------------------------------------------------


def test_groups_of_one_shape_share_a_layout_and_have_checksums_of_their_own() -> None:
    first, second = (directory_of(rows_of(8, 8, seed=seed)) for seed in (1, 2))
    assert first.layout is second.layout
    both = zip(first.checksums, second.checksums, strict=True)
    assert [False, False, True, False, True] == [one == other for one, other in both]


@pytest.mark.parametrize(
    "other",
    [rows_of(9, 9), rows_of(8, 8, 8), rows_of(8, 7), rows_of(8, 8, more=1), rows_of(8, 8)[:1]],
)
def test_groups_of_other_shapes_do_not(other: list[dict[str, Any]]) -> None:
    ours, theirs = directory_of(rows_of(8, 8)), directory_of(other)
    assert ours.layout is not theirs.layout
    assert ours.columns != theirs.columns


def test_lengths_that_are_equal_by_value_only_are_not_taken_for_one_another() -> None:
    good = hostile(["a", 7], [1], rows=1)
    assert (1,) == Directory.from_bytes(good).layout.lengths
    for number in (True, 1.0):
        with pytest.raises(PayloadCorrupted):
            Directory.from_bytes(hostile(["a", 7], [number], rows=1))


@pytest.mark.parametrize(
    "rows", [[{"x" * 250 + str(name): 1 for name in range(9)}], [{"x": 1}] * 2000]
)
def test_what_would_take_much_memory_is_not_kept(rows: list[dict[str, Any]]) -> None:
    encoded = encode_group("g", rows).directory
    first, second = Directory.from_bytes(encoded), Directory.from_bytes(encoded)
    assert first.layout is not second.layout
    assert first.columns == second.columns


@pytest.mark.parametrize("rows", [rows_of(7, 8), [{"x": 1}] * 2000])
def test_a_layout_of_a_group_of_its_own_ends_with_what_was_read_of_it(
    rows: list[dict[str, Any]],
) -> None:
    directory = directory_of(rows)
    assert read_plan(directory)
    assert read_plan(directory, fields=directory.fields[:1])
    layout = weakref.ref(directory.layout)
    del directory
    gc.collect()
    assert layout() is None


@pytest.mark.parametrize("longest", [127, 128, 65_535, 65_536, 2**32, 2**64 - 1])
def test_lengths_that_differ_come_back_however_long(longest: int) -> None:
    rows = [{"x": 1, "length": length} for length in (longest, 0, longest - 1)]
    assert (longest, 0, longest - 1) == directory_of(rows).layout.lengths


def test_lengths_stand_once_however_many_columns_have_them() -> None:
    one = encode_group("g", [{"a": np.zeros(n)} for n in (300, 301)]).directory
    many = [{name: np.zeros(n) for name in "abcdefgh"} for n in (300, 301)]
    assert 7 * (2 + 3 + 8) + 2 >= len(encode_group("g", many).directory) - len(one)


@pytest.mark.parametrize("tokens", [8, 4096])
def test_the_directory_of_rows_of_one_length_is_tiny(tokens: int) -> None:
    assert len(encode_group("g", rows_of(*[tokens] * 16)).directory) <= 62


def test_texts_of_many_lengths_leave_the_layout_as_it_is() -> None:
    layouts = {
        msgpack.unpackb(encode_group("g", rows_of(9, 9, text="a" * size)).directory)[2]
        for size in (20, 21, 300)
    }
    assert 1 == len(layouts)


# --- what cannot be --------------------------------------------------------------------------


def hostile(layout: Any, numbers: Any = (2,), *, rows: Any = 2, checksums: Any = bytes(8)) -> bytes:
    packed = msgpack.packb(layout) if isinstance(layout, list | dict) else layout
    return msgpack.packb([3, rows, packed, numbers, checksums])


def special(extras: Any, sizes: Any = 0, code: Any = 9) -> list[Any]:
    return ["a", [code, sizes, extras]]


GOOD = ["a", 7]
HOSTILE: dict[str, bytes] = {
    "nothing": msgpack.packb([3]),
    "half of it": msgpack.packb([3, 2, msgpack.packb(GOOD)]),
    "too much": msgpack.packb([3, 2, msgpack.packb(GOOD), [2], bytes(8), 0]),
    "trailing bytes": hostile(GOOD) + b"\0",
    "no rows": hostile(GOOD, rows=0),
    "too many rows": hostile(GOOD, rows=MAX_ROWS + 1),
    "rows that are no number": hostile(GOOD, rows="2"),
    "truth for rows": hostile(GOOD, [2], rows=True),
    "layout that is a number": hostile(7),
    "layout that is text": hostile("ab"),
    "layout that is not packed": msgpack.packb([3, 2, GOOD, [2], bytes(8)]),
    "layout of noise": hostile(b"\xc1"),
    "layout with more behind it": hostile(msgpack.packb(GOOD) + b"\0"),
    "mapping": hostile({"a": 7}),
    "no fields": hostile([], checksums=b""),
    "name without form": hostile(["a", 7, "b"]),
    "name that is no text": hostile([b"a", 7]),
    "negative name": hostile([-1, 7]),
    "name beyond the table": hostile([999, 7]),
    "truth for a name": hostile([True, 7]),
    "name twice": hostile(["a", 7, "a", 7], checksums=bytes(16)),
    "name twice, once by number": hostile(["input_ids", 7, 0, 7], checksums=bytes(16)),
    "checksum too few": hostile(["a", 7, "b", 7]),
    "checksum too many": hostile(GOOD, checksums=bytes(16)),
    "half a checksum": hostile(GOOD, checksums=bytes(4)),
    "checksums that are text": hostile(GOOD, checksums="12345678"),
    "no numbers": hostile(GOOD, []),
    "numbers in a mapping": hostile(GOOD, {0: 2}),
    "numbers in bytes": hostile(GOOD, b"\x02"),
    "negative length": hostile(GOOD, [-1]),
    "text for a length": hostile(GOOD, ["2"]),
    "fraction for a length": hostile(GOOD, [2.0]),
    "truth for a length": hostile(GOOD, [True]),
    "a length too few": hostile(GOOD, [[2]]),
    "a length too many": hostile(GOOD, [[2, 2, 2]]),
    "empty lengths": hostile(GOOD, [[]]),
    "negative among lengths": hostile(GOOD, [[2, -2]]),
    "truth among lengths": hostile(GOOD, [[2, True]]),
    "nested lengths": hostile(GOOD, [[2, [2]]]),
    "half a length": hostile(GOOD, [b"\x02\x00\x02"]),
    "a packed length too few": hostile(GOOD, [b"\x02\x00"]),
    "no packed lengths": hostile(GOOD, [b""]),
    "a malformed number nobody needs": hostile(GOOD, [2, -1]),
    "code beyond the table": hostile(["a", 99]),
    "cells without length": hostile(["a", 0]),
    "form that is nothing": hostile(["a", None]),
    "form that is a fraction": hostile(["a", 7.0]),
    "truth for a form": hostile(["a", True]),
    "empty form": hostile(["a", []]),
    "form without sizes": hostile(["a", [7]]),
    "negative code": hostile(["a", [-1, 0]]),
    "truth for a code": hostile(["a", [True, 0]]),
    "too much of a form": hostile(["a", [7, 0, {}, 0]]),
    "position beyond the numbers": hostile(["a", [7, 1]]),
    "negative position": hostile(["a", [7, -1]]),
    "truth for a position": hostile(["a", [7, False]]),
    "fraction for a position": hostile(["a", [7, 0.0]]),
    "negative axis": hostile(["a", [7, [-1]]]),
    "text for an axis": hostile(["a", [7, ["1"]]]),
    "too many axes": hostile(["a", [7, [1] * 65]]),
    "a shape too few": hostile(["a", [7, [[2, 1]]]]),
    "a shape too many": hostile(["a", [7, [[2, 1]] * 3]]),
    "mixed shapes": hostile(["a", [7, [[2], 2]]]),
    "beyond all bounds": hostile(["a", [7, [2**40, 2**40]]]),
    "kind alone": hostile(["a", ["array"]]),
    "kind without item bytes": hostile(["a", ["array", "<i4", 0]]),
    "dtype that is no text": hostile(["a", ["array", 4, 4, 0]]),
    "kind that is no text": hostile(["a", [None, "<i4", 4, 0]]),
    "negative item bytes": hostile(["a", ["array", "<i4", -4, 0]]),
    "truth for item bytes": hostile(["a", ["array", "|u1", True, 0]]),
    "cells without bytes": hostile(["a", [0, 0]], [0]),
    "cell without bytes": hostile(["a", [0, 0]], [[2, 0]]),
    "cells of a shape": hostile(["a", [0, [2]]]),
    "extras that are no mapping": hostile(special([1])),
    "unknown extras": hostile(special({"gzip": 0})),
    "narrowed to nothing known": hostile(special({"narrowed": "<i3"})),
    "narrowed cells": hostile(special({"narrowed": "<i2"}, code=0)),
    "arrays that share": hostile(special({"blobs": [["bytes", "", [], 16, 16]], "uses": [[0]]})),
    "no row has it": hostile(special({"present": b"\0"})),
    "all rows have it": hostile(special({"present": b"\3"})),
    "lengths of rows that lack it": hostile(special({"present": b"\1"}), [[2, 2]]),
    "frames of unknown lengths": hostile(special({"zstd": 1})),
    "frames of nothing": hostile(special({"zstd": 1}), [2, 0]),
    "frames for another number of rows": hostile(special({"zstd": 1}), [2, [9, 9, 9]]),
    "frames that expand without end": hostile(special({"zstd": 0}), [2**31]),
}


def test_what_the_hostile_ones_vary_is_good() -> None:
    [column] = Directory.from_bytes(hostile(GOOD)).columns
    assert ("a", "array", "<i4", 16, ((2,),)) == (
        *(column.name, column.kind, column.dtype, column.length, column.shapes),
    )
    for good in (special({}), special({"present": b"\1"}), special({"narrowed": "bits"})):
        assert 1 == len(Directory.from_bytes(hostile(good)).columns)
    assert (3, 4) == Directory.from_bytes(hostile(GOOD, [b"\3\0\4\0"])).layout.lengths


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_layout_is_corruption(case: str) -> None:
    with pytest.raises(PayloadCorrupted, match="'g7': unreadable payload directory") as caught:
        Directory.from_bytes(HOSTILE[case], group_id="g7")
    assert "g7" == caught.value.group_id


def test_a_layout_is_refused_again_when_it_comes_again() -> None:
    for _ in range(2):
        with pytest.raises(PayloadCorrupted):
            Directory.from_bytes(HOSTILE["code beyond the table"])


@pytest.mark.parametrize(
    ("layout", "match"),
    [
        (["a", ["array", "<i4", 8, 0]], "reshape"),
        (["a", ["array", "<i8", 4, 0]], "reshape|not a number"),
        (["a", ["array", "<i9", 4, 0]], "unknown dtype"),
        (["a", ["arrow", "<i4", 4, 0]], "unknown array kind"),
    ],
)
@pytest.mark.parametrize("numbers", [(2,), ([1, 3],)])
def test_a_layout_that_does_not_fit_its_dtype_is_corruption(
    layout: Any, match: str, numbers: Any
) -> None:
    size = 4 * layout[1][2]
    checksum = directory_checksum(bytes(size)).to_bytes(8, "little")
    directory = hostile(layout, numbers, checksums=checksum)
    with pytest.raises(PayloadCorrupted, match=f"'g7', field 'a': .*({match}|elements)"):
        decode_group("g7", directory, bytes(size))


def test_a_layout_is_read_without_the_package_of_its_dtypes() -> None:
    layout = ["a", ["array", "float6_of_tomorrow", 3, 0], "b", 13]
    directory = Directory.from_bytes(hostile(layout, checksums=bytes(16)))
    assert [(0, 12), (16, 8)] == [(column.offset, column.length) for column in directory.columns]


def test_compressed_rows_say_nothing_of_their_lengths_in_the_layout() -> None:
    zstd = FieldOptions(compression="zstd")
    layouts = {
        msgpack.unpackb(
            encode_group("g", rows_of(99, 100, seed=seed), fields={"input_ids": zstd}).directory
        )[2]
        for seed in (0, 2**30 + 12345)
    }
    assert 1 == len(layouts)
