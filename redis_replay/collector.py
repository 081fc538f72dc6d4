"""Frees the payload of groups that are gone, after they became invisible.

`dead` names what nothing live refers to. What a checkpoint refers to is set aside as `pinned`; the
rest is `condemned` by one process, which frees the keys on whichever server holds them and then
forgets the entries. A crash between the two is harmless: freeing is idempotent, and the next store
that opens looks for what was left. What a killed writer left without an entry is found by
`find_orphans`.
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
    _turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))
    _looks_for_left: bool = True
    _mine: list[str] = field(default_factory=list[str])
    _saved_ids: tuple[str, ...] = ()
    _suspects: set[str] = field(default_factory=set)

    async def collect(self) -> int:
        """Free everything that is dead and in no checkpoint; return the number of entries.

        What other processes are freeing at this time is left to them. May be repeated.
        """
        freed = 0
        async with self._turn:
            if self._looks_for_left:
                left = ("ZRANGE", self.gateway.keyspace.control(Key.CONDEMNED), 0, -1)
                [entries] = await self.gateway.pipeline([left])
                self._mine = [entry.decode() for entry in entries]
                self._looks_for_left = False
            dead = 1
            while self._mine or dead:
                while self._mine:
                    part = self._mine[:_SLICE]
                    await self._free(part)
                    reply = await self.gateway.call(Bury(tuple(part)), self.frame)
                    freed += accept(reply)
                    del self._mine[: len(part)]
                if dead:
                    dead, self._mine = await self._condemn()
        return freed

    def look_for_left(self) -> None:
        """Let the next collection free what a process that died was freeing, too."""
        self._looks_for_left = True

    async def _condemn(self) -> tuple[int, list[str]]:
        """Return how many dead entries are left, and some that this process is to free."""
        while True:
            reply = await self.gateway.call(Condemn((), self._saved_ids), self.frame)
            if not (isinstance(reply, Refusal) and reply.code == "CHECKPOINTS_MOVED"):
                return accept(reply)
            checkpoints = self.gateway.keyspace.control(Key.CHECKPOINTS)
            [records] = await self.gateway.pipeline([("HGETALL", checkpoints)])
            known = [CheckpointRecord.parse(n.decode(), r) for n, r in records.items()]
            self._saved_ids = tuple(record.saved_id for record in known)

    async def _free(self, entries: list[str]) -> None:
        keys = [self._key_of(entry) for entry in entries]
        chunked = [key for key, entry in zip(keys, entries, strict=True) if entry[0] != "w"]
        await self.gateway.unlink(keys)
        at = 1
        while await self.gateway.unlink([f"{key}:c{at}" for key in chunked]):
            at += 1

    def _key_of(self, entry: str) -> str:
        numbers, _, group_id = entry.partition(":")
        if not numbers.startswith("w"):
            return self.gateway.keyspace.payload(group_id, int(numbers))
        written, _, payload_fence = numbers[1:].partition(".")
        return self.gateway.keyspace.written(group_id, int(payload_fence), int(written))

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
            await self.gateway.unlink(sorted(confirmed))
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
