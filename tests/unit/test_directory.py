"""A directory that contradicts itself or its payload is corruption, whatever it claims."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from redis_replay.directory import Directory, directory_checksum
from redis_replay.errors import PayloadCorrupted
from redis_replay.payloads import decode_group


def checksum_of(payload: bytes) -> int:
    return directory_checksum(payload)


def hostile(columns: Any, payload_bytes: Any = 16, *, rows: Any = 2, form: Any = 1) -> bytes:
    return msgpack.packb([form, rows, payload_bytes, columns])


def test_a_damaged_cell_under_a_good_checksum_names_row_and_field() -> None:
    directory = hostile([["a", "cells", "", 0, 3, checksum_of(b"\x01\xc1\x03"), 1]], 3, rows=3)
    with pytest.raises(PayloadCorrupted, match="'g7', row 1: a: unreadable") as caught:
        decode_group("g7", directory, b"\x01\xc1\x03")
    assert "g7" == caught.value.group_id


ZEROS = checksum_of(bytes(16))
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "noise": b"\xc1\xff",
    "a number": msgpack.packb(1),
    "a mapping": msgpack.packb({"a": 1}),
    "an extension": msgpack.packb(msgpack.Timestamp(1)),
    "trailing bytes": hostile([["a", "array", "<i8", 0, 16, ZEROS, []]]) + b"\0",
    "no format": hostile([["a", "array", "<i8", 0, 16, ZEROS, []]], form=0),
    "a format that is no number": hostile([["a", "array", "<i8", 0, 16, ZEROS, []]], form="2"),
    "extras in the first format": hostile([["a", "array", "<i8", 0, 16, ZEROS, [], {}]]),
    "sizes in a mapping": hostile([["a", "array", "<i8", 0, 16, ZEROS, {"a": 1}]]),
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
