"""The rollout host's session: its reserved slots come back when it dies."""

from __future__ import annotations

from types import TracebackType

from redis_replay._redis.keys import Key
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.scripts import TakeTickets
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.cut import DataPlaneMutationCut
from redis_replay.filtering import DynamicSampling, GroupFilter
from redis_replay.samples import SamplePlane
from redis_replay.selection import validate_version
from redis_replay.session import Session
from redis_replay.types import MAX_GROUPS_PER_CALL, Reservation


class RolloutSession:
    """``async with store.rollout(owner="host-3") as rollout``; its ``buffer`` acts under the owner.

    Leaving the block gives reserved slots back as redispatch tickets; no attempt is counted.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.buffer = RedisReplayBuffer(session)
        self.samples = SamplePlane(session)

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
        reference and gets a new fence and start weight. Reservations of this session that a
        cancelled cut left behind are returned first.

        Args:
            max_tickets: At most this many, 1 to 1,024.
            weight_version: Version of the weights that the new attempts begin with.

        Raises:
            ValueError: a number outside its limits.
        """
        validate_version("weight_version", weight_version)
        if not 1 <= max_tickets <= MAX_GROUPS_PER_CALL:
            raise ValueError(f"max_tickets must be 1 to {MAX_GROUPS_PER_CALL}, got {max_tickets}")
        held = self.buffer.undelivered[:max_tickets]
        del self.buffer.undelivered[: len(held)]
        if len(held) == max_tickets:
            return held
        slots = await self._session.call(TakeTickets(max_tickets - len(held), weight_version))
        return held + await self._with_prompts(slots)

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
