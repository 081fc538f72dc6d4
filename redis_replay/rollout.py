"""The rollout host's session: its reserved slots come back when it dies."""

from __future__ import annotations

from types import TracebackType

from redis_replay.buffer import RedisReplayBuffer
from redis_replay.cut import DataPlaneMutationCut
from redis_replay.filtering import DynamicSampling, GroupFilter
from redis_replay.samples import SamplePlane
from redis_replay.session import Session
from redis_replay.types import Reservation


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

        Reservations of this session whose caller never learned of them are returned first.
        `RedisReplayBuffer.take_tickets` says more.
        """
        return await self.buffer.take_tickets(
            max_tickets=max_tickets, weight_version=weight_version
        )
