"""What is written of a committed group beside its payload, once, and never changed.

The record is msgpack::

    [2, directory, rewards, chunk bytes, facts, checksum]

``rewards`` are a bitmap of ones and zeros, a list of others, or nil. ``chunk bytes`` is 0 for
`_ZERO_CHUNK_BYTES`; ``facts`` are tags and metrics. Both are left out where neither they nor what
follows them says anything. The checksum is the xxh3_64 of all bytes before its own eight.

Format 1 is read for ever (D58); its checksum is that of the directory::

    [1, fields, payload bytes, chunk bytes, lengths, rewards, facts, directory, checksum]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, cast

import msgpack
import xxhash

from redis_replay._redis.keys import Keyspace
from redis_replay.codec import Value, decode_value, encode_value
from redis_replay.directory import Directory, refuse_format
from redis_replay.errors import PayloadCorrupted
from redis_replay.narrowing import packed_bytes
from redis_replay.payloads import EncodedGroup, chunk_offsets

CHUNK_BYTES: Final = 16 * 1024 * 1024 - 10
"""Ten bytes more would take a quarter more of the server's memory (`thrifty_chunk_bytes`)."""

LONGEST_CHUNK_BYTES: Final = 16 * 1024 * 1024
"""What was ever written."""

_FORMAT: Final = 2
_FIRST_FORMAT: Final = 1
_ZERO_CHUNK_BYTES: Final = 16 * 1024 * 1024 - 10
"""What 0 stands for in a record; it stays so, whatever chunks are written."""

_CHECKSUM_BYTES: Final = 8
_FACTS: Final = "tags and metrics"
_BITS: Final = frozenset({0.0, 1.0})
_NUMBERS: Final = frozenset({int, float})
_FEW_ROWS: Final = 64
"""Rewards of so many rows are worth remembering: there are few combinations, or they take turns."""

Tags = tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class GroupRecord:
    """What is known of a committed group without reading its payload. Nobody changes one.

    Not frozen, which would double what a claim pays for each of its groups.

    Attributes:
        directory: Where each column and row lies in the payload, and its checksums.
        chunk_bytes: Length of the strings that the payload was cut into.
        lengths: Sequence length of each row.
        rewards: Reward of each row, ``None`` when the rows have none.
        tags: One dictionary per row.
        rollout_metrics: Metrics of the rollout that produced the group.
    """

    group_id: str
    directory: Directory
    chunk_bytes: int
    lengths: tuple[int, ...]
    rewards: tuple[float, ...] | None
    tags: Tags
    rollout_metrics: Mapping[str, Any]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of its columns."""
        return self.directory.fields

    @property
    def payload_bytes(self) -> int:
        """Length of the payload."""
        return self.directory.payload_bytes

    def payload_keys(self, keyspace: Keyspace, fence: int) -> list[str]:
        """Return the keys that hold the payload, in order."""
        chunks = chunk_offsets(self.payload_bytes, self.chunk_bytes)
        return [keyspace.payload(self.group_id, fence, chunk=at) for at in range(len(chunks))]


def pack_record(
    encoded: EncodedGroup,
    *,
    chunk_bytes: int,
    tags: Sequence[Mapping[str, Any]],
    rollout_metrics: Mapping[str, Any],
) -> bytes:
    """Return the stored form of a group's record.

    Raises:
        TypeError: a tag or metric cannot be stored; the message names its path.
    """
    facts = [[dict(tag) for tag in tags] if any(tags) else [], dict(rollout_metrics)]
    record: list[Any] = [_FORMAT, encoded.directory, _packed_rewards(encoded.rewards)]
    record.append(0 if chunk_bytes == _ZERO_CHUNK_BYTES else chunk_bytes)
    if any(facts):
        record.append(encode_value(cast(Value, facts), _FACTS))
    elif not record[-1]:
        record.pop()
    packed: bytes = msgpack.packb([*record, bytes(_CHECKSUM_BYTES)])
    covered = packed[:-_CHECKSUM_BYTES]
    return covered + xxhash.xxh3_64_digest(covered)


def unpack_record(group_id: str, stored: bytes) -> GroupRecord:
    """Read the stored form.

    Raises:
        PayloadCorrupted: it is damaged; the message names the group.
        SchemaMismatch: a newer version of this package wrote it.
    """
    try:
        unpacked: Any = msgpack.unpackb(stored, use_list=False)
        found = unpacked[0]
        if type(found) is not int or not _FIRST_FORMAT <= found <= _FORMAT:
            refuse_format(found, known=_FORMAT, what=f"group {group_id!r}: its record")
        if found == _FIRST_FORMAT:
            return _read_first_format(group_id, *unpacked[1:])
        if unpacked[-1] != xxhash.xxh3_64_digest(stored[:-_CHECKSUM_BYTES]):
            raise ValueError("it fails its checksum")
        return _read_record(group_id, *unpacked[1:-1])
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as broken:
        raise PayloadCorrupted(
            f"group {group_id!r}: unreadable record: {broken}", group_id=group_id
        ) from broken


def _read_record(
    group_id: str, packed_directory: Any, rewards: Any, chunk_bytes: Any = 0, facts: Any = b""
) -> GroupRecord:
    directory = Directory.from_bytes(packed_directory, group_id=group_id)
    lengths = directory.layout.lengths
    if not lengths:
        raise ValueError("its directory is of an older format")
    rows = len(lengths)
    return GroupRecord(
        group_id,
        directory,
        _chunk_of(chunk_bytes, zero=_ZERO_CHUNK_BYTES),
        lengths,
        _read_rewards(rewards, rows),
        *_read_facts(group_id, facts, rows),
    )


def _read_first_format(
    group_id: str,
    fields: Any,
    payload_bytes: Any,
    chunk_bytes: Any,
    lengths: Any,
    rewards: Any,
    facts: Any,
    packed_directory: Any,
    checksum: Any,
) -> GroupRecord:
    if type(checksum) is not int:
        raise ValueError("its checksum is none")
    directory = Directory.from_bytes(packed_directory, group_id=group_id, checksum=checksum)
    rows = directory.row_count
    if (directory.fields, directory.payload_bytes) != (fields, payload_bytes):
        raise ValueError("it contradicts its directory")
    if len(lengths) != rows or not {int}.issuperset(map(type, lengths)) or min(lengths) < 0:
        raise ValueError("its lengths are malformed")
    return GroupRecord(
        group_id,
        directory,
        _chunk_of(chunk_bytes, zero=0),
        lengths,
        _read_rewards(rewards, rows),
        *_read_facts(group_id, facts, rows),
    )


def _chunk_of(number: Any, *, zero: int) -> int:
    chunk_bytes = number or zero
    if type(number) is not int or not 0 < chunk_bytes <= LONGEST_CHUNK_BYTES:
        raise ValueError(f"chunks of {number!r} bytes")
    return chunk_bytes


def _packed_rewards(rewards: Sequence[float] | None) -> Any:
    """Return a bitmap of rewards that are 0 and 1, and others as they are."""
    if rewards is None or not _BITS.issuperset(rewards):
        return rewards
    if min(map(math.copysign, repeat(1.0), rewards)) < 0:  # a negative zero equals zero
        return rewards
    last_to_first = "".join(["1" if reward else "0" for reward in reversed(rewards)])
    return int(last_to_first, 2).to_bytes(packed_bytes(len(rewards)), "little")


def _read_rewards(packed: Any, rows: int) -> tuple[float, ...] | None:
    if packed is None:
        return None
    if type(packed) is bytes:
        return _few_bits(packed, rows) if rows <= _FEW_ROWS else _read_bits(packed, rows)
    if len(packed) != rows or not _NUMBERS.issuperset(map(type, packed)):
        raise ValueError("its rewards are malformed")
    return tuple(map(float, packed))


def _read_bits(bitmap: bytes, rows: int) -> tuple[float, ...]:
    last_to_first = f"{int.from_bytes(bitmap, 'little'):0{rows}b}"
    if len(bitmap) != packed_bytes(rows) or len(last_to_first) != rows:
        raise ValueError("its rewards are malformed")
    return tuple([float(bit) for bit in reversed(last_to_first)])


_few_bits = lru_cache(maxsize=1024)(_read_bits)


def _read_facts(group_id: str, packed: Any, rows: int) -> tuple[Tags, Mapping[str, Any]]:
    """Return the tags of the rows, and the metrics of the rollout."""
    if not packed:
        return _no_tags(rows), {}
    try:
        tags, metrics = decode_value(packed, _FACTS)
    except PayloadCorrupted as broken:
        raise PayloadCorrupted(f"group {group_id!r}: {broken}", group_id=group_id) from broken
    if not {dict}.issuperset(map(type, (*tags, metrics))) or len(tags) not in (0, rows):
        raise ValueError(f"{len(tags)} tags for {rows} rows")
    return tuple(tags) or _no_tags(rows), metrics


@lru_cache(maxsize=64)
def _no_tags(rows: int) -> Tags:
    return ({},) * rows
