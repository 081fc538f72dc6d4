"""A large value that several rows of a field hold is stored once, and every row reads it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest

from redis_replay.codec import encode_value
from redis_replay.directory import Directory, directory_checksum, read_plan
from redis_replay.errors import PayloadCorrupted
from redis_replay.fields import FieldOptions
from redis_replay.payloads import EncodedGroup, decode_columns, decode_group, encode_group
from redis_replay.sharing import LEAST_SHARED_BYTES
from tests.identity import identity_of

SIZE = LEAST_SHARED_BYTES
IMAGE = np.arange(SIZE, dtype=np.float32).reshape(64, -1)
JPEG = np.random.default_rng(1).bytes(SIZE)


def messages(row: int) -> Any:
    """Return what was said, which begins with images for all rows alike."""
    return [
        {"role": "user", "content": ["look", {"image": IMAGE}, JPEG]},
        {"role": "assistant", "content": "x" * row},
    ]


def decoded(group: EncodedGroup, **options: Any) -> list[dict[str, Any]]:
    return decode_group("g", group.directory, group.payload, **options)


SHARED: dict[str, tuple[Callable[[int], Any], int]] = {
    "one array": (lambda row: IMAGE, IMAGE.nbytes),
    "equal arrays": (lambda row: IMAGE.copy(), IMAGE.nbytes),
    "equal values in another memory order": (
        lambda row: IMAGE if row % 2 else np.asfortranarray(IMAGE),
        IMAGE.nbytes,
    ),
    "equal bytes": (lambda row: bytes(bytearray(JPEG)), SIZE),
    "two of them in turn": (lambda row: IMAGE + row % 2, 2 * IMAGE.nbytes),
    "bfloat16": (lambda row: IMAGE.astype(ml_dtypes.bfloat16), IMAGE.nbytes // 2),
    "not a number": (lambda row: np.full(SIZE, np.nan), 8 * SIZE),
    "deep inside": (messages, IMAGE.nbytes + SIZE),
    "for some rows": (lambda row: JPEG if row % 2 else None, SIZE),
    "twice in each row": (lambda row: (JPEG, [JPEG]), SIZE),
    "by one row twice": (lambda row: (JPEG, JPEG) if row == 3 else row, SIZE),
    "as large bytes of the same content": (
        lambda row: JPEG if row % 2 else np.frombuffer(JPEG, np.uint8),
        2 * SIZE,
    ),
    "in two dtypes": (
        lambda row: np.zeros(SIZE, "f4" if row % 2 else "i4"),
        8 * SIZE,
    ),
}


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("arrays", ["read_only", "writable"])
def test_what_rows_share_is_stored_once_and_read_back_by_each(case: str, arrays: Any) -> None:
    cell, stored_bytes = SHARED[case]
    rows = [{"x": cell(row), "ids": np.arange(row), "y": row} for row in range(8)]
    group = encode_group("g", rows)
    assert stored_bytes <= group.payload_bytes < stored_bytes + 4000
    assert identity_of(rows) == identity_of(decoded(group, arrays=arrays))


@pytest.mark.parametrize("case", SHARED)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_rows_are_read_alone_with_what_they_share(case: str, compression: Any) -> None:
    cell, _ = SHARED[case]
    rows = [{"x": cell(row)} for row in range(8) if row != 5] + [{"y": 1}]
    group = encode_group("g", rows, fields={"x": FieldOptions(compression=compression)})
    directory = Directory.from_bytes(group.directory)
    for wanted in ([0], [3, 6], [6, 1], [7]):
        plan = read_plan(directory, fields=["x"], rows=wanted)
        assert sum(part.length for part in plan) <= group.payload_bytes
        buffers = {part: group.payload[part.offset : part.offset + part.length] for part in plan}
        read = decode_columns(directory, buffers, fields=["x"], rows=wanted)["x"]
        expected = [rows[row]["x"] for row in wanted if row != 7]
        assert identity_of(expected) == identity_of(read[: len(expected)])


def test_one_row_is_read_without_what_only_others_hold() -> None:
    rows = [{"x": (IMAGE if row < 4 else JPEG, row)} for row in range(8)]
    directory = Directory.from_bytes(encode_group("g", rows).directory)
    for row, size in ((0, IMAGE.nbytes), (7, SIZE)):
        shared, own = read_plan(directory, rows=[row])
        assert (size, None) == (shared.length, own.blob)
        assert own.length < 100


def test_shared_arrays_start_at_multiples_of_sixteen() -> None:
    other = np.ones(SIZE + 1, np.uint8)
    group = encode_group("g", [{"a": b"x", "x": [other, IMAGE]}] * 2)
    [row, _] = decoded(group)
    assert [True, True] == [array.flags.aligned for array in row["x"]]
    column = Directory.from_bytes(group.directory).columns[1]
    assert [0, 0] == [blob.offset % 16 for blob in column.storage.blobs]
    assert 0 == column.bounds[0] % 16


OWN: dict[str, Callable[[int], Any]] = {
    "smaller ones": lambda row: np.zeros(SIZE - 1, np.uint8),
    "different ones": lambda row: IMAGE + row,
    "mostly different ones": lambda row: IMAGE + (row if row > 2 else 0),
}


@pytest.mark.parametrize("case", OWN)
def test_what_rows_do_not_share_stays_a_column_of_its_own_bytes(case: str) -> None:
    rows = [{"x": OWN[case](row)} for row in range(8)]
    group = encode_group("g", rows)
    [column] = Directory.from_bytes(group.directory).columns
    assert column.is_raw
    assert sum(row["x"].nbytes for row in rows) == group.payload_bytes
    assert identity_of(rows) == identity_of(decoded(group))


def test_a_field_that_is_to_be_narrowed_is_narrowed_and_not_shared() -> None:
    mask = np.ones(SIZE, np.int64)
    group = encode_group("g", [{"x": mask}] * 4, fields={"x": FieldOptions(narrow_to="bits")})
    assert 4 * SIZE // 8 == group.payload_bytes
    assert identity_of([{"x": mask}] * 4) == identity_of(decoded(group))


def test_a_value_on_its_own_is_encoded_without_sharing() -> None:
    assert len(encode_value([JPEG, JPEG], "x")) > 2 * SIZE


def test_groups_do_not_share_with_one_another() -> None:
    first, second = (encode_group(name, [{"x": IMAGE}] * 2) for name in ("a", "b"))
    assert first.payload_bytes == second.payload_bytes >= IMAGE.nbytes


def hostile(blobs: Any, uses: Any, *, cell: bytes = b"\xd6\x04\0\0\0\0", rows: int = 2) -> bytes:
    """Return a directory of cells after 16 shared bytes, and the payload it is for."""
    payload = bytes(16) + cell * rows
    entry = ["a", "cells", "", 0, len(payload), directory_checksum(payload), len(cell)]
    extras = {"blobs": blobs, "uses": uses}
    return msgpack.packb([2, rows, len(payload), [[*entry, extras]]])


GOOD = ["array", "|u1", [16], 16, 16]


def test_the_directory_that_the_hostile_ones_vary_is_good() -> None:
    payload = bytes(16) + b"\xd6\x04\0\0\0\0" * 2
    read = decode_group("g", hostile([GOOD], [[0]]), payload)
    assert [[0] * 16] * 2 == [row["a"].tolist() for row in read]


HOSTILE: dict[str, bytes] = {
    "nothing shared": hostile([], [[0]]),
    "no list": hostile(5, [[0]]),
    "half a shared value": hostile([GOOD[:3]], [[0]]),
    "kind that is no text": hostile([[1, "|u1", [16], 16, 16]], [[0]]),
    "negative axis": hostile([["array", "|u1", [-16], 16, 16]], [[0]]),
    "no bytes": hostile([["array", "|u1", [16], 0, 0]], [[0]]),
    "negative bytes": hostile([["array", "|u1", [16], -16, -16]], [[0]]),
    "expanded without compression": hostile([["array", "|u1", [32], 32, 16]], [[0]]),
    "more bytes than there are": hostile([["array", "|u1", [99], 99, 99]], [[0]]),
    "used by nobody": hostile([GOOD], []),
    "another one used": hostile([GOOD], [[1]]),
    "a negative one used": hostile([GOOD], [[-1]]),
    "used by three of two rows": hostile([GOOD], [[0], [0], [0]]),
    "uses that are no list": hostile([GOOD], 1),
}
CELLS = {
    "a number that is not there": b"\xd6\x04\1\0\0\0",
    "a long number": b"\xd7\x04" + bytes(8),
}
NEEDS_PAYLOAD: dict[str, bytes] = {
    "a number that is not used": hostile([GOOD], [[]]),
    "a number that is not there": hostile([GOOD], [[0]], cell=CELLS["a number that is not there"]),
    "a long number": hostile([GOOD], [[0]], cell=CELLS["a long number"]),
    "unknown kind": hostile([["arrow", "|u1", [16], 16, 16]], [[0]]),
    "unknown dtype": hostile([["array", "|u9", [16], 16, 16]], [[0]]),
    "another shape": hostile([["array", "|u1", [15], 16, 16]], [[0]]),
    "wider dtype": hostile([["array", "<i8", [16], 16, 16]], [[0]]),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_list_of_shared_values_is_corruption(case: str) -> None:
    with pytest.raises(PayloadCorrupted, match="'g': unreadable payload directory"):
        Directory.from_bytes(HOSTILE[case], group_id="g")


@pytest.mark.parametrize("case", NEEDS_PAYLOAD)
def test_a_reference_to_what_is_not_there_is_corruption(case: str) -> None:
    directory = Directory.from_bytes(NEEDS_PAYLOAD[case])
    cell = {
        "a number that is not there": b"\xd6\x04\1\0\0\0",
        "a long number": b"\xd7\x04" + bytes(8),
    }
    payload = bytes(16) + cell.get(case, b"\xd6\x04\0\0\0\0") * 2
    parts = {p: payload[p.offset : p.offset + p.length] for p in read_plan(directory, rows=[1])}
    with pytest.raises(PayloadCorrupted, match=r"'g'.*a"):
        decode_columns(directory, parts, rows=[1], group_id="g")
