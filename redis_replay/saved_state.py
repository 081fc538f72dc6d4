"""The copies that make up a checkpoint: read in pages, with their digest, and dropped in slices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from redis_replay._redis.checkpoint_scripts import SAVED_KEYS, DropCheckpoint
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key
from redis_replay._redis.records import CheckpointRecord, SlotRecord
from redis_replay._redis.refusals import accept
from redis_replay.session import Link
from redis_replay.types import GroupState

_PAGE: Final = 256
_DROP_SLICE: Final = 256
_WORD: Final = 2**64

Items = Sequence[tuple[bytes, bytes]]


async def read_copy(gateway: Gateway, saved_id: str, key: Key) -> AsyncIterator[Items]:
    """Yield the fields and values of one copy, a page at a time. A copy never changes."""
    name = gateway.keyspace.saved(saved_id, key)
    cursor, seen = 0, set[bytes]()
    while True:
        [(cursor, found)] = await gateway.pipeline([("HSCAN", name, cursor, "COUNT", _PAGE)])
        page = [(field, value) for field, value in found.items() if field not in seen]
        seen.update(field for field, _ in page)
        if page:
            yield page
        if not int(cursor):
            return


@dataclass
class Digest:
    """A sum over the fields of all copies, whatever their order."""

    _sum: int = 0

    def add(self, key: Key, items: Items) -> None:
        """Add fields of one copy."""
        for field, value in items:
            text = b"%s\0%d:%s%s" % (key.value.encode(), len(field), field, value)
            self._sum = (self._sum + xxhash.xxh3_64_intdigest(text)) % _WORD

    @property
    def text(self) -> str:
        """Sixteen hexadecimal digits."""
        return f"{self._sum:016x}"


@dataclass(frozen=True)
class SavedState:
    """A checkpoint's slots and control record, and the digest of all its copies."""

    meta: dict[bytes, bytes]
    slots: Sequence[SlotRecord]
    digest: str

    @property
    def committed(self) -> list[SlotRecord]:
        """The slots that have rows; looks at all of them."""
        return [slot for slot in self.slots if slot.payload_fence is not None]

    @property
    def unfinished(self) -> list[SlotRecord]:
        """The slots whose generation was under way."""
        return [slot for slot in self.slots if slot.state is GroupState.RESERVED]


async def read_digest(gateway: Gateway, record: CheckpointRecord) -> str:
    """Return the digest of a checkpoint's copies; what they say is not looked at. A pure read."""
    digest = Digest()
    for key in SAVED_KEYS:
        async for page in read_copy(gateway, record.saved_id, key):
            digest.add(key, page)
    return digest.text


async def read_saved(gateway: Gateway, record: CheckpointRecord) -> SavedState:
    """Read a checkpoint's copies once. A pure read; O(groups).

    Raises:
        StoreCorrupted: a slot is not readable.
    """
    digest, meta, slots = Digest(), dict[bytes, bytes](), list[SlotRecord]()
    for key in SAVED_KEYS:
        async for page in read_copy(gateway, record.saved_id, key):
            digest.add(key, page)
            if key is Key.META:
                meta.update(page)
            if key is Key.SLOTS:
                slots += [SlotRecord.parse(group_id, packed) for group_id, packed in page]
    return SavedState(meta, sorted(slots, key=lambda slot: slot.order), digest.text)


async def drop_saved(link: Link, name: str, saved_id: str) -> int:
    """Forget a checkpoint in slices and free what nothing else needs. May be repeated.

    Returns:
        Entries that were given back to the collector.
    """
    given_back, more = 0, True
    while more:
        call = DropCheckpoint(name, _DROP_SLICE, (saved_id,))
        reply = await link.gateway.call(call, link.run.frame)
        count, more = accept(reply)
        given_back += count
    await link.collect()
    return given_back
