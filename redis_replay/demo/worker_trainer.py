"""The trainer process: claims a batch, trains on its rows, makes the model durable, commits.

The model of step ``v + 1`` is on disk before ``commit_step(v)`` says so to anybody. A restarted
trainer loads the model of the store's trainer version, so it never trains a committed step again
(D28). It sees rows only: it never builds a prompt or calls the verifier.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import anyio

from redis_replay import KVBatchMeta, ReplayStore, TrainerSession, create_sampler
from redis_replay.demo.grpo import Adam, StepStats, load_model, save_model, train_step
from redis_replay.demo.observation import SEEN_STORE, look_at
from redis_replay.demo.policy import Policy
from redis_replay.demo.rows import batch_from_rows
from redis_replay.demo.settings import (
    GROUP_SIZE,
    GROUPS_PER_STEP,
    KEPT_MODELS,
    LEASE_SECONDS,
    LOOKAHEAD_VERSIONS,
    WorkerOrders,
)
from redis_replay.demo.witness import Witness
from redis_replay.demo.worker import main
from redis_replay.errors import StaleOwner
from redis_replay.protocols import PromptGroupSampler

_EVICT_SECONDS: Final = 0.5
"""How long a batch is waited for before stale groups are dropped again: they may hold its place."""


async def work(orders: WorkerOrders, witness: Witness) -> None:
    """Train until the run has made its steps; with a new session when one was ended by others."""
    async with orders.open_store() as store:
        while not await _serve(store, orders, witness):
            pass


async def _serve(store: ReplayStore, orders: WorkerOrders, witness: Witness) -> bool:
    session = store.trainer(owner=orders.owner, lease_seconds=LEASE_SECONDS)
    async with AsyncExitStack() as stack:
        try:
            with witness.calling("attach") as found:
                await stack.enter_async_context(session)
                found["epoch"] = session.epoch
            witness.saw(SEEN_STORE, **await look_at(store, session))
            await Trainer(session, orders, witness).run()
            with witness.calling("detach"):
                await stack.aclose()
        except StaleOwner:
            return False
    return True


@dataclass
class Trainer:
    """The work of one session."""

    session: TrainerSession
    orders: WorkerOrders
    witness: Witness
    sampler: PromptGroupSampler = field(init=False)
    policy: Policy = field(init=False)
    optimizer: Adam = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = create_sampler(self.session.buffer, self.orders.sampler_config)
        self._load(self.session.trainer_version)

    def _load(self, version: int) -> None:
        path = self.orders.model_path(version)
        if version == 0 and not path.exists():
            save_model(path, policy=Policy.create(seed=self.orders.seed), optimizer=Adam())
        self.policy, self.optimizer = load_model(path)
        self.witness.saw("model", version=version)

    async def run(self) -> None:
        """Train from the store's trainer version to the last step."""
        for step in range(self.session.trainer_version, self.orders.steps):
            meta = await self._claim(step)
            stats = await self._train(meta)
            path = self.orders.model_path(step + 1)
            save_model(path, policy=self.policy, optimizer=self.optimizer)
            await self._commit(step, meta, stats)
            self.orders.model_path(step + 1 - KEPT_MODELS).unlink(missing_ok=True)

    async def _claim(self, step: int) -> KVBatchMeta:
        """Wait for a whole batch, dropping what can no longer be trained."""
        while True:
            await self._evict(step)
            with anyio.move_on_after(_EVICT_SECONDS):
                with self.witness.calling("select", step=step) as found:
                    meta, _ = await self.session.select(
                        self.sampler,
                        current_train_weight=step,
                        min_prompt_groups=GROUPS_PER_STEP,
                        max_prompt_groups=GROUPS_PER_STEP,
                    )
                    found.update(step=step, groups=meta.extra_info["group_ids"])
                return meta

    async def _evict(self, step: int) -> None:
        """Evict, and find out which groups went: of the stale ones, those that are gone after."""
        stale = [
            slot.group_id
            for slot in await self.session.buffer.slots()
            if slot.start_weight_version < step - LOOKAHEAD_VERSIONS
            or (slot.target_step is not None and slot.target_step < step)
        ]
        with self.witness.calling("evict", step=step, stale=stale) as found:
            found["count"] = await self.sampler.evict(current_train_weight=step)
            if found["count"]:
                live = {slot.group_id for slot in await self.session.buffer.slots()}
                found["gone"] = [group_id for group_id in stale if group_id not in live]

    async def _train(self, meta: KVBatchMeta) -> StepStats:
        rows = await self.session.samples.get_samples(
            meta, select_fields=["input_ids", "generation_logprobs", "reward", "length"]
        )
        batch = batch_from_rows(rows, group_size=GROUP_SIZE)
        return train_step(self.policy, batch=batch, optimizer=self.optimizer)

    async def _commit(self, step: int, meta: KVBatchMeta, stats: StepStats) -> None:
        groups, weights = meta.extra_info["group_ids"], meta.extra_info["start_weight_versions"]
        with self.witness.calling(
            "commit_step",
            step=step,
            groups=groups,
            lags=[step - weight for weight in weights],
            reward=stats.reward_mean,
        ) as found:
            commit = await self.session.commit_step(step)
            found.update(step=step, trained=list(commit.trained), aborted=commit.aborted)


if __name__ == "__main__":
    main(work, WorkerOrders)
