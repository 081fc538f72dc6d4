"""A trainer or rollout host as a process of its own: holds groups, blocks, wakes up too late.

``python -m tests.workers.session_holder URL RUN ROLE OWNER LEASE_SECONDS``. Obeys JSON lines as
`tests.workers.claimer` does; its first answer is its epoch.
"""

from __future__ import annotations

import ctypes
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import anyio

import redis_replay
from redis_replay import InOrderSampler, Reservation, RolloutSession, TrainerSession
from redis_replay.errors import ReplayError
from tests.contract.lost_trainer import CALLS, LostTrainer
from tests.harness import rows
from tests.workers.claimer import obey

LOOKAHEAD = 2


class Holder:
    """The verbs, by name."""

    def __init__(self, session: TrainerSession | RolloutSession) -> None:
        self.session = session
        self.sampler = InOrderSampler(session.buffer, max_lookahead_versions=LOOKAHEAD)
        self.claimed: list[str] = []
        self.reserved: list[Reservation] = []

    async def reserve(self, weight: int, step: int) -> str:
        """Reserve a group and return its id."""
        self.reserved.append(await self.session.buffer.reserve(weight, target_step=step))
        return self.reserved[-1].group_id

    async def commit(self, group_id: str, value: int) -> str:
        """Commit a reserved group; return what became of it."""
        try:
            await self.session.buffer.commit(
                group_id, rows(value), start_weight_version=0, end_weight_version=0
            )
        except ReplayError as refusal:
            return type(refusal).__name__
        return "committed"

    async def claim(self, step: int, groups: int) -> list[str]:
        """Wait for a batch of exactly so many groups of a step and claim it."""
        assert isinstance(self.session, TrainerSession)
        meta, _ = await self.session.select(
            self.sampler,
            current_train_weight=step,
            min_prompt_groups=groups,
            max_prompt_groups=groups,
        )
        self.claimed = list(meta.extra_info["group_ids"])
        return self.claimed

    async def train(self, step: int) -> list[str]:
        """Commit a step and return the groups that it trained."""
        assert isinstance(self.session, TrainerSession)
        return list((await self.session.commit_step(step)).trained)

    async def compute(self, seconds: float, slice_seconds: float) -> int:
        """Block the event loop, and the GIL in slices; return how many slices there were."""
        holding = ctypes.PyDLL(None)  # calls through it keep the GIL
        end, slices = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            holding.usleep(int(slice_seconds * 1e6))
            slices += 1
        return slices

    async def try_every_call(self) -> dict[str, str]:
        """Make every call of a trainer's session; return how each ended."""
        assert isinstance(self.session, TrainerSession)
        lost = LostTrainer(self.session, self.sampler, self.claimed[0], self.reserved[0])
        outcomes: dict[str, str] = {}
        for cls, calls in CALLS.items():
            for name, call in calls.items():
                try:
                    await call(lost)
                    outcome = "done"
                except (ReplayError, ValueError) as refusal:
                    outcome = type(refusal).__name__
                outcomes[f"{cls.__name__}.{name}"] = outcome
        return outcomes


async def serve(url: str, run: str, role: str, owner: str, lease_seconds: float) -> None:
    """Attach, then answer every line until the input ends."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(redis_replay.open_store(url, run=run, create=False))
        attach: Any = {"trainer": store.trainer, "rollout": store.rollout}[role]
        session = attach(owner=owner, lease_seconds=lease_seconds)
        await stack.enter_async_context(session)
        await obey(Holder(session), hello=session.epoch)


if __name__ == "__main__":
    address, run_name, session_role, owner_name, lease = sys.argv[1:]
    anyio.run(serve, address, run_name, session_role, owner_name, float(lease))
