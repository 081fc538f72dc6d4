"""How a payload is cut into chunks, and where so that the server's allocator wastes little."""

from __future__ import annotations

import pytest

from redis_replay.group_record import CHUNK_BYTES
from redis_replay.payloads import chunk_offsets, thrifty_chunk_bytes


@pytest.mark.parametrize(
    ("payload_bytes", "expected"),
    [
        (590_080, 524_278),
        (4_718_592, 4_194_294),
        (524_278, CHUNK_BYTES),  # fills its size
        (650_000, CHUNK_BYTES),  # nearly
        (262_200, 262_134),
        (73_920, CHUNK_BYTES),  # too small to be worth a second key
        (CHUNK_BYTES + 1, CHUNK_BYTES),
    ],
)
def test_a_large_payload_is_cut_where_the_servers_allocator_has_a_size(
    payload_bytes: int, expected: int
) -> None:
    assert expected == thrifty_chunk_bytes(payload_bytes, most=CHUNK_BYTES)


def test_no_chunk_is_longer_than_the_server_accepts() -> None:
    assert 1_000 == thrifty_chunk_bytes(590_080, most=1_000)


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
