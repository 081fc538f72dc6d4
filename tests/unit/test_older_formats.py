"""Groups that were written under format 1 read back; what a newer package wrote is refused.

``tests/fixtures/payloads-format-1.json`` holds, in hex, what `encode_group` and `pack_record` of
version 0.1.0 made of the groups below, before there was a second format.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import pytest

from redis_replay.codec import encode_value
from redis_replay.directory import DIRECTORY_FORMAT, Directory, directory_checksum
from redis_replay.errors import PayloadCorrupted, SchemaMismatch
from redis_replay.groups import unpack_record
from redis_replay.payloads import decode_group, encode_group

FIXTURE = Path(__file__).parents[1] / "fixtures" / "payloads-format-1.json"

GROUPS: dict[str, list[dict[str, Any]]] = {
    "tokens": [
        {
            "input_ids": np.arange(5 + row, dtype=np.int32),
            "logprobs": np.linspace(-1, 0, 5 + row, dtype=np.float32),
            "token_mask": np.ones(7, np.uint8),
            "reward": float(row),
            "length": 5 + row,
        }
        for row in range(3)
    ],
    "dtypes": [
        {
            "bf16": np.array([[0.1, -0.0], [row, np.inf]], ml_dtypes.bfloat16),
            "fp8": np.array([0.5, row], ml_dtypes.float8_e4m3fn),
            "big-endian": np.array([1, 2**40 + row], ">i8"),
            "scalar": np.float32(row / 3),
            "no axes": np.array(row, "u2"),
            "empty": np.zeros((0, 7), "c8"),
            "time": np.array([row], "M8[ms]"),
            "text": np.array(["a", "bc"]),
        }
        for row in range(2)
    ],
    "cells": [
        {
            "several": [None, True, 7, 7.0, "", b"", [], (), {}][row],
            "nested": {"turns": [{"role": "user", "ids": np.arange(row)}], (1, "k"): 2**70 + row},
            "ragged": [[1], [2, 3], []],
            "\u043f\u043e\u043b\u0435": "\ud800" + "x" * row,
        }
        for row in range(9)
    ],
    "without bytes": [{"x": np.zeros(0, "i4")}] * 2,
}


def stored(name: str) -> dict[str, Any]:
    """Return the stored bytes of a group, and the checksum of its directory."""
    entry = json.loads(FIXTURE.read_text(encoding="utf-8"))[name]
    return {key: int(v) if key == "checksum" else bytes.fromhex(v) for key, v in entry.items()}


@pytest.mark.parametrize("name", GROUPS)
def test_a_payload_of_format_1_reads_back_exactly(name: str) -> None:
    kept = stored(name)
    read = decode_group("g", kept["directory"], kept["payload"], checksum=kept["checksum"])
    assert [encode_value(row, "x") for row in GROUPS[name]] == [
        encode_value(row, "x") for row in read
    ]


@pytest.mark.parametrize("name", GROUPS)
def test_a_record_of_format_1_reads_back(name: str) -> None:
    kept, rows = stored(name), GROUPS[name]
    record = unpack_record(name, kept["record"])
    assert tuple(rows[0]) == record.fields == record.directory.fields
    assert (len(kept["payload"]), len(rows)) == (record.payload_bytes, len(record.lengths))
    assert (kept["directory"], kept["checksum"]) == (
        record.packed_directory,
        record.directory_checksum,
    )
    assert {"step": 3, "note": (1, 2)} == record.rollout_metrics
    assert [{"row": row} for row in range(len(rows))] == list(record.tags)


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_that_needs_nothing_new_is_written_so_that_older_versions_read_it(
    name: str,
) -> None:
    kept, written = stored(name), encode_group("g", GROUPS[name])
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
    assert (1, 2) == (msgpack.unpackb(stored("cells")["directory"])[0], DIRECTORY_FORMAT)
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
    kept = stored("tokens")
    newer = kept["directory"].replace(b"\x94\x01", b"\x94\x03", 1)
    with pytest.raises(PayloadCorrupted, match="checksum"):
        Directory.from_bytes(newer, checksum=kept["checksum"])


def test_a_record_of_a_newer_format_is_refused_as_such_and_not_as_damage() -> None:
    for newer in ([2, "whatever"], [2, *msgpack.unpackb(stored("cells")["record"])[1:]]):
        with pytest.raises(SchemaMismatch, match=r"'g7'.* format 2, .* reads formats up to 1"):
            unpack_record("g7", msgpack.packb(newer))
