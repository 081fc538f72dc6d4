"""Random dispatches, losses, replacements and steps: the accounts of every step stay true.

A few lines of bookkeeping beside the store know what was dispatched, lost, replaced and trained.
After every verb the store's numbers are theirs; and once nothing is in flight, a trainer that
shrinks gets a batch of at least what it was told it can reach, or is told that there is nothing.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from redis_replay import (
    DynamicSampling,
    GroupFilter,
    GroupState,
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    Replacement,
    ReplayStore,
    TrainerSession,
    WeightFifoSamplerConfig,
    create_sampler,
)
from redis_replay.errors import StepStarved
from redis_replay.heart import end_owner
from tests.contract.prompt_groups import record_of
from tests.harness import Runs

pytestmark = pytest.mark.anyio

GROUPS_PER_STEP, WINDOW, VERBS = 3, 2, 60
CONFIGS: dict[str, Any] = {
    "in_order": InOrderSamplerConfig(max_lookahead_versions=WINDOW),
    "ready_first": ReadyFirstSamplerConfig(max_staleness_versions=WINDOW),
    "weight_fifo": WeightFifoSamplerConfig(max_staleness_versions=WINDOW),
}


@dataclass
class Books:
    """What happened, by the batch that it happened to."""

    stamped: bool
    batch_of: dict[str, int] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)
    replaced: Counter[int] = field(default_factory=Counter)
    borrowed: Counter[int] = field(default_factory=Counter)
    quarantined: set[str] = field(default_factory=set)
    trained: int = 0

    def lose(self, group_id: str) -> None:
        """Record that a group ended untrained."""
        if group_id not in self.quarantined:
            self.lost[self.batch_of[group_id]] += 1

    def missing(self, step: int) -> int:
        """Return how many groups a step lacks; below zero there are groups to spare."""
        if self.stamped:
            return self.lost[step] - self.replaced[step] - self.borrowed[step]
        lost = sum(count for batch, count in self.lost.items() if batch <= step)
        replaced = sum(count for batch, count in self.replaced.items() if batch <= step)
        return lost - replaced + self.trained - GROUPS_PER_STEP * step


class Run:
    """A store, its trainer and the books beside them."""

    def __init__(self, store: ReplayStore, trainer: TrainerSession, policy: str, seed: int) -> None:
        self.store, self.trainer, self.policy = store, trainer, policy
        self.sampler: Any = create_sampler(trainer.buffer, CONFIGS[policy])
        self.books = Books(stamped=policy == "in_order")
        self.draw = random.Random(seed)
        self.version, self.dispatched = 0, 0

    async def ids(self, state: GroupState) -> list[str]:
        """Return the groups in a state, in buffer order."""
        return [slot.group_id for slot in await self.store.buffer.slots() if slot.state is state]

    async def pick(self, state: GroupState) -> str | None:
        """Return a random group in a state."""
        found = await self.ids(state)
        return self.draw.choice(found) if found else None

    async def dispatch(self) -> None:
        """Dispatch the next batch where the gate is open."""
        index = self.sampler.dispatch_index + 1
        if index > self.version + WINDOW:
            return
        async with self.trainer.mutation() as cut:
            target = self.sampler.commit_admission(cut)
            for _ in range(GROUPS_PER_STEP):
                self.books.batch_of[cut.reserve(self.version, target_step=target)] = index
        self.dispatched += GROUPS_PER_STEP

    async def finish(self, *, reward: float = 1.0, replace: bool = False) -> None:
        """Finish a random group in flight, with signal or without."""
        group_id = await self.pick(GroupState.RESERVED)
        if group_id is None:
            return
        [start] = [
            slot.start_weight_version
            for slot in await self.store.buffer.slots()
            if slot.group_id == group_id
        ]
        outcome = await self.trainer_filter.commit(
            group_id,
            record_of([0.0, reward]),
            start_weight_version=start,
            end_weight_version=max(start, self.version),
            replacement=Replacement(self.version) if replace else None,
        )
        self.follow(group_id, outcome)

    @property
    def trainer_filter(self) -> Any:
        """Commits of the trainer's session, which is the one that reserves."""
        return GroupFilter(self.trainer.buffer, DynamicSampling(max_replacements=2))

    def follow(self, group_id: str, outcome: Any) -> None:
        """Write down what a filter did."""
        if outcome.kept:
            return
        self.books.lose(group_id)
        if outcome.replacement is not None:
            batch = self.books.batch_of[group_id]
            self.books.batch_of[outcome.replacement.group_id] = batch
            self.books.replaced[batch] += 1
            self.dispatched += 1

    async def end(self) -> None:
        """End a random group in one of the ways there are."""
        state = self.draw.choice([GroupState.RESERVED, GroupState.READY, GroupState.QUARANTINED])
        group_id = await self.pick(state)
        if group_id is None:
            return
        if state is GroupState.RESERVED and self.draw.random() < 0.5:
            self.follow(group_id, await self.trainer_filter.fail(group_id))
            return
        await self.store.buffer.remove_group(group_id)
        self.books.lose(group_id)
        self.books.quarantined.discard(group_id)

    async def evict(self) -> None:
        """Drop what the policy cannot select any more."""
        before = await self.ids(GroupState.READY)
        await self.sampler.evict(current_train_weight=self.version)
        for group_id in set(before) - set(await self.ids(GroupState.READY)):
            self.books.lose(group_id)

    async def promote(self) -> None:
        """Lend a group to the trainer's step."""
        if self.policy != "in_order":
            return
        source = await self.store.buffer.promote_ready_group(to_target_step=self.version)
        if source is None:
            return
        self.books.borrowed[self.version] += 1
        self.books.borrowed[source] -= 1
        for slot in await self.store.buffer.slots():
            if slot.target_step is not None:
                self.books.batch_of[slot.group_id] = slot.target_step

    async def quarantine(self) -> None:
        """Give a claim back as failed until its group is quarantined."""
        group_id = await self.pick(GroupState.READY)
        if group_id is None:
            return
        for _ in range(2):
            async with self.store.trainer(owner="poisoned") as other:
                if group_id not in await self.ids(GroupState.READY):
                    break
                await other.buffer.claim_for_training([group_id])
                link = other.buffer.session.link
                await end_owner(link.gateway, link.run.frame, "poisoned", other.epoch)
        assert group_id in await self.ids(GroupState.QUARANTINED)
        self.books.lose(group_id)
        self.books.quarantined.add(group_id)

    async def train(self) -> None:
        """Train what is there, in one or two claims, and close the step."""
        for most in self.draw.choice([(3,), (1, 3), (5,)]):
            _, groups = await self.sampler.select(
                current_train_weight=self.version, min_prompt_groups=1, max_prompt_groups=most
            )
            if groups and self.draw.random() < 0.3:
                owned = await self.trainer.buffer.training_owned_group_ids()
                await self.trainer.buffer.release_training_claims(owned)
                self.books.trained += len(owned)
        await self.close()

    async def close(self) -> None:
        """Close the step with what the trainer holds."""
        owned = await self.trainer.buffer.training_owned_group_ids()
        late = [
            slot.group_id
            for slot in await self.store.buffer.slots()
            if slot.state is GroupState.RESERVED and slot.target_step is not None
            and slot.target_step <= self.version
        ]  # fmt: skip
        if owned:
            await self.trainer.commit_step(self.version)
        else:
            await self.trainer.skip_step(self.version)
        self.books.trained += len(owned)
        for group_id in late:
            self.books.lose(group_id)
        self.version += 1

    async def publish(self) -> None:
        """Raise the version without a step, as another trainer might."""
        if self.draw.random() < 0.3:
            self.version += self.draw.randint(1, 2)
            await self.store.publish_trainer_version(self.version)

    async def check(self) -> None:
        """Compare the store's numbers with the books."""
        for step in range(self.version, self.version + WINDOW + 1):
            target = await self.store.step_target(step)
            found = target.lost - target.replaced - target.borrowed + target.lent + target.short
            if self.books.stamped:
                assert self.books.missing(step) == found
            else:
                nearer = range(self.version, step)
                between = sum(self.books.lost[b] - self.books.replaced[b] for b in nearer)
                ahead = GROUPS_PER_STEP * (step - self.version)
                assert self.books.missing(step) == found + between - ahead
        live = len(self.books.quarantined) + await self.store.buffer.size()
        ended = sum(self.books.lost.values()) - len(self.books.quarantined)
        assert self.dispatched == self.books.trained + ended + live

    async def rest_of_oldest(self) -> int:
        """Return how many groups `weight_fifo` can take; the others take any."""
        if self.policy != "weight_fifo":
            return GROUPS_PER_STEP
        versions = [slot.start_weight_version for slot in await self.store.buffer.slots()
                    if slot.state is GroupState.READY]  # fmt: skip
        return versions.count(min(versions, default=0))

    async def close_whole_steps(self) -> None:
        """With nothing left in flight, train steps until the dispatched batches are passed."""
        while await self.pick(GroupState.RESERVED) is not None:
            await self.finish()
        while self.version <= self.sampler.dispatch_index:
            await self.evict()
            told, rest = await self.store.step_target(self.version), await self.rest_of_oldest()
            try:
                _, groups = await self.trainer.select(
                    self.sampler,
                    min_prompt_groups=GROUPS_PER_STEP,
                    max_prompt_groups=GROUPS_PER_STEP,
                    deadline_seconds=10,
                )
            except StepStarved:
                groups = 0
            assert min(told.reachable, rest) <= groups <= GROUPS_PER_STEP
            await self.close()
            await self.check()


VERB_WEIGHTS = {
    "dispatch": 6, "finish": 8, "filter": 3, "replace": 3, "end": 2, "evict": 2, "promote": 1,
    "quarantine": 1, "train": 3, "publish": 1,
}  # fmt: skip


@pytest.mark.parametrize("policy", CONFIGS)
@pytest.mark.parametrize("seed", range(4))
async def test_the_accounts_of_every_step_stay_true(runs: Runs, policy: str, seed: int) -> None:
    await check_accounts(runs, policy, seed, verbs=VERBS)


@pytest.mark.slow
@pytest.mark.parametrize("policy", CONFIGS)
@pytest.mark.parametrize("seed", range(100, 200))
async def test_the_accounts_of_long_runs_stay_true(runs: Runs, policy: str, seed: int) -> None:
    await check_accounts(runs, policy, seed, verbs=4 * VERBS)


async def check_accounts(runs: Runs, policy: str, seed: int, *, verbs: int) -> None:
    """Draw verbs, compare after each, and close all steps at the end."""
    async with (
        runs.open(groups_per_step=GROUPS_PER_STEP, capacity=500, max_requeues=1) as store,
        store.trainer(owner="t", min_batch_fraction=0.0) as trainer,
    ):
        run = Run(store, trainer, policy, seed)
        await run.sampler.flush()
        await run.dispatch()
        names, weights = list(VERB_WEIGHTS), list(VERB_WEIGHTS.values())
        for name in run.draw.choices(names, weights, k=verbs):
            if name in ("filter", "replace"):
                await run.finish(reward=0.0, replace=name == "replace")
            else:
                await getattr(run, name)()
            await run.check()
        await run.close_whole_steps()
