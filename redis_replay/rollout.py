"""The rollout host's session: its reserved slots come back when it dies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType

import anyio

from redis_replay._redis.keys import Key
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.scripts import TakeTickets
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.cut import DataPlaneMutationCut
from redis_replay.filtering import DynamicSampling, GroupFilter
from redis_replay.samples import SamplePlane
from redis_replay.selection import validate_version
from redis_replay.session import Session
from redis_replay.stats import read_held
from redis_replay.types import MAX_GROUPS_PER_CALL, Reservation


class RolloutSession:
    """``async with store.rollout(owner="host-3") as rollout``; its ``buffer`` acts under the owner.

    Leaving the block gives reserved slots back as redispatch tickets; no attempt is counted.

    Attributes:
        buffer: Slots under the owner.
        samples: The data plane under the owner.
    """

    buffer: RedisReplayBuffer
    samples: SamplePlane

    def __init__(self, session: Session) -> None:
        self._session = session
        self.buffer = RedisReplayBuffer(session)
        self.samples = SamplePlane(session)
        self._turn = anyio.Lock()

    @property
    def owner(self) -> str:
        """The owner name."""
        return self._session.owner

    @property
    def epoch(self) -> int:
        """Number of this attachment."""
        return self._session.epoch

    async def __aenter__(self) -> RolloutSession:
        await self._session.attach()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.detach()

    def mutation(self) -> DataPlaneMutationCut:
        """Return a mutation cut whose reservations belong to this session."""
        return DataPlaneMutationCut(self.buffer)

    def filter(self, settings: DynamicSampling | None = None) -> GroupFilter:
        """Return commits under dynamic sampling; `GroupFilter`.

        Raises:
            ConfigurationError: the run's group size is 1.
        """
        return GroupFilter(self.buffer, settings or DynamicSampling())

    async def take_tickets(self, *, max_tickets: int, weight_version: int) -> list[Reservation]:
        """Take redispatch tickets: reserved groups whose holder is gone, in buffer order.

        Atomic: a ticket goes to exactly one session. It keeps its id, order, target step and prompt
        reference and gets a new fence and start weight. Reservations of this session whose
        caller never learned of them, being cancelled or without an answer, are returned first.

        Args:
            max_tickets: At most this many, 1 to 1,024.
            weight_version: Version of the weights that the new attempts begin with.

        Raises:
            ValueError: a number outside its limits.
        """
        validate_version("weight_version", weight_version)
        if not 1 <= max_tickets <= MAX_GROUPS_PER_CALL:
            raise ValueError(f"max_tickets must be 1 to {MAX_GROUPS_PER_CALL}, got {max_tickets}")
        await self._session.attach()
        take = partial(self._take, max_tickets, weight_version)
        return await self._session.link.tasks.finish(take, unclaimed=self._keep_undelivered)

    async def _take(self, max_tickets: int, weight_version: int) -> list[Reservation]:
        undelivered = self.buffer.undelivered
        async with self._turn:
            await self._find_unseen()
            taken: list[Reservation] = []
            if len(undelivered) < max_tickets:
                call = TakeTickets(max_tickets - len(undelivered), weight_version)
                with self.buffer.asking():
                    taken = await self._with_prompts(await self._session.call_now(call))
            held = undelivered[: max_tickets - len(taken)]
            del undelivered[: len(held)]
            return held + taken

    async def _keep_undelivered(self, reservations: Sequence[Reservation]) -> None:
        """Leave tickets whose taker was cancelled for the next call."""
        self.buffer.undelivered.extend(reservations)

    async def _find_unseen(self) -> None:
        """Look for reservations of this session that no caller knows of."""
        buffer = self.buffer
        if not buffer.may_hold_unseen:
            return
        known = buffer.asked | buffer.reservations.keys()
        buffer.may_hold_unseen = False
        with buffer.asking():
            session = self._session
            slots = await read_held(session.link.gateway, Key.RESERVED_BY_OWNER, session.epoch)
            known |= buffer.asked | buffer.reservations.keys()
            unseen = [slot for slot in slots if slot.group_id not in known]
            buffer.undelivered.extend(await self._with_prompts(unseen))

    async def _with_prompts(self, slots: list[SlotRecord]) -> list[Reservation]:
        if not slots:
            return []
        gateway = self._session.link.gateway
        ids = [slot.group_id for slot in slots]
        [prompts] = await gateway.pipeline([("HMGET", gateway.keyspace.control(Key.PROMPTS), *ids)])
        return [
            self.buffer.hold(
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
