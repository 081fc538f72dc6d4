"""What the sessions of trainers and of rollout hosts have in common: an owner, attached or not."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from redis_replay.buffer import RedisReplayBuffer
from redis_replay.cut import DataPlaneMutationCut
from redis_replay.samples import SamplePlane
from redis_replay.session import Session


class OwnedSession:
    """Attached while its block runs; what its owner holds at the end is given back.

    Attributes:
        buffer: Slots and claims under the owner.
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
        """Number of this attachment, for ranks of a trainer to join with."""
        return self._session.epoch

    async def __aenter__(self) -> Self:
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
