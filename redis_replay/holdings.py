"""The reservations of one session, as its process knows them, and the tickets that it takes.

What was reserved for a caller who never learned of it, being cancelled or without an answer, is
kept here or found in the store, and handed out before any ticket.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio

from redis_replay._redis.keys import Key
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.scripts import Abort, Reserve, TakeTickets
from redis_replay.errors import StoreError
from redis_replay.reservations import as_columns, with_fence
from redis_replay.session import Session
from redis_replay.stats import read_held
from redis_replay.types import Reservation


@dataclass
class Holdings:
    """What one session holds reserved.

    Attributes:
        reservations: Reserved groups that this session may commit, by id.
        undelivered: Those whose caller was cancelled before it knew them.
        asked: Ids of reservations that are being asked for, or given up, at this moment.
        may_hold_unseen: Whether a call without an answer may have reserved what nobody knows of.
    """

    session: Session
    reservations: dict[str, Reservation] = field(default_factory=dict)
    undelivered: list[Reservation] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    may_hold_unseen: bool = False
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    def forget(self) -> None:
        """Know nothing of earlier reservations, which a restore has ended."""
        for known in (self.reservations, self.undelivered, self.asked):
            known.clear()
        self.may_hold_unseen = False

    @contextmanager
    def asking(self, *group_ids: str) -> Generator[None]:
        """Ask for reservations in the block; without an answer they may exist unseen."""
        self.asked.update(group_ids)
        try:
            yield
        except StoreError:
            self.may_hold_unseen = True
            raise
        finally:
            self.asked.difference_update(group_ids)

    def hold(self, reservation: Reservation) -> Reservation:
        """Remember a reservation of this session, so that a commit finds its fence."""
        self.reservations[reservation.group_id] = reservation
        return reservation

    async def reserve(self, drafts: Sequence[Reservation]) -> list[Reservation]:
        """Reserve what was drafted, all or none, in one script; `RedisReplayBuffer.reserve`."""
        await self.session.attach()
        return await self.session.link.tasks.finish(
            partial(self._reserve, drafts), unclaimed=self._give_up
        )

    async def _reserve(self, drafts: Sequence[Reservation]) -> list[Reservation]:
        call = Reserve(*as_columns(drafts))
        with self.asking(*call.group_ids):
            fence = await self.session.call_now(call)
            return [self.hold(with_fence(draft, fence)) for draft in drafts]

    async def _give_up(self, reservations: Iterable[Reservation]) -> None:
        """End reservations whose caller was cancelled before it could know them."""
        for reservation in reservations:
            self.reservations.pop(reservation.group_id, None)
            call = Abort(reservation.group_id, reservation.fence, "cancelled")
            with self.asking(reservation.group_id):
                await self.session.call_now(call)

    async def keep(self, reservations: Iterable[Reservation]) -> None:
        """Leave reservations whose caller was cancelled for the next `take_tickets`."""
        self.undelivered.extend(reservations)

    async def take_tickets(self, max_tickets: int, weight_version: int) -> list[Reservation]:
        """Return what nobody learned of, then tickets; `RedisReplayBuffer.take_tickets`."""
        await self.session.attach()
        take = partial(self._take, max_tickets, weight_version)
        return await self.session.link.tasks.finish(take, unclaimed=self.keep)

    async def _take(self, max_tickets: int, weight_version: int) -> list[Reservation]:
        async with self._turn:
            await self._find_unseen()
            taken: list[Reservation] = []
            if len(self.undelivered) < max_tickets:
                call = TakeTickets(max_tickets - len(self.undelivered), weight_version)
                with self.asking():
                    taken = await self._with_prompts(await self.session.call_now(call))
            held = self.undelivered[: max_tickets - len(taken)]
            del self.undelivered[: len(held)]
            return held + taken

    async def _find_unseen(self) -> None:
        """Look for reservations of this session that no caller knows of."""
        if not self.may_hold_unseen:
            return
        known = self.asked | self.reservations.keys()
        self.may_hold_unseen = False
        with self.asking():
            await self.session.settle_doubts()
            gateway = self.session.link.gateway
            slots = await read_held(gateway, Key.RESERVED_BY_OWNER, self.session.epoch)
            known |= self.asked | self.reservations.keys()
            unseen = [slot for slot in slots if slot.group_id not in known]
            self.undelivered.extend(await self._with_prompts(unseen))

    async def _with_prompts(self, slots: list[SlotRecord]) -> list[Reservation]:
        if not slots:
            return []
        gateway = self.session.link.gateway
        ids = [slot.group_id for slot in slots]
        [prompts] = await gateway.pipeline([("HMGET", gateway.keyspace.control(Key.PROMPTS), *ids)])
        return [
            self.hold(
                Reservation(
                    group_id=slot.group_id,
                    fence=slot.fence,
                    weight_version=slot.start,
                    target_step=slot.target,
                    attempt=slot.attempt,
                    prompt_ref=prompt,
                    replacement_index=slot.replacement,
                )
            )
            for slot, prompt in zip(slots, prompts, strict=True)
        ]
