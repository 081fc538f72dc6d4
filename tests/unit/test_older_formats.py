"""Groups that were written under older formats read back; what a newer package wrote is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from redis_replay.directory import DIRECTORY_FORMAT, Directory, directory_checksum
from redis_replay.errors import PayloadCorrupted, SchemaMismatch
from redis_replay.groups import unpack_record
from redis_replay.payloads import decode_group, encode_group
from tests.identity import identity_of
from tests.stored_groups import OF_FORMAT_1, OF_FORMAT_2, stored

GROUPS = {(1, name): rows for name, rows in OF_FORMAT_1.items()} | {
    (2, name): rows for name, rows in OF_FORMAT_2.items()
}


def identity_by_field(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: identity_of(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize(("number", "name"), GROUPS)
def test_a_payload_of_an_older_format_reads_back_exactly(number: int, name: str) -> None:
    kept = stored(number, name)
    assert number == msgpack.unpackb(kept["directory"])[0]
    read = decode_group("g", kept["directory"], kept["payload"], checksum=kept["checksum"])
    assert identity_by_field(GROUPS[number, name]) == identity_by_field(read)


@pytest.mark.parametrize(("number", "name"), GROUPS)
def test_a_record_of_an_older_format_reads_back(number: int, name: str) -> None:
    kept, rows = stored(number, name), GROUPS[number, name]
    record = unpack_record(name, kept["record"])
    assert tuple(dict.fromkeys(field for row in rows for field in row)) == record.fields
    assert record.fields == record.directory.fields
    assert (len(kept["payload"]), len(rows)) == (record.payload_bytes, len(record.lengths))
    assert (kept["directory"], kept["checksum"]) == (
        record.packed_directory,
        record.directory_checksum,
    )
    assert {"step": 3, "note": (1, 2)} == record.rollout_metrics
    assert [{"row": row} for row in range(len(rows))] == list(record.tags)


@pytest.mark.parametrize("name", OF_FORMAT_1)
def test_a_group_that_needs_nothing_new_is_written_so_that_older_versions_read_it(
    name: str,
) -> None:
    kept, written = stored(1, name), encode_group("g", OF_FORMAT_1[name])
    assert (kept["directory"], kept["payload"]) == (written.directory, written.payload)


NEEDS_FORMAT_2: dict[str, list[dict[str, Any]]] = {
    "a row that lacks a field": [{"a": 1}, {"a": 1, "b": 2}],
    "a structure": [{"a": np.zeros(2, "i4,f4")}],
    "raw bytes": [{"a": np.zeros(2, "V3")}],
    "a shared value": [{"a": bytes(65_536)}] * 2,
}


@pytest.mark.parametrize("case", NEEDS_FORMAT_2)
def test_a_group_that_needs_something_new_says_so_by_its_format(case: str) -> None:
    directory = encode_group("g", NEEDS_FORMAT_2[case]).directory
    assert (1, 2) == (msgpack.unpackb(stored(1, "cells")["directory"])[0], DIRECTORY_FORMAT)
    assert DIRECTORY_FORMAT == msgpack.unpackb(directory)[0]


@pytest.mark.parametrize("rest", [[], [2, 16, []], [{"anything": "else"}]])
def test_a_directory_of_a_newer_format_is_refused_as_such_and_not_as_damage(
    rest: list[Any],
) -> None:
    newer = msgpack.packb([DIRECTORY_FORMAT + 1, *rest])
    checksum = directory_checksum(newer)
    with pytest.raises(SchemaMismatch, match=r"'g7': .* format 3, .* reads formats up to 2"):
        Directory.from_bytes(newer, group_id="g7", checksum=checksum)


def test_a_damaged_format_is_damage() -> None:
    kept = stored(1, "tokens")
    newer = kept["directory"].replace(b"\x94\x01", b"\x94\x03", 1)
    with pytest.raises(PayloadCorrupted, match="checksum"):
        Directory.from_bytes(newer, checksum=kept["checksum"])


def test_a_record_of_a_newer_format_is_refused_as_such_and_not_as_damage() -> None:
    for newer in ([2, "whatever"], [2, *msgpack.unpackb(stored(1, "cells")["record"])[1:]]):
        with pytest.raises(SchemaMismatch, match=r"'g7'.* format 2, .* reads formats up to 1"):
            unpack_record("g7", msgpack.packb(newer))
