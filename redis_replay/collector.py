"""Frees the payload of groups that are gone, after they became invisible.

`dead` names what nothing live refers to. What a checkpoint refers to is set aside as `pinned`; the
rest is `condemned`: its keys are freed on whichever server holds them, then the entries forgotten.
A crash between the two is harmless: freeing is idempotent. What a killed writer left without an
entry is found by `find_orphans`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import anyio

from redis_replay._redis.checkpoint_scripts import Condemn
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key, group_field
from redis_replay._redis.lua import Argument
from redis_replay._redis.records import CheckpointRecord, SlotRecord
from redis_replay._redis.refusals import Refusal, accept
from redis_replay._redis.run_scripts import Bury

_LOG = logging.getLogger(__name__)
_SLICE: Final = 64


@dataclass
class Collector:
    """Garbage collection of one run, shared by all sessions of a store."""

    gateway: Gateway
    frame: tuple[Argument, ...]
    _turn: anyio.Lock = field(default_factory=anyio.Lock)
    _suspects: set[str] = field(default_factory=set)

    async def collect(self) -> int:
        """Free everything that is dead and in no checkpoint; return the number of entries.

        May be repeated.
        """
        freed = 0
        async with self._turn:
            while entries := await self._condemned():
                await self._free(entries)
                reply = await self.gateway.call(Bury(tuple(entries)), self.frame)
                freed += accept(reply)
        return freed

    async def _condemned(self) -> list[str]:
        """Return entries that may be freed, having looked through dead ones until some are."""
        control = self.gateway.keyspace.control
        while True:
            left, dead, records = await self.gateway.pipeline(
                [
                    ("ZRANGE", control(Key.CONDEMNED), 0, _SLICE - 1),
                    ("ZRANGE", control(Key.DEAD), 0, _SLICE - 1),
                    ("HGETALL", control(Key.CHECKPOINTS)),
                ]
            )
            if left or not dead:
                return [entry.decode() for entry in left]
            known = [CheckpointRecord.parse(n.decode(), r) for n, r in records.items()]
            saved_ids = tuple(record.saved_id for record in known)
            call = Condemn(tuple(entry.decode() for entry in dead), saved_ids)
            reply = await self.gateway.call(call, self.frame)
            if isinstance(reply, Refusal) and reply.code == "CHECKPOINTS_MOVED":
                continue
            if entries := accept(reply):
                return entries

    async def _free(self, entries: list[str]) -> None:
        keys = [self._key_of(entry) for entry in entries]
        await self._unlink(keys)
        chunked = [key for key, entry in zip(keys, entries, strict=True) if entry[0] != "w"]
        at = 1
        while chunked:
            freed = await self._unlink([f"{key}:c{at}" for key in chunked])
            chunked = [key for key, count in zip(chunked, freed, strict=True) if count]
            at += 1

    def _key_of(self, entry: str) -> str:
        numbers, _, group_id = entry.partition(":")
        if not numbers.startswith("w"):
            return self.gateway.keyspace.payload(group_id, int(numbers))
        written, _, payload_fence = numbers[1:].partition(".")
        return self.gateway.keyspace.written(group_id, int(payload_fence), int(written))

    async def _unlink(self, keys: Iterable[str]) -> list[int]:
        return await self.gateway.ask_payload([("UNLINK", key) for key in keys])

    async def find_orphans(self) -> list[str]:
        """Return payload keys that no slot, record or dead entry knows, seen in two calls running.

        A writer that was killed between its payload and its commit, and whose slot ended before the
        payload was written, leaves such a key; so does one that wrote columns after its claim was
        given back. Call again after a lease; the keys returned are freed. May be repeated.
        """
        known = await self._known_keys()
        stored = self.gateway.scan(self.gateway.keyspace.payload_prefix + "*")
        unknown = {key async for key in stored if _base_of(key) not in known}
        confirmed, self._suspects = unknown & self._suspects, unknown - self._suspects
        if confirmed:
            await self._unlink(sorted(confirmed))
            _LOG.warning("freed %d payload keys that nothing referred to", len(confirmed))
        return sorted(confirmed)

    async def _known_keys(self) -> set[str]:
        keyspace = self.gateway.keyspace
        records, dead, condemned, slots = await self.gateway.pipeline(
            [
                ("HKEYS", keyspace.control(Key.GROUPS)),
                ("ZRANGE", keyspace.control(Key.DEAD), 0, -1),
                ("ZRANGE", keyspace.control(Key.CONDEMNED), 0, -1),
                ("HGETALL", keyspace.control(Key.SLOTS)),
            ],
            atomic=True,
        )
        live = [SlotRecord.parse(group_id, record) for group_id, record in slots.items()]
        entries: Iterable[str] = (entry.decode() for entry in [*records, *dead, *condemned])
        attempts = (group_field(slot.group_id, slot.fence) for slot in live)
        columns = (
            keyspace.written(slot.group_id, slot.payload_fence or 0, slot.written)
            for slot in live
            if slot.written is not None
        )
        return {*map(self._key_of, (*entries, *attempts)), *columns}


def _base_of(key: str) -> str:
    """Return a payload key without its chunk's suffix."""
    head, _, tail = key.rpartition(":")
    return head if tail[:1] == "c" else key
