"""The verbs that end groups untrained, and the draining of their tally. See `verbs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis_replay import DynamicSampling, GroupFilter, Replacement
from redis_replay.selection import Eviction
from tests.contract.prompt_groups import record_of
from tests.property.sides import ModelSide, StoreSide
from tests.property.slots import Place
from tests.property.verbs import NO_GROUP, Verb, pick, place

MAX_REPLACEMENTS = 2


@dataclass(frozen=True)
class Abort(Verb):
    nth: int
    reason: str
    back: int = 0

    def plan(self, side: ModelSide) -> str:
        known = side.remembered(self.owner)
        return known[self.nth % len(known)] if known else NO_GROUP

    def on_model(self, side: ModelSide, plan: str) -> None:
        fence = side.memory.fence_of(self.owner, plan, back=self.back)
        side.model.abort(side.members[self.owner], plan, fence=fence, reason=self.reason)

    async def on_store(self, side: StoreSide, plan: str) -> None:
        fence = side.memory.fence_of(self.owner, plan, back=self.back)
        await side.sessions[self.owner].buffer.abort(plan, fence=fence, reason=self.reason)


@dataclass(frozen=True)
class Remove(Verb):
    numbers: tuple[int, ...]

    def plan(self, side: ModelSide) -> tuple[str, ...]:
        return pick(side, self.numbers, "reserved", "ready", "quarantined")

    def on_model(self, side: ModelSide, plan: tuple[str, ...]) -> int:
        return side.model.remove(side.members[self.owner], plan, reason="removed")

    async def on_store(self, side: StoreSide, plan: tuple[str, ...]) -> int:
        return await side.sessions[self.owner].buffer.remove(plan)


@dataclass(frozen=True)
class Evict(Verb):
    lead: int
    by_step: bool

    def plan(self, side: ModelSide) -> int:
        return max(0, side.model.version + self.lead)

    def on_model(self, side: ModelSide, plan: int) -> int:
        return side.model.evict(side.members[self.owner], below=plan, by_step=self.by_step)

    async def on_store(self, side: StoreSide, plan: int) -> int:
        eviction = Eviction(below=plan, by_target_step=self.by_step)
        return await side.sessions[self.owner].buffer.evict(eviction)


@dataclass(frozen=True)
class Drop(Verb):
    """Ends a group that carries no signal, or one that failed; asks for a replacement or not."""

    nth: int
    reward: float | None
    group: int | None
    lead: int = 0
    back: int = 0

    def plan(self, side: ModelSide) -> Any:
        known = side.remembered(self.owner)
        wanted = None if self.group is None else place(side, self.group, self.lead, None)
        return {"group_id": known[self.nth % len(known)] if known else NO_GROUP, "place": wanted}

    def on_model(self, side: ModelSide, plan: Any) -> Any:
        made = side.model.drop(
            side.members[self.owner],
            plan["group_id"],
            fence=side.memory.fence_of(self.owner, plan["group_id"], back=self.back),
            rewards=[] if self.reward is None else [self.reward, self.reward],
            budget=MAX_REPLACEMENTS,
            place=plan["place"],
        )
        if made is None:
            return None
        side.memory.remember(self.owner, made.group_id, made.fence)
        return (made.group_id, made.start, made.target, made.replacement)

    async def on_store(self, side: StoreSide, plan: Any) -> Any:
        group_id, wanted = plan["group_id"], plan["place"]
        group_filter = GroupFilter(
            side.sessions[self.owner].buffer, DynamicSampling(max_replacements=MAX_REPLACEMENTS)
        )
        how: dict[str, Any] = {
            "fence": side.memory.fence_of(self.owner, group_id, back=self.back),
            "replacement": self._replacement(wanted),
        }
        if self.reward is None:
            outcome = await group_filter.fail(group_id, **how)
        else:
            record = record_of([self.reward, self.reward])
            outcome = await group_filter.commit(
                group_id, record, start_weight_version=0, end_weight_version=0, **how
            )
        assert not outcome.kept
        made = outcome.replacement
        if made is None:
            return None
        side.memory.remember(self.owner, made.group_id, made.fence)
        return (made.group_id, made.weight_version, made.target_step, made.replacement_index)

    @staticmethod
    def _replacement(wanted: Place | None) -> Replacement | None:
        return wanted and Replacement(wanted.weight, group_id=wanted.group_id)


@dataclass(frozen=True)
class Drain(Verb):
    lead: int

    def plan(self, side: ModelSide) -> int:
        return max(0, side.model.version + self.lead)

    def on_model(self, side: ModelSide, plan: int) -> dict[str, float]:
        return side.model.drain(side.members[self.owner], plan)

    async def on_store(self, side: StoreSide, plan: int) -> dict[str, float]:
        return await side.sessions[self.owner].drain_step_reward_metrics(plan)
