"""A run in a known state, for tests of what goes wrong between a store and its server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import redis_replay
from redis_replay import (
    InOrderSampler,
    InOrderSamplerConfig,
    ReplayStore,
    RolloutSession,
    TrainerSession,
    create_sampler,
)
from redis_replay._redis.keys import Key
from tests.harness import GROUP_SIZE, fences_from_the_beginning, rows

LEASE_SECONDS = 3600.0


@dataclass
class Stage:
    """A run in a known state: step 0 has two ready groups, step 1 one ready and one reserved."""

    store: ReplayStore
    trainer: TrainerSession
    rollout: RolloutSession
    sampler: InOrderSampler

    async def select(self) -> list[str]:
        meta, _ = await self.sampler.select(
            current_train_weight=0, min_prompt_groups=2, max_prompt_groups=2
        )
        assert meta is not None
        return list(meta.extra_info["group_ids"])

    async def outcome(self) -> dict[str, Any]:
        """Return what the store holds and what it has journalled."""
        gateway = self.store.buffer.session.link.gateway
        [entries] = await gateway.pipeline(
            [("XRANGE", gateway.keyspace.control(Key.EVENTS), "-", "+")]
        )
        return {
            "slots": await self.store.buffer.slots(),
            "stats": await self.store.stats(),
            "journal": [(entry[b"kind"], entry[b"groups"]) for _, entry in entries],
        }


@asynccontextmanager
async def opened_stage(url: str, run: str, **options: Any) -> AsyncIterator[Stage]:
    """Open a fresh run and bring it into the known state."""
    async with AsyncExitStack() as stack:
        with fences_from_the_beginning():
            store = await stack.enter_async_context(
                redis_replay.open_store(url, run=run, capacity=16, group_size=GROUP_SIZE, **options)
            )
        trainer = await stack.enter_async_context(
            store.trainer(owner="job", lease_seconds=LEASE_SECONDS)
        )
        rollout = await stack.enter_async_context(
            store.rollout(owner="host", lease_seconds=LEASE_SECONDS)
        )
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=3))
        assert isinstance(sampler, InOrderSampler)
        for index in range(2):
            assert index == await sampler.admit(trainer_version_fn=lambda: 0)
        for name, step in (("a", 0), ("b", 0), ("c", 1), ("d", 1)):
            await rollout.buffer.reserve(0, group_id=name, target_step=step)
        for name in ("a", "b", "c"):
            await rollout.buffer.commit(name, rows(1), start_weight_version=0, end_weight_version=0)
        yield Stage(store, trainer, rollout, sampler)
