"""Where a payload is cut so that the server's allocator wastes little."""

from __future__ import annotations

import pytest

from redis_replay.groups import CHUNK_BYTES
from redis_replay.payloads import thrifty_chunk_bytes


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
