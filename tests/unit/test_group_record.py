"""The record of a group is small, comes back as it was, and is never half believed."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_replay.errors import PayloadCorrupted, SchemaMismatch
from redis_replay.group_record import (
    CHUNK_BYTES,
    LONGEST_CHUNK_BYTES,
    GroupRecord,
    pack_record,
    unpack_record,
)
from redis_replay.payloads import encode_group, thrifty_chunk_bytes
from tests.stored_groups import stored

TAGS = [{"step": 3}, {"step": 4, "note": "x"}]


def packed(rewards: Any = (0.0, 1.0), *, chunk_bytes: int = CHUNK_BYTES, tags: Any = ()) -> bytes:
    """Return the record of a group with these rewards."""
    rows = [{"x": np.arange(2)} | ({} if r is None else {"reward": r}) for r in rewards]
    encoded = encode_group("g", rows)
    return pack_record(
        encoded, chunk_bytes=chunk_bytes, tags=tags or [{} for _ in rows], rollout_metrics={}
    )


def signed(record: Any) -> bytes:
    """Return a record with a checksum that is right."""
    covered: bytes = msgpack.packb([*record, bytes(8)])[:-8]
    return covered + xxhash.xxh3_64_digest(covered)


def unpacked(record: bytes) -> GroupRecord:
    return unpack_record("g7", record)


@pytest.mark.parametrize("tokens", [8, 4096])
def test_the_record_of_a_rollout_takes_little_of_the_server(tokens: int) -> None:
    rows = [
        {
            "input_ids": np.zeros(tokens, np.int32),
            "generation_logprobs": np.zeros(tokens, np.float32),
            "token_mask": np.ones(tokens, np.uint8),
            "reward": float(row % 2),
            "length": tokens,
        }
        for row in range(16)
    ]
    encoded = encode_group("g", rows)
    chunk_bytes = thrifty_chunk_bytes(encoded.payload_bytes, most=CHUNK_BYTES)
    record = pack_record(encoded, chunk_bytes=chunk_bytes, tags=[{}] * 16, rollout_metrics={})
    assert len(record) <= 92  # which the server's allocator rounds up to 96 with what it adds


@given(
    st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=100)
    | st.lists(st.sampled_from([0.0, 1.0, -0.0]), min_size=1, max_size=9)
    | st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9)
)
def test_rewards_come_back_bit_for_bit(rewards: list[float]) -> None:
    found = unpacked(packed(rewards)).rewards
    assert found is not None
    assert [reward.hex() for reward in rewards] == [reward.hex() for reward in found]


def test_zeros_and_ones_take_a_bit_each() -> None:
    assert 1 == len(packed([0.0, 1.0] * 8)) - len(packed([1.0] * 8))
    assert 9 * 8 < len(packed([0.5] * 8)) < len(packed([1.0] * 8)) + 9 * 8


def test_a_group_without_rewards_has_none() -> None:
    assert unpacked(packed([None, None])).rewards is None


@pytest.mark.parametrize("chunk_bytes", [1, 1024, CHUNK_BYTES, LONGEST_CHUNK_BYTES])
@pytest.mark.parametrize("tags", [(), TAGS])
def test_chunks_and_tags_come_back(chunk_bytes: int, tags: Any) -> None:
    found = unpacked(packed(chunk_bytes=chunk_bytes, tags=tags))
    assert (chunk_bytes, tuple(tags) or ({}, {}), {}) == (
        found.chunk_bytes,
        found.tags,
        found.rollout_metrics,
    )


def test_what_says_nothing_is_left_out() -> None:
    assert 4 == len(msgpack.unpackb(packed()))
    assert 5 == len(msgpack.unpackb(packed(chunk_bytes=1)))
    assert 6 == len(msgpack.unpackb(packed(tags=TAGS)))


def test_any_changed_byte_is_damage_or_a_newer_format() -> None:
    record = packed(chunk_bytes=1000, tags=TAGS)
    for place in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[place] ^= 1 << bit
            with pytest.raises((PayloadCorrupted, SchemaMismatch), match="'g7'"):
                unpacked(bytes(damaged))


@given(st.data())
def test_any_bytes_are_damage_or_a_newer_format(data: st.DataObject) -> None:
    record = packed(tags=TAGS)
    cut = data.draw(st.integers(0, len(record) - 1))
    damaged = record[:cut] + data.draw(st.binary(max_size=20))
    if damaged != record:
        with pytest.raises((PayloadCorrupted, SchemaMismatch), match="'g7'"):
            unpacked(damaged)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_what_is_signed_and_yet_no_record_is_damage_or_a_newer_format(data: st.DataObject) -> None:
    record = bytearray(packed([0.5, 1.0], chunk_bytes=1000, tags=TAGS)[:-8])
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    covered = bytes(record)
    try:
        found = unpacked(covered + xxhash.xxh3_64_digest(covered))
    except (PayloadCorrupted, SchemaMismatch):
        return
    rows = found.directory.row_count
    assert rows == len(found.lengths) == len(found.tags) == len(found.rewards or found.tags)


DIRECTORY = encode_group("g", [{"x": 1}, {"x": 2}]).directory
FACTS = msgpack.packb([[], {"a": 1}])
GOOD = [2, DIRECTORY, b"\1", 9, FACTS]
HOSTILE: dict[str, Any] = {
    "no directory": [2],
    "no rewards": [2, DIRECTORY],
    "too much": [*GOOD, 1],
    "directory that is none": [2, 7, None],
    "directory that is text": [2, "x", None],
    "directory of an older format": [2, stored(1, "tokens")["directory"], None],
    "a bit too many": [2, DIRECTORY, b"\4"],
    "a byte of bits too many": [2, DIRECTORY, b"\1\0"],
    "no bits": [2, DIRECTORY, b""],
    "a reward too few": [2, DIRECTORY, [1]],
    "a reward too many": [2, DIRECTORY, [1, 2, 3]],
    "rewards that are text": [2, DIRECTORY, "10"],
    "reward that is text": [2, DIRECTORY, [1, "0"]],
    "reward that is truth": [2, DIRECTORY, [1, True]],
    "rewards that are a number": [2, DIRECTORY, 3],
    "negative chunks": [2, DIRECTORY, None, -1],
    "chunks beyond the longest": [2, DIRECTORY, None, LONGEST_CHUNK_BYTES + 1],
    "chunks that are text": [2, DIRECTORY, None, "9"],
    "truth for chunks": [2, DIRECTORY, None, True],
    "nothing for chunks": [2, DIRECTORY, None, None],
    "falsehood for chunks": [2, DIRECTORY, None, False],
    "facts that are no bytes": [2, DIRECTORY, None, 9, 5],
    "facts of noise": [2, DIRECTORY, None, 9, b"\xc1"],
    "facts that are one": [2, DIRECTORY, None, 9, msgpack.packb([[]])],
    "metrics that are no mapping": [2, DIRECTORY, None, 9, msgpack.packb([[], []])],
    "tags that are no mappings": [2, DIRECTORY, None, 9, msgpack.packb([[1, 2], {}])],
    "a tag too few": [2, DIRECTORY, None, 9, msgpack.packb([[{}], {}])],
}


def test_the_record_that_the_hostile_ones_vary_is_good() -> None:
    found = unpacked(signed(GOOD))
    assert ((1.0, 0.0), 9, {"a": 1}) == (found.rewards, found.chunk_bytes, found.rollout_metrics)


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_record_is_corruption(case: str) -> None:
    with pytest.raises(PayloadCorrupted, match="'g7'") as caught:
        unpacked(signed(HOSTILE[case]))
    assert "g7" == caught.value.group_id


FIRST = msgpack.unpackb(stored(1, "tokens")["record"])
OLDER: dict[str, list[Any]] = {
    "another field": [1, ["x"], *FIRST[2:]],
    "other bytes": [*FIRST[:2], 1, *FIRST[3:]],
    "chunks of nothing": [*FIRST[:3], 0, *FIRST[4:]],
    "a length too few": [*FIRST[:4], [5, 6], *FIRST[5:]],
    "a negative length": [*FIRST[:4], [5, 6, -7], *FIRST[5:]],
    "a length that is text": [*FIRST[:4], [5, 6, "7"], *FIRST[5:]],
    "a reward too few": [*FIRST[:5], [1, 0], *FIRST[6:]],
    "another checksum": [*FIRST[:8], FIRST[8] ^ 1],
    "a checksum that is none": [*FIRST[:8], None],
}


@pytest.mark.parametrize("case", OLDER)
def test_a_hostile_record_of_the_first_format_is_corruption(case: str) -> None:
    assert unpacked(msgpack.packb(FIRST)).rewards == (0.0, 1.0, 2.0)
    with pytest.raises(PayloadCorrupted, match="'g7'"):
        unpacked(msgpack.packb(OLDER[case]))
