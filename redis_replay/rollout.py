"""The rollout host's session: its reserved slots come back when it dies."""

from __future__ import annotations

from redis_replay.filtering import DynamicSampling, GroupFilter
from redis_replay.owned import OwnedSession
from redis_replay.types import Reservation


class RolloutSession(OwnedSession):
    """``async with store.rollout(owner="host-3") as rollout``; its ``buffer`` acts under the owner.

    Leaving the block gives reserved slots back as redispatch tickets; no attempt is counted.

    Attributes:
        buffer: Slots under the owner.
        samples: The data plane under the owner.
    """

    def filter(self, settings: DynamicSampling | None = None) -> GroupFilter:
        """Return commits under dynamic sampling; `GroupFilter`.

        Raises:
            ConfigurationError: the run's group size is 1.
        """
        return GroupFilter(self.buffer, settings or DynamicSampling())

    async def take_tickets(self, *, max_tickets: int, weight_version: int) -> list[Reservation]:
        """Take redispatch tickets: reserved groups whose holder is gone, in buffer order.

        Reservations of this session whose caller never learned of them are returned first.
        `RedisReplayBuffer.take_tickets` says more.
        """
        return await self.buffer.take_tickets(
            max_tickets=max_tickets, weight_version=weight_version
        )
