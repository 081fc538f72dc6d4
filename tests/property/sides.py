"""The two kinds of system that a sequence of verbs runs on: the model, and a store.

Both keep the same little memory that a rollout host has: the fences of each group it reserved. It
is never cleared, so that late commits and aborts of lost attempts happen all the time.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

from redis_replay import ReplayStore
from redis_replay.errors import ReplayError
from redis_replay.heart import end_owner
from redis_replay.rollout import RolloutSession
from redis_replay.trainer import TrainerSession
from tests.harness import rows
from tests.property.model import BufferModel
from tests.property.slots import Member, Refused

OWNERS = ("host-a", "host-b", "job")
NEVER_DRAWN = 2**40
"""A fence that no attempt has: what an owner presents for a group it never reserved."""
STAMPED_AHEAD = 9
"""The audit's number for a live target step that the cursor has not reached."""

_LEASE_SECONDS = 3600.0

Reply = Any
View = dict[str, Any]


@dataclass
class Memory:
    """The fences of every attempt that an owner ever had, by owner and group, in order."""

    fences: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def remember(self, owner: str, group_id: str, fence: int) -> None:
        self.fences.setdefault((owner, group_id), []).append(fence)

    def fence_of(self, owner: str, group_id: str, *, back: int = 0) -> int:
        """Return the owner's newest fence for a group, or one further back."""
        known = self.fences.get((owner, group_id), [])
        return known[-1 - back] if back < len(known) else NEVER_DRAWN


@dataclass
class ModelSide:
    """The plain model and what its owners remember."""

    model: BufferModel
    members: dict[str, Member] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    def remembered(self, owner: str) -> list[str]:
        """Return the groups an owner has fences for, those it may commit first."""
        known = [group_id for name, group_id in self.memory.fences if name == owner]
        return sorted(known, key=lambda group_id: (not self._is_current(owner, group_id), group_id))

    def committable(self, owner: str) -> list[str]:
        """Return the groups that an owner holds reserved."""
        return [
            group_id for group_id in self.remembered(owner) if self._is_current(owner, group_id)
        ]

    def _is_current(self, owner: str, group_id: str) -> bool:
        group = self.model.groups.get(group_id)
        return (
            group is not None
            and group.state == "reserved"
            and group.fence == self.memory.fence_of(owner, group_id)
        )

    def is_attached(self, owner: str) -> bool:
        member = self.members.get(owner)
        return member is not None and self.model.owners.get(owner) == member.epoch

    def view(self) -> View:
        """Return everything that a caller can see of the run."""
        model, totals = self.model, self.model.totals
        return {
            "slots": [
                {
                    "group_id": group.group_id,
                    "state": group.state,
                    "start": group.start,
                    "end": group.end,
                    "target": group.target,
                    "owner": model.owner_of(group),
                    "attempt": group.attempt,
                    "requeues": group.requeues,
                    "claimed": group.batch is not None,
                    "committed": group.committed_fence is not None,
                }
                for group in model.where(lambda group: True)
            ],
            "places": (model.occupancy, model.payload_bytes),
            "totals": (
                model.reserved_total,
                *(totals.get(n, 0) for n in ("trained", "evicted", "aborted", "removed")),
                totals.get("requeued", 0),
            ),
            "ends": model.ends,
            "control": (model.cursor, model.version, model.window),
            "owned": {
                name: [group.group_id for group in model.owned(member)]
                for name, member in self.members.items()
            },
        }

    def contents(self) -> dict[str, int | None]:
        """Return what the rows of each committed group were made of."""
        committed = self.model.where(lambda group: group.committed_fence is not None)
        return {group.group_id: group.content for group in committed}


@dataclass
class StoreSide:
    """A store and the sessions of its owners."""

    store: ReplayStore
    sessions: dict[str, TrainerSession] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    async def attach(self, owner: str, *, planned: bool) -> None:
        session = self.store.trainer(
            owner=owner, lease_seconds=_LEASE_SECONDS, planned_takeover=planned
        )
        self.sessions[owner] = await session.__aenter__()

    async def die(self, owner: str) -> None:
        """End a session as a watcher does after a lease of silence; its process knows nothing."""
        session = self.sessions[owner].buffer.session
        await end_owner(session.link.gateway, session.link.run.frame, owner, session.epoch)

    def rollout(self, owner: str) -> RolloutSession:
        """Return the owner's session with the verbs of a rollout host."""
        trainer = self.sessions[owner]
        rollout = RolloutSession(trainer.buffer.session)
        rollout.buffer = trainer.buffer
        return rollout

    async def view(self) -> View:
        """Return everything that a caller can see of the run."""
        slots, stats = await self.store.buffer.slots(), await self.store.stats()
        return {
            "slots": [
                {
                    "group_id": slot.group_id,
                    "state": slot.state.value,
                    "start": slot.start_weight_version,
                    "end": slot.end_weight_version,
                    "target": slot.target_step,
                    "owner": slot.owner,
                    "attempt": slot.attempt,
                    "requeues": slot.training_requeues,
                    "claimed": slot.batch is not None,
                    "committed": slot.payload_fence is not None,
                }
                for slot in slots
            ],
            "places": (stats.occupancy, stats.payload_bytes),
            "totals": (
                *(stats.reserved_total, stats.trained, stats.evicted, stats.aborted),
                *(stats.removed, stats.requeued),
            ),
            "ends": dict(stats.ends),
            "control": (stats.dispatch_index, stats.trainer_version, stats.gate_window),
            "owned": {
                name: await session.buffer.training_owned_group_ids()
                for name, session in self.sessions.items()
            },
        }

    async def violations(self) -> tuple[object, ...]:
        """Return what the audit finds, but for steps that nobody admitted: verbs stamp any step."""
        report = await self.store.audit()
        return tuple(v for v in report.violations if v.invariant != STAMPED_AHEAD)

    async def contents(self) -> dict[str, int]:
        """Read every committed group and return what its rows were made of."""
        slots = await self.store.buffer.slots()
        committed = [slot.group_id for slot in slots if slot.payload_fence is not None]
        found: dict[str, int] = {}
        for group_id in committed:
            [row] = await self.store.samples.get_samples([f"{group_id}_g0"])
            ids: Any = row["input_ids"]
            assert {int(ids[0])} == {int(value) for value in ids}
            found[group_id] = int(ids[0])
        return found

    async def drain(self) -> None:
        """End everything and free what was left behind."""
        for session in self.sessions.values():
            await session.__aexit__(None, None, None)
        slots = await self.store.buffer.slots()
        if slots:
            await self.store.buffer.remove([slot.group_id for slot in slots])
        await self.store.collect_garbage()


def content_rows(content: int) -> list[dict[str, Any]]:
    """Return the rows of a commit; every third has another length."""
    return rows(content, length=3 + content % 3)


async def reply_of(call: Awaitable[Any]) -> Reply:
    """Return what a store answered, an error as the name of its class."""
    try:
        return await call
    except (ReplayError, ValueError) as refusal:
        return ("refused", type(refusal).__name__)


def model_reply(answer: Any, *arguments: Any, **named: Any) -> Reply:
    """Return what the model answers, in the same form."""
    try:
        return answer(*arguments, **named)
    except Refused as refusal:
        return ("refused", refusal.args[0])
