"""The two kinds of system that a sequence of verbs runs on: the model, and a store.

Both keep the same little memory that a rollout host has: the fences of each group it reserved. It
is never cleared, so that late commits and aborts of lost attempts happen all the time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel

from redis_replay import ReplayStore
from redis_replay._redis.gateway import Gateway
from redis_replay.errors import ReplayError
from redis_replay.heart import end_owner
from redis_replay.rollout import RolloutSession
from redis_replay.samples import SamplePlane
from redis_replay.trainer import TrainerSession
from tests.harness import rows
from tests.property.model import BufferModel
from tests.property.slots import Group, Member, Refused

OWNERS = ("host-a", "host-b", "job")
NEVER_DRAWN = 2**40
"""A fence that no attempt has: what an owner presents for a group it never reserved."""
_LEASE_SECONDS = 3600.0

TOTALS = ("trained", "filtered", "evicted", "aborted", "removed", "requeued")

Reply = Any
View = dict[str, Any]
Contents = dict[str, int | None]


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
        """Return the state of the run as far as it does not depend on the numbers drawn."""
        model, totals, accounts = self.model, self.model.totals, self.model.accounts
        return {
            "slots": [self._view_of(group) for group in model.where(lambda group: True)],
            "selected": [
                (model.name_of(taken.epoch), [self._view_of(group) for group in taken.groups])
                for taken in model.selections
            ],
            "payload_bytes": model.payload_bytes,
            "totals": {"reserved": model.reserved_total, **{n: totals.get(n, 0) for n in TOTALS}},
            "ends": model.ends,
            "control": (model.cursor, model.version, model.window, model.loader_revision),
            "admissions": {i: owner for i, (owner, _) in model.admissions.items()},
            "batches": {key: count for key, count in accounts.batches.items() if count},
            "carry": accounts.carry,
            "tally": accounts.tally,
            "drained": accounts.drained,
        }

    def _view_of(self, group: Group) -> View:
        return {
            "group_id": group.group_id,
            "state": group.state,
            "start": group.start,
            "end": group.end,
            "target": group.target,
            "owner": self.model.name_of(group.holder),
            "attempt": group.attempt,
            "requeues": group.requeues,
            "claimed": group.batch is not None,
            "committed": group.committed_fence is not None,
            "written": group.written,
            "dispatch": group.dispatch,
            "replacement": group.replacement,
        }

    def contents(self) -> Contents:
        """Return what the rows of each committed group were made of."""
        committed = self.model.where(lambda group: group.committed_fence is not None)
        return {group.group_id: group.content for group in committed}

    def contents_selected(self, owner: str) -> Contents:
        """Return the same of the groups that an attached owner has selected for good."""
        selected = self.members[owner].selected
        return {group_id: group.content for group_id, group in selected.items()}


@dataclass
class StoreSide:
    """A store and the sessions of its owners."""

    store: ReplayStore
    sessions: dict[str, TrainerSession] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    @property
    def gateway(self) -> Gateway:
        """What the run is read through."""
        return self.store.buffer.session.link.gateway

    async def attach(self, owner: str, *, takeover: bool) -> None:
        session = self.store.trainer(owner=owner, lease_seconds=_LEASE_SECONDS, takeover=takeover)
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

    async def contents(self) -> Contents:
        """Read every committed group and return what its rows were made of."""
        slots = await self.store.buffer.slots()
        committed = [slot.group_id for slot in slots if slot.payload_fence is not None]
        return await _contents(self.store.samples, committed)

    async def contents_selected(self, owner: str) -> Contents:
        """Read what an owner has selected for good, by its own session."""
        trainer = self.sessions[owner]
        return await _contents(trainer.samples, list(trainer.buffer.session.selected.slots))

    async def come_to_rest(self) -> None:
        """Wait until what the store does in the background is done."""
        await anyio.lowlevel.checkpoint()  # work that was just started begins
        await self.store.buffer.session.link.tasks.idle()

    async def give_all_back(self) -> None:
        """End every session, take every group out and free what was left behind."""
        for session in self.sessions.values():
            await session.__aexit__(None, None, None)
        slots = await self.store.buffer.slots()
        if slots:
            await self.store.buffer.remove([slot.group_id for slot in slots])
        await self.store.collect_garbage()


async def _contents(samples: SamplePlane, group_ids: Sequence[str]) -> Contents:
    found: Contents = {}
    for group_id in group_ids:
        [row] = await samples.get_samples([f"{group_id}_g0"])
        ids: Any = row["input_ids"]
        assert {int(ids[0])} == {int(value) for value in ids}
        found[group_id] = int(ids[0])
    return found


def content_rewards(content: int) -> list[float]:
    """Return the rewards of the rows of a commit."""
    return [row["reward"] for row in content_rows(content)]


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
