"""Every verb as data: what it was asked in numbers relative to the run, and how each side does it.

A verb is drawn without looking at any state. `plan` makes it concrete from the model (which group,
which version), and the same plan then runs on the model and on every store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from redis_replay.buffer import RedisReplayBuffer
from redis_replay.payloads import encode_group
from redis_replay.selection import Rule, Selection
from tests.property.sides import ModelSide, StoreSide, content_rewards, content_rows
from tests.property.slots import Place

NO_GROUP = "never-reserved"


@dataclass(frozen=True)
class Verb:
    """One call by one owner."""

    owner: str

    def plan(self, side: ModelSide) -> Any:
        """Return the concrete arguments."""
        return None

    def on_model(self, side: ModelSide, plan: Any) -> Any:
        """Do it on the model and return the reply."""
        raise NotImplementedError

    async def on_store(self, side: StoreSide, plan: Any) -> Any:
        """Do it on a store and return the reply."""
        raise NotImplementedError


def pick(
    side: ModelSide, numbers: tuple[int, ...], *states: str, first: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return groups by number: named ones first, then live ones, those in the states before others.

    A number past the end is an unknown id.
    """
    live = side.model.where(lambda group: True)
    live.sort(key=lambda group: group.state not in states)
    known = list(dict.fromkeys((*first, *(group.group_id for group in live))))
    return tuple(known[n] if n < len(known) else NO_GROUP for n in numbers)


def place(
    side: ModelSide, group: int, lead: int, target_lead: int | None, replacement: int = 0
) -> Place:
    """Return a place for the group of a number, with versions relative to the trainer's."""
    version = side.model.version
    target = None if target_lead is None else max(0, version + target_lead)
    return Place(f"g{group}", max(0, version + lead), target, replacement)


@dataclass(frozen=True)
class Attach(Verb):
    takeover: bool = False

    def on_model(self, side: ModelSide, plan: Any) -> None:
        side.members[self.owner] = side.model.attach(self.owner, takeover=self.takeover)

    async def on_store(self, side: StoreSide, plan: Any) -> None:
        await side.attach(self.owner, takeover=self.takeover)


@dataclass(frozen=True)
class Detach(Verb):
    def on_model(self, side: ModelSide, plan: Any) -> None:
        side.model.end(side.members.pop(self.owner), counted=False)

    async def on_store(self, side: StoreSide, plan: Any) -> None:
        await side.sessions.pop(self.owner).__aexit__(None, None, None)


@dataclass(frozen=True)
class Die(Verb):
    def on_model(self, side: ModelSide, plan: Any) -> None:
        side.model.end(side.members[self.owner], counted=True)

    async def on_store(self, side: StoreSide, plan: Any) -> None:
        await side.die(self.owner)


@dataclass(frozen=True)
class Reserve(Verb):
    group: int
    lead: int
    target_lead: int | None
    replacement: int = 0

    def plan(self, side: ModelSide) -> Place:
        return place(side, self.group, self.lead, self.target_lead, self.replacement)

    def on_model(self, side: ModelSide, plan: Place) -> None:
        fence = side.model.reserve(side.members[self.owner], plan)
        side.memory.remember(self.owner, plan.group_id, fence)

    async def on_store(self, side: StoreSide, plan: Place) -> None:
        reservation = await side.sessions[self.owner].buffer.reserve(
            plan.weight,
            target_step=plan.target,
            group_id=plan.group_id,
            replacement_index=plan.replacement,
        )
        side.memory.remember(self.owner, plan.group_id, reservation.fence)


@dataclass(frozen=True)
class TakeTickets(Verb):
    most: int
    lead: int

    def plan(self, side: ModelSide) -> int:
        return max(0, side.model.version + self.lead)

    def on_model(self, side: ModelSide, plan: int) -> Any:
        taken = side.model.take_tickets(side.members[self.owner], most=self.most, weight=plan)
        for group in taken:
            side.memory.remember(self.owner, group.group_id, group.fence)
        return [(g.group_id, g.start, g.target, g.attempt) for g in taken]

    async def on_store(self, side: StoreSide, plan: int) -> Any:
        taken = await side.rollout(self.owner).take_tickets(
            max_tickets=self.most, weight_version=plan
        )
        for held in taken:
            side.memory.remember(self.owner, held.group_id, held.fence)
        return [(h.group_id, h.weight_version, h.target_step, h.attempt) for h in taken]


@dataclass(frozen=True)
class Cut(Verb):
    """A mutation cut; a rival's may be applied while it is open, and its block may break."""

    admits: bool
    sets_loader: bool
    seen_lead: int
    places: tuple[tuple[int, int, int | None, int], ...]
    rival: Cut | None = None
    breaks: bool = False

    def plan(self, side: ModelSide) -> Any:
        attached = side.is_attached(self.owner)
        places = [place(side, *wanted) for wanted in self.places]
        rival = self.rival if attached and self.rival and self.rival.owner in side.members else None
        return {
            "seen": max(0, side.model.version + self.seen_lead),
            "places": places,
            "breaks": self.breaks and attached,
            "rival": rival and (rival, rival.plan(side)),
        }

    def on_model(self, side: ModelSide, plan: Any) -> Any:
        member, model = side.members[self.owner], side.model
        cut = model.open_cut(
            admits=self.admits,
            sets_loader=self.sets_loader,
            seen_version=plan["seen"],
            places=plan["places"],
        )
        if plan["rival"]:
            rival, its_plan = plan["rival"]
            rival.on_model(side, its_plan)
        if plan["breaks"]:
            return "broken"
        model.apply_cut(member, cut)
        for wanted in plan["places"]:
            group = model.groups[wanted.group_id]
            side.memory.remember(self.owner, group.group_id, group.fence)
        return cut.index

    async def on_store(self, side: StoreSide, plan: Any) -> Any:
        index = None
        try:
            async with side.sessions[self.owner].mutation() as cut:
                if self.admits:
                    index = cut.record_admission(seen_version=plan["seen"])
                if self.sets_loader:
                    cut.set_loader_state(b"position")
                for wanted in plan["places"]:
                    cut.reserve(
                        wanted.weight,
                        target_step=wanted.target,
                        group_id=wanted.group_id,
                        replacement_index=wanted.replacement,
                    )
                if plan["rival"]:
                    rival, its_plan = plan["rival"]
                    await rival.on_store(side, its_plan)
                if plan["breaks"]:
                    raise KeyError("the block broke")
        except KeyError:
            return "broken"
        for held in cut.reservations:
            side.memory.remember(self.owner, held.group_id, held.fence)
        return index


@dataclass(frozen=True)
class Admit(Verb):
    seen_lead: int

    def plan(self, side: ModelSide) -> int:
        return max(0, side.model.version + self.seen_lead)

    def on_model(self, side: ModelSide, plan: int) -> int | None:
        return side.model.admit(side.members[self.owner], seen_version=plan)

    async def on_store(self, side: StoreSide, plan: int) -> int | None:
        admission = side.sessions[self.owner].buffer.admission
        admission.seen_version = plan
        return await admission.admit()


@dataclass(frozen=True)
class Commit(Verb):
    """Commits the n-th group the owner remembers, under its newest fence or one further back."""

    nth: int
    content: int
    newer: int = 0
    back: int = 0

    def plan(self, side: ModelSide) -> Any:
        known = side.remembered(self.owner)
        group_id = known[self.nth % len(known)] if known else NO_GROUP
        group = side.model.groups.get(group_id)
        start = max(0, (group.start if group else 0) + self.newer)
        return {
            "group_id": group_id,
            "start": start,
            "end": start + self.content % 2,
            "rows": content_rows(self.content),
        }

    def on_model(self, side: ModelSide, plan: Any) -> None:
        group_id = plan["group_id"]
        side.model.commit(
            side.members[self.owner],
            group_id,
            fence=side.memory.fence_of(self.owner, group_id, back=self.back),
            start=plan["start"],
            end=plan["end"],
            payload_bytes=encode_group(group_id, plan["rows"]).payload_bytes,
            content=self.content,
            rewards=content_rewards(self.content),
        )

    async def on_store(self, side: StoreSide, plan: Any) -> None:
        group_id = plan["group_id"]
        await side.sessions[self.owner].buffer.commit(
            group_id,
            plan["rows"],
            start_weight_version=plan["start"],
            end_weight_version=plan["end"],
            fence=side.memory.fence_of(self.owner, group_id, back=self.back),
        )


@dataclass(frozen=True)
class Promote(Verb):
    lead: int

    def plan(self, side: ModelSide) -> int:
        return max(0, side.model.version + self.lead)

    def on_model(self, side: ModelSide, plan: int) -> int | None:
        return side.model.promote(side.members[self.owner], to_step=plan)

    async def on_store(self, side: StoreSide, plan: int) -> int | None:
        return await side.sessions[self.owner].buffer.promote_ready_group(to_target_step=plan)


@dataclass(frozen=True)
class Select(Verb):
    rule: Rule
    window: int
    lead: int
    least: int
    more: int

    def plan(self, side: ModelSide) -> Selection:
        highest = max(0, side.model.version + self.lead)
        lowest = max(0, highest - self.window)
        return Selection(self.rule, lowest, highest, self.least, self.least + self.more)

    def on_model(self, side: ModelSide, plan: Selection) -> list[str]:
        return side.model.select(side.members[self.owner], plan)

    async def on_store(self, side: StoreSide, plan: Selection) -> list[str]:
        meta, groups = await self._buffer(side).claim(plan)
        chosen = list(meta.extra_info["group_ids"]) if meta is not None else []
        assert groups == len(chosen)
        return chosen

    def _buffer(self, side: StoreSide) -> RedisReplayBuffer:
        return side.sessions[self.owner].buffer


@dataclass(frozen=True)
class ClaimExactly(Verb):
    numbers: tuple[int, ...]

    def plan(self, side: ModelSide) -> tuple[str, ...]:
        return pick(side, self.numbers, "ready")

    def on_model(self, side: ModelSide, plan: tuple[str, ...]) -> list[str]:
        return side.model.claim_exactly(side.members[self.owner], plan)

    async def on_store(self, side: StoreSide, plan: tuple[str, ...]) -> list[str]:
        meta = await self._buffer(side).claim_for_training(plan)
        return list(meta.extra_info["group_ids"])

    def _buffer(self, side: StoreSide) -> RedisReplayBuffer:
        return side.sessions[self.owner].buffer
