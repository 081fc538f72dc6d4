"""The verbs of a train step, and those about the run as a whole. See `verbs`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.property.sides import ModelSide, StoreSide
from tests.property.verbs import NO_GROUP, Verb, pick

KEPT = "kept"
"""The name of a checkpoint, which no verb leaves behind."""


def owned_by(side: ModelSide, owner: str) -> list[str]:
    """Return the groups an owner's session has claimed."""
    return [group.group_id for group in side.model.owned(side.members[owner])]


@dataclass(frozen=True)
class WriteBack(Verb):
    """Writes a column back to all groups the owner holds, or to a group of anybody.

    A stray group is one that the owner selected for good, if there are any.
    """

    stray: int | None = None

    def plan(self, side: ModelSide) -> list[str]:
        if self.stray is not None:
            selected = side.members[self.owner].selected
            return list(pick(side, (self.stray,), "claimed", first=selected))
        return owned_by(side, self.owner)

    def on_model(self, side: ModelSide, plan: list[str]) -> None:
        if plan:
            side.model.write_back(side.members[self.owner], plan)

    async def on_store(self, side: StoreSide, plan: list[str]) -> None:
        ids = [f"{group_id}_g0" for group_id in plan]
        fields = {"advantages": [0.5] * len(ids)}
        await side.sessions[self.owner].samples.put_samples(ids, fields=fields)


@dataclass(frozen=True)
class CommitStep(Verb):
    """Closes a step; if it keeps a checkpoint too, that is dropped again."""

    lead: int
    empty: bool
    keep: bool = False

    def plan(self, side: ModelSide) -> int:
        return max(0, side.model.version + self.lead)

    def on_model(self, side: ModelSide, plan: int) -> Any:
        member = side.members[self.owner]
        return side.model.settle_step(member, plan, empty=self.empty, keep=self.keep)

    async def on_store(self, side: StoreSide, plan: int) -> Any:
        trainer = side.sessions[self.owner]
        close = trainer.skip_step if self.empty else trainer.commit_step
        done = await close(plan, checkpoint=KEPT if self.keep else None)
        if self.keep:
            await side.store.checkpoints.drop(KEPT)
        assert plan == done.step
        return (done.aborted, done.trained)


@dataclass(frozen=True)
class Release(Verb):
    """Releases the owner's claims; a slip names one too few, one too many or one twice.

    Or it names what the owner selected for good too.
    """

    slip: str

    def plan(self, side: ModelSide) -> list[str]:
        owned = owned_by(side, self.owner)
        selected = [*side.members[self.owner].selected]
        more = {"extra": [NO_GROUP], "twice": owned[:1], "selected": selected}.get(self.slip, [])
        return owned[1:] if self.slip == "missing" else owned + more

    def on_model(self, side: ModelSide, plan: list[str]) -> None:
        side.model.settle_exactly(side.members[self.owner], plan)

    async def on_store(self, side: StoreSide, plan: list[str]) -> None:
        await side.sessions[self.owner].buffer.release_training_claims(plan)


@dataclass(frozen=True)
class Requeue(Verb):
    """Gives named claims back, or with no numbers all of the session's.

    Of the groups that are named, those the owner selected for good come first.
    """

    numbers: tuple[int, ...]
    failed: bool

    def plan(self, side: ModelSide) -> tuple[str, ...] | None:
        selected = side.members[self.owner].selected
        return pick(side, self.numbers, "claimed", first=selected) if self.numbers else None

    def on_model(self, side: ModelSide, plan: tuple[str, ...] | None) -> int:
        return side.model.requeue(side.members[self.owner], plan, failed=self.failed)

    async def on_store(self, side: StoreSide, plan: tuple[str, ...] | None) -> int:
        trainer = side.sessions[self.owner]
        if plan is None:
            return await (trainer.abort_step() if self.failed else trainer.requeue())
        return await trainer.buffer.claims.requeue(plan, failed=self.failed)


@dataclass(frozen=True)
class Quarantine(Verb):
    numbers: tuple[int, ...]

    def plan(self, side: ModelSide) -> tuple[str, ...]:
        return pick(side, self.numbers, "claimed", "ready")

    def on_model(self, side: ModelSide, plan: tuple[str, ...]) -> int:
        return side.model.set_aside(side.members[self.owner], plan)

    async def on_store(self, side: StoreSide, plan: tuple[str, ...]) -> int:
        return await side.sessions[self.owner].buffer.quarantine(plan, reason="odd")


@dataclass(frozen=True)
class Transfer(Verb):
    receiver: str

    def on_model(self, side: ModelSide, plan: Any) -> int:
        return side.model.transfer(side.members[self.owner], self.receiver)

    async def on_store(self, side: StoreSide, plan: Any) -> int:
        return await side.sessions[self.owner].transfer_claims(to=self.receiver)


@dataclass(frozen=True)
class Adopt(Verb):
    def on_model(self, side: ModelSide, plan: Any) -> list[str]:
        return side.model.adopt(side.members[self.owner])

    async def on_store(self, side: StoreSide, plan: Any) -> list[str]:
        meta, _ = await side.sessions[self.owner].adopt_claims()
        return list(meta.extra_info["group_ids"]) if meta is not None else []


@dataclass(frozen=True)
class Publish(Verb):
    lead: int

    def plan(self, side: ModelSide) -> int:
        return max(0, side.model.version + self.lead)

    def on_model(self, side: ModelSide, plan: int) -> None:
        side.model.publish(plan)

    async def on_store(self, side: StoreSide, plan: int) -> None:
        await side.store.publish_trainer_version(plan)


@dataclass(frozen=True)
class SetWindow(Verb):
    window: int

    def on_model(self, side: ModelSide, plan: Any) -> None:
        side.model.set_window(side.members[self.owner], self.window)

    async def on_store(self, side: StoreSide, plan: Any) -> None:
        await side.sessions[self.owner].buffer.admission.set_gate_window(self.window)


@dataclass(frozen=True)
class Seed(Verb):
    lead: int
    exact: bool

    def plan(self, side: ModelSide) -> int:
        return max(-1, side.model.cursor + self.lead)

    def on_model(self, side: ModelSide, plan: int) -> None:
        side.model.seed(side.members[self.owner], plan, exact=self.exact)

    async def on_store(self, side: StoreSide, plan: int) -> None:
        await side.sessions[self.owner].buffer.admission.seed(plan, exact=self.exact)


@dataclass(frozen=True)
class Keep(Verb):
    """Makes a checkpoint and drops it again, so that the run is as it was."""

    def on_model(self, side: ModelSide, plan: Any) -> None:
        side.model.keep()

    async def on_store(self, side: StoreSide, plan: Any) -> None:
        await side.store.checkpoints.create(KEPT)
        await side.store.checkpoints.drop(KEPT)


@dataclass(frozen=True)
class Collect(Verb):
    def on_model(self, side: ModelSide, plan: Any) -> None:
        return None

    async def on_store(self, side: StoreSide, plan: Any) -> None:
        await side.store.collect_garbage()
