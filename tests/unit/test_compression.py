"""Compressed rows come back exactly, one by one, and never expand beyond what was written down."""

from __future__ import annotations

import sys
from typing import Any

import msgpack
import numpy as np
import pytest
import zstandard

from redis_replay.compression import MAX_EXPANDED_BYTES, expander, squeezer
from redis_replay.directory import Directory, directory_checksum, read_plan
from redis_replay.errors import ConfigurationError, PayloadCorrupted
from redis_replay.fields import FieldOptions
from redis_replay.payloads import decode_columns, decode_group, encode_group
from tests.identity import identity_of

ZSTD = FieldOptions(compression="zstd")
ROWS: list[dict[str, Any]] = [
    {
        "ids": np.arange(1000 - row) % 7,
        "mask": np.ones(512, bool),
        "empty": np.zeros(0, "f4"),
        "some": np.zeros(0 if row == 1 else 300),
        "text": {"turns": ["a long text " * 50] * (row + 1), "n": row},
        "scalar": np.float32(row),
        "noise": np.random.default_rng(row).bytes(200),
    }
    for row in range(4)
]
GROUP = encode_group("g", ROWS, fields=dict.fromkeys(ROWS[0], ZSTD))


def test_compressed_rows_come_back_exactly_and_take_less() -> None:
    assert identity_of(ROWS) == identity_of(decode_group("g", GROUP.directory, GROUP.payload))
    assert GROUP.payload_bytes < encode_group("g", ROWS).payload_bytes / 10


@pytest.mark.parametrize("wanted", [[0], [1], [3, 1], [0, 1, 2]])
def test_each_row_is_read_and_expanded_alone(wanted: list[int]) -> None:
    directory = Directory.from_bytes(GROUP.directory)
    plan = read_plan(directory, rows=wanted)
    buffers = {part: GROUP.payload[part.offset : part.offset + part.length] for part in plan}
    columns = decode_columns(directory, buffers, rows=wanted)
    expected = {name: [ROWS[row][name] for row in wanted] for name in ROWS[0]}
    assert identity_of(expected) == identity_of(columns)


@pytest.mark.parametrize("level", [1, 22])
def test_any_level_reads_back(level: int) -> None:
    options = {"ids": FieldOptions(compression="zstd", level=level)}
    group = encode_group("g", ROWS, fields=options)
    assert identity_of(ROWS) == identity_of(decode_group("g", group.directory, group.payload))


def test_damage_to_one_row_is_found_and_named_although_the_column_is_not_whole() -> None:
    directory = Directory.from_bytes(GROUP.directory)
    plan = read_plan(directory, fields=["ids"], rows=[2])
    [part] = plan
    frame = GROUP.payload[part.offset : part.offset + part.length]
    for place in range(len(frame)):
        damaged = frame[:place] + bytes([frame[place] ^ 1]) + frame[place + 1 :]
        with pytest.raises(PayloadCorrupted) as refused:
            decode_columns(directory, {part: damaged}, fields=["ids"], rows=[2], group_id="g")
        found = refused.value
        assert ("g", "ids", 2) == (found.group_id, found.field, found.row)


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigurationError, match=r"redis-replay\[compression\]"):
        FieldOptions(compression="zstd")
    with pytest.raises(ConfigurationError, match=r"redis-replay\[compression\]"):
        decode_group("g", GROUP.directory, GROUP.payload)


@pytest.mark.parametrize(
    "options", [{"compression": "gzip"}, {"level": 0}, {"level": 23}, {"level": "3"}]
)
def test_an_unknown_compression_or_level_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match=r"compression must be|level must be"):
        FieldOptions(**options)


# --- bombs -----------------------------------------------------------------------------------


def bomb(content_bytes: int) -> bytes:
    """Return a short frame of many zeros that says how many."""
    compressor = zstandard.ZstdCompressor(level=1).chunker(size=content_bytes)
    block = bytes(2**20)
    parts = [
        part for _ in range(content_bytes // len(block)) for part in compressor.compress(block)
    ]
    return b"".join([*parts, *compressor.finish()])


def hostile(frame: bytes, *, expanded: Any, size: int, lengths: Any = None) -> tuple[bytes, bytes]:
    """Return a directory of one compressed row of so many bytes, and its payload."""
    entry = ["a", "array", "|u1", 0, len(frame), directory_checksum(frame), [size]]
    stored = len(frame) if lengths is None else lengths
    extras = {"zstd": [expanded, stored]}
    return msgpack.packb([2, 1, len(frame), [[*entry, extras]]]), frame


def test_a_frame_that_is_as_long_as_it_says_is_read() -> None:
    directory, payload = hostile(squeezer(3)(bytes(100)), expanded=100, size=100)
    assert bytes(100) == decode_group("g", directory, payload)[0]["a"].tobytes()


def test_a_frame_that_expands_to_more_than_was_written_down_is_refused_unexpanded() -> None:
    frame = bomb(2**28)
    assert len(frame) < 2**28 / 5000
    directory, payload = hostile(frame, expanded=100, size=100)
    with pytest.raises(PayloadCorrupted, match="expands to 268435456 bytes instead of 100"):
        decode_group("g", directory, payload)


def test_a_column_that_would_expand_beyond_all_bounds_is_refused_by_its_directory() -> None:
    size = MAX_EXPANDED_BYTES + 1
    directory, _ = hostile(bytes(20), expanded=size, size=size)
    with pytest.raises(PayloadCorrupted, match=f"would expand to {size} bytes"):
        Directory.from_bytes(directory)


def test_a_column_too_large_to_be_read_again_is_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("redis_replay.drafts.MAX_EXPANDED_BYTES", 1000)
    with pytest.raises(ValueError, match=r"'g': field 'x' has 1600 bytes, .* may have 1000"):
        encode_group("g", [{"x": np.zeros(100)}] * 2, fields={"x": ZSTD})


def without_content_size(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


FRAMES: dict[str, bytes] = {
    "nothing": b"",
    "noise": b"abcdefghijklmnop",
    "no length": without_content_size(bytes(100)),
    "shorter": squeezer(3)(bytes(99)),
    "longer": squeezer(3)(bytes(101)),
    "cut": squeezer(3)(bytes(100))[:-1],
    "more behind it": squeezer(3)(bytes(100)) + b"x",
    "two frames": squeezer(3)(bytes(50)) * 2,
    "another checksum": squeezer(3)(bytes(100))[:-1] + b"x",
}


@pytest.mark.parametrize("case", FRAMES)
def test_a_frame_that_is_not_what_was_written_is_refused(case: str) -> None:
    expand = expander()
    assert (bytes(100), b"") == (expand(squeezer(3)(bytes(100)), 100), expand(b"", 0))
    with pytest.raises(ValueError, match=r"expands? to|damaged"):
        expand(FRAMES[case], 100)


HOSTILE: dict[str, bytes] = {
    "a negative size": hostile(bytes(9), expanded=-1, size=100)[0],
    "a size that is no number": hostile(bytes(9), expanded="100", size=100)[0],
    "another size": hostile(bytes(9), expanded=99, size=100)[0],
    "other lengths": hostile(bytes(9), expanded=100, size=100, lengths=[8])[0],
    "a negative length": hostile(bytes(9), expanded=100, size=100, lengths=[-9])[0],
    "a length too many": hostile(bytes(9), expanded=100, size=100, lengths=[9, 0])[0],
    "no length for bytes": hostile(b"", expanded=100, size=100)[0],
    "a length for no bytes": hostile(bytes(9), expanded=0, size=0)[0],
    "lengths that are text": hostile(bytes(9), expanded=100, size=100, lengths="9")[0],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_compression_is_corruption(case: str) -> None:
    with pytest.raises(PayloadCorrupted, match="'g': unreadable payload directory"):
        Directory.from_bytes(HOSTILE[case], group_id="g")
