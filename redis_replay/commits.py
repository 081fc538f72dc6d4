"""Commits of one session: the payload first, then the flip; one at a time for each group.

What a refused commit has written is freed again. After an unknown outcome nothing is freed, since
the flip may have been applied: repeating the commit tells (D7).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import anyio

from redis_replay._redis.gateway import Payload
from redis_replay._redis.keys import Key, group_field
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.refusals import accept
from redis_replay._redis.scripts import Commit
from redis_replay.codec import Value
from redis_replay.dynamic_sampling import rewards_carry_no_signal
from redis_replay.errors import ReplayError, StaleAttempt, StoreUnavailable, UnknownGroup
from redis_replay.fields import FieldOptions
from redis_replay.group_record import pack_record
from redis_replay.groups import payload_writes
from redis_replay.payloads import EncodedGroup, encode_group, thrifty_chunk_bytes
from redis_replay.rewards import sum_of_rewards
from redis_replay.session import Session
from redis_replay.types import Reservation

_LARGE_BYTES: Final = 8 * 1024 * 1024
_MOST_REMEMBERED: Final = 4096
"""Commits of a session whose repetition is known without comparing what is stored."""


def require_group_size(session: Session, group_id: str, rows: int) -> None:
    """Refuse a group of another size than the run's.

    Raises:
        ValueError: naming the group and both sizes.
    """
    size = session.link.run.settings.group_size
    if rows != size:
        raise ValueError(
            f"group {group_id!r}: expected {size} rows (the run's group size), got {rows}"
        )


@dataclass
class Commits:
    """The commits of one session.

    Attributes:
        held: Its reservations by group id; a committed or ended one is taken out.
    """

    session: Session
    held: MutableMapping[str, Reservation]
    _tried: set[str] = field(default_factory=set[str])
    _under_way: dict[str, anyio.Event | None] = field(default_factory=dict)
    _committed: dict[str, int] = field(default_factory=dict)

    async def fence_of(self, group_id: str, *, record: bytes | None = None) -> int:
        """Return the fence under which this session may commit or abort a group.

        Args:
            record: The record to be committed. Without a reservation to tell whose attempt a
                committed group is, only the very same record is taken for a repetition.

        Raises:
            UnknownGroup: it has no live slot.
            StaleAttempt: another session, or nobody, holds its reservation, or it was committed
                with another record.
        """
        held = self.held.get(group_id)
        if held is not None:
            return held.fence
        if group_id in self._committed:
            return self._committed[group_id]
        slot = await self._slot(group_id)
        if slot is None:
            raise UnknownGroup(
                f"group {group_id!r} has no live slot: it was never reserved, or was trained, "
                "evicted, aborted or removed since",
                group_id=group_id,
            )
        if slot.epoch != self.session.epoch and slot.payload_fence is None:
            raise StaleAttempt(
                f"group {group_id!r} is reserved by another session; pass the fence of your own "
                "reservation",
                group_id=group_id,
            )
        if slot.payload_fence is None:
            return slot.fence
        if record is not None and record != await self._record(group_id, slot.payload_fence):
            raise StaleAttempt(
                f"group {group_id!r} was committed with other rows, and this session does not hold "
                "it; pass the fence of your own reservation",
                group_id=group_id,
            )
        return slot.payload_fence

    def forget(self) -> None:
        """Know nothing of earlier commits."""
        self._tried.clear()
        self._committed.clear()

    async def commit(
        self,
        group_id: str,
        rows: Sequence[Mapping[str, Value]],
        *,
        start: int,
        finish: int,
        fence: int | None,
        tags: Sequence[Mapping[str, Any]],
        rollout_metrics: Mapping[str, Any],
        zero_variance: bool | None,
    ) -> None:
        """Encode and store a group whose session is attached, when its turn has come.

        The arguments and errors are those of `RedisReplayBuffer.commit`.
        """
        link = self.session.link
        with self.session.under_way():
            await link.commit_room.acquire()
            try:
                encoded = await _encoded(group_id, rows, fields=self.session.link.fields)
                blob = pack_record(
                    encoded,
                    chunk_bytes=self._chunk_bytes(encoded),
                    tags=tags,
                    rollout_metrics=rollout_metrics,
                )
                rewards = encoded.rewards or ()
                if zero_variance is None:
                    zero_variance = rewards_carry_no_signal(rewards)
                call = Commit(
                    group_id=group_id,
                    fence=await self.fence_of(group_id, record=blob) if fence is None else fence,
                    start=start,
                    finish=finish,
                    payload_bytes=encoded.payload_bytes,
                    blob=blob,
                    samples=len(rewards),
                    reward_sum=repr(sum_of_rewards(rewards)),
                    zero_variance=int(zero_variance),
                )
            except BaseException:
                link.commit_room.release()
                raise
            await link.tasks.finish(partial(self._store_and_leave, call, encoded))

    async def _store_and_leave(self, call: Commit, encoded: EncodedGroup) -> None:
        """Store and flip; what is stored of a group is never written again."""
        try:
            with self.session.under_way():
                await self._run(call, encoded)
        finally:
            self.session.link.commit_room.release()

    async def _run(self, call: Commit, encoded: EncodedGroup) -> None:
        held = self.held.get(call.group_id)
        is_first = held and held.fence == call.fence and call.group_id not in self._tried
        self._tried.add(call.group_id)
        while call.group_id in self._under_way:
            await self._end_of(call.group_id)
        self._under_way[call.group_id] = None
        try:
            if is_first or self._is_open(await self._slot(call.group_id), fence=call.fence):
                await self._store(call, encoded)
            else:
                await self.session.call_now(call)
        except UnknownGroup:
            self._forget(call.group_id)
            raise
        finally:
            waited_for = self._under_way.pop(call.group_id)
            if waited_for is not None:
                waited_for.set()
        self._forget(call.group_id)
        self._remember(call)

    async def _end_of(self, group_id: str) -> None:
        """Wait until the commit of a group that is under way has ended."""
        end = self._under_way[group_id] or anyio.Event()
        self._under_way[group_id] = end
        await end.wait()

    def _remember(self, call: Commit) -> None:
        """Keep the fence of a commit, so that its repetition is known as such."""
        self._committed[call.group_id] = call.fence
        if len(self._committed) > _MOST_REMEMBERED:
            del self._committed[next(iter(self._committed))]

    def _is_open(self, slot: SlotRecord | None, *, fence: int) -> bool:
        """Return whether this session may write a payload under the fence."""
        if slot is None or slot.payload_fence is not None:
            return False
        return (slot.epoch, slot.fence) == (self.session.epoch, fence)

    async def _store(self, call: Commit, encoded: EncodedGroup) -> None:
        link = self.session.link
        writes = payload_writes(
            encoded,
            link.gateway.keyspace,
            call.group_id,
            fence=call.fence,
            chunk_bytes=self._chunk_bytes(encoded),
        )
        if link.gateway.is_cluster:
            call = replace(call, elsewhere=call.payload_bytes)
        try:
            reply = await self.session.run_numbered(call, writes=writes)
            accept(reply)
        except StoreUnavailable:
            raise
        except (ReplayError, ValueError):
            await self._free(call, writes)
            raise

    def _chunk_bytes(self, encoded: EncodedGroup) -> int:
        return thrifty_chunk_bytes(encoded.payload_bytes, most=self.session.link.chunk_bytes)

    async def _free(self, call: Commit, writes: Sequence[tuple[str, Payload]]) -> None:
        """Free what a refused commit has written, unless an earlier try of it was applied.

        The record tells: it is there while the group is live or a checkpoint refers to it.
        """
        if await self._record(call.group_id, call.fence) is None:
            await self.session.link.gateway.ask_payload([("UNLINK", key) for key, _ in writes])

    def _forget(self, group_id: str) -> None:
        self.held.pop(group_id, None)
        self._tried.discard(group_id)

    async def _record(self, group_id: str, payload_fence: int) -> bytes | None:
        gateway = self.session.link.gateway
        field_name = group_field(group_id, payload_fence)
        records = gateway.keyspace.control(Key.GROUPS)
        stored: list[bytes | None] = await gateway.pipeline([("HGET", records, field_name)])
        return stored[0]

    async def _slot(self, group_id: str) -> SlotRecord | None:
        gateway = self.session.link.gateway
        [stored] = await gateway.pipeline([("HGET", gateway.keyspace.control(Key.SLOTS), group_id)])
        return None if stored is None else SlotRecord.parse(group_id.encode(), stored)


async def _encoded(
    group_id: str, rows: Sequence[Mapping[str, Value]], *, fields: Mapping[str, FieldOptions]
) -> EncodedGroup:
    """Encode a group, a large one in a thread, so that the event loop goes on."""
    first: Any = rows[0] if rows and isinstance(rows[0], Mapping) else {}
    row_bytes: int = sum(getattr(value, "nbytes", 0) for value in first.values())
    if row_bytes * len(rows) < _LARGE_BYTES:
        return encode_group(group_id, rows, fields=fields)
    return await anyio.to_thread.run_sync(partial(encode_group, group_id, rows, fields=fields))
