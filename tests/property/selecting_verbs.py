"""The verbs of a trainer without training claims, which selects for good (D51). See `verbs`.

One session may do both, select and claim: what a step settles is then of both kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

from redis_replay.buffer import RedisReplayBuffer
from redis_replay.groups import sample_ids_of
from redis_replay.selection import Selection
from tests.harness import GROUP_SIZE
from tests.property.sides import ModelSide, StoreSide
from tests.property.verbs import ClaimExactly, Select, Verb, pick


@dataclass(frozen=True)
class SelectForGood(Select):
    def on_model(self, side: ModelSide, plan: Selection) -> list[str]:
        return side.model.select_for_good(side.members[self.owner], plan)

    def _buffer(self, side: StoreSide) -> RedisReplayBuffer:
        return super()._buffer(side).selecting_for_good()


@dataclass(frozen=True)
class SelectExactlyForGood(ClaimExactly):
    def on_model(self, side: ModelSide, plan: tuple[str, ...]) -> list[str]:
        return side.model.select_exactly_for_good(side.members[self.owner], plan)

    def _buffer(self, side: StoreSide) -> RedisReplayBuffer:
        return super()._buffer(side).selecting_for_good()


@dataclass(frozen=True)
class Clear(Verb):
    """Clears groups by their samples: those the owner selected for good first, then live ones."""

    numbers: tuple[int, ...]

    def plan(self, side: ModelSide) -> tuple[str, ...]:
        selected = side.members[self.owner].selected
        return tuple(dict.fromkeys(pick(side, self.numbers, "ready", first=selected)))

    def on_model(self, side: ModelSide, plan: tuple[str, ...]) -> int:
        return side.model.clear(side.members[self.owner], plan)

    async def on_store(self, side: StoreSide, plan: tuple[str, ...]) -> int:
        named = [name for group_id in plan for name in sample_ids_of(group_id, GROUP_SIZE)]
        return await side.sessions[self.owner].samples.clear_samples(named)
