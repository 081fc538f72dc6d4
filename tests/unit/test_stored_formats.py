"""Groups that were written under any format read back; what a newer package wrote is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from redis_replay.directory import DIRECTORY_FORMAT, Directory, directory_checksum
from redis_replay.errors import PayloadCorrupted, SchemaMismatch
from redis_replay.group_record import CHUNK_BYTES, pack_record, unpack_record
from redis_replay.payloads import decode_group, encode_group
from tests.identity import identity_of
from tests.stored_groups import OF_FORMAT_1, OF_FORMAT_2, OF_FORMAT_3, OPTIONS, stored

GROUPS = {
    (number, name): rows
    for number, groups in ((1, OF_FORMAT_1), (2, OF_FORMAT_2), (3, OF_FORMAT_3))
    for name, rows in groups.items()
}
every_group = pytest.mark.parametrize(("number", "name"), GROUPS)


def identity_by_field(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: identity_of(value) for name, value in row.items()} for row in rows]


@every_group
def test_a_payload_of_any_format_reads_back_exactly(number: int, name: str) -> None:
    kept = stored(number, name)
    assert number == msgpack.unpackb(kept["directory"])[0]
    read = decode_group("g", kept["directory"], kept["payload"], checksum=kept.get("checksum"))
    assert identity_by_field(GROUPS[number, name]) == identity_by_field(read)


@every_group
def test_a_record_of_any_format_reads_back(number: int, name: str) -> None:
    kept, rows = stored(number, name), GROUPS[number, name]
    record, directory = unpack_record(name, kept["record"]), Directory.from_bytes(kept["directory"])
    assert tuple(dict.fromkeys(field for row in rows for field in row)) == record.fields
    assert (len(kept["payload"]), len(rows)) == (record.payload_bytes, len(record.lengths))
    assert (directory.columns, directory.checksums) == (
        record.directory.columns,
        record.directory.checksums,
    )
    assert {"step": 3, "note": (1, 2)} == record.rollout_metrics
    assert [{"row": row} for row in range(len(rows))] == list(record.tags)
    rewards = tuple(float(row["reward"]) for row in rows if "reward" in row)
    assert rewards == (record.rewards or ())


@pytest.mark.parametrize("name", sorted(OF_FORMAT_3.keys() - {"compressed", "shared"}))
def test_a_group_is_written_as_ever(name: str) -> None:
    kept, rows = stored(3, name), OF_FORMAT_3[name]
    written = encode_group("g", rows, fields=OPTIONS.get(name))
    assert (kept["directory"], kept["payload"]) == (written.directory, written.payload)
    tags, metrics = [{"row": row} for row in range(len(rows))], {"step": 3, "note": (1, 2)}
    assert kept["record"] == pack_record(
        written, chunk_bytes=CHUNK_BYTES, tags=tags, rollout_metrics=metrics
    )


@pytest.mark.parametrize("rest", [[], [2, 16, []], [{"anything": "else"}]])
def test_a_directory_of_a_newer_format_is_refused_as_such_and_not_as_damage(
    rest: list[Any],
) -> None:
    newer = msgpack.packb([DIRECTORY_FORMAT + 1, *rest])
    checksum = directory_checksum(newer)
    with pytest.raises(SchemaMismatch, match=r"'g7': .* format 4, .* reads formats up to 3"):
        Directory.from_bytes(newer, group_id="g7", checksum=checksum)


def test_a_damaged_format_is_damage() -> None:
    kept = stored(1, "tokens")
    newer = kept["directory"].replace(b"\x94\x01", b"\x94\x09", 1)
    with pytest.raises(PayloadCorrupted, match="checksum"):
        Directory.from_bytes(newer, checksum=kept["checksum"])


def test_a_record_of_a_newer_format_is_refused_as_such_and_not_as_damage() -> None:
    for newer in ([3, "whatever"], [3, *msgpack.unpackb(stored(1, "cells")["record"])[1:]]):
        with pytest.raises(SchemaMismatch, match=r"'g7'.* format 3, .* reads formats up to 2"):
            unpack_record("g7", msgpack.packb(newer))


@pytest.mark.parametrize("found", [0, -1, True, 1.0, "1", None])
def test_what_is_no_format_is_damage(found: Any) -> None:
    for read in (unpack_record, lambda name, stored: Directory.from_bytes(stored, group_id=name)):
        with pytest.raises(PayloadCorrupted, match=r"'g7': unreadable .* is no format"):
            read("g7", msgpack.packb([found, 1, 2]))
