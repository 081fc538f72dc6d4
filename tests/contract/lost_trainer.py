"""Every call under a trainer's session, for tests of a trainer that has lost it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from redis_replay import (
    DynamicSampling,
    Eviction,
    GroupFilter,
    InOrderSampler,
    RedisReplayBuffer,
    Reservation,
    Rule,
    SamplePlane,
    Selection,
    TrainerSession,
)
from tests.contract.prompt_groups import record_of
from tests.harness import rows

ONE = {"min_prompt_groups": 1, "max_prompt_groups": 1}
PLACE = {"start_weight_version": 0, "end_weight_version": 0}


@dataclass
class LostTrainer:
    """A session that held a claimed and a reserved group before it was ended."""

    trainer: TrainerSession
    sampler: InOrderSampler
    claimed: str
    reserved: Reservation

    @property
    def filter(self) -> GroupFilter:
        """Commits of the session under dynamic sampling."""
        return GroupFilter(self.trainer.buffer, DynamicSampling())

    async def flush(self) -> None:
        """Write a gate window that was set after the session's end."""
        self.sampler.set_gate_window(9)
        await self.sampler.flush()

    async def cut(self) -> None:
        """Dispatch through a mutation cut."""
        async with self.trainer.mutation() as cut:
            cut.reserve(0)


Call = Callable[[LostTrainer], Awaitable[Any]]

CALLS: Mapping[type, Mapping[str, Call]] = {
    TrainerSession: {
        "select": lambda lost: lost.trainer.select(lost.sampler, **ONE),
        "bookmark": lambda lost: lost.trainer.bookmark(),
        "commit_step": lambda lost: lost.trainer.commit_step(0),
        "skip_step": lambda lost: lost.trainer.skip_step(0),
        "abort_step": lambda lost: lost.trainer.abort_step(),
        "requeue": lambda lost: lost.trainer.requeue(),
        "transfer_claims": lambda lost: lost.trainer.transfer_claims(to="newer"),
        "adopt_claims": lambda lost: lost.trainer.adopt_claims(),
        "step_target": lambda lost: lost.trainer.step_target(0),
        "drain_step_reward_metrics": lambda lost: lost.trainer.drain_step_reward_metrics(0),
    },
    RedisReplayBuffer: {
        "reserve": lambda lost: lost.trainer.buffer.reserve(0),
        "reserve_many": lambda lost: lost.trainer.buffer.reserve_many(0, count=2),
        "quarantine": lambda lost: lost.trainer.buffer.quarantine([lost.claimed]),
        "reinstate": lambda lost: lost.trainer.buffer.reinstate([lost.claimed]),
        "take_tickets": lambda lost: lost.trainer.buffer.take_tickets(
            max_tickets=1, weight_version=0
        ),
        "reserve_when_free": lambda lost: lost.trainer.buffer.reserve_when_free(0),
        "commit": lambda lost: lost.trainer.buffer.commit(lost.reserved.group_id, rows(), **PLACE),
        "abort": lambda lost: lost.trainer.buffer.abort(
            lost.reserved.group_id, fence=lost.reserved.fence
        ),
        "remove": lambda lost: lost.trainer.buffer.remove([lost.claimed]),
        "remove_group": lambda lost: lost.trainer.buffer.remove_group(lost.claimed),
        "evict": lambda lost: lost.trainer.buffer.evict(Eviction(below=9)),
        "claim": lambda lost: lost.trainer.buffer.claim(Selection(Rule.BUFFER, 0, 9, 1, 9)),
        "claim_for_training": lambda lost: lost.trainer.buffer.claim_for_training([lost.claimed]),
        "training_owned_group_ids": lambda lost: lost.trainer.buffer.training_owned_group_ids(),
        "training_owned_replay_groups": lambda lost: (
            lost.trainer.buffer.training_owned_replay_groups()
        ),
        "release_training_claims": lambda lost: lost.trainer.buffer.release_training_claims(
            [lost.claimed]
        ),
        "requeue": lambda lost: lost.trainer.buffer.requeue([lost.claimed]),
        "promote_ready_group": lambda lost: lost.trainer.buffer.promote_ready_group(
            to_target_step=0
        ),
        "count_for_target_step": lambda lost: lost.trainer.buffer.count_for_target_step(0),
        "size": lambda lost: lost.trainer.buffer.size(),
        "stats": lambda lost: lost.trainer.buffer.stats(),
        "rewards": lambda lost: lost.trainer.buffer.rewards([lost.claimed]),
        "slots": lambda lost: lost.trainer.buffer.slots(),
    },
    SamplePlane: {
        "get_samples": lambda lost: lost.trainer.samples.get_samples([f"{lost.claimed}_g0"]),
        "put_samples": lambda lost: lost.trainer.samples.put_samples(
            [f"{lost.claimed}_g0"], fields={"advantage": [1.0]}
        ),
        "list_sample_ids": lambda lost: lost.trainer.samples.list_sample_ids(),
        "clear_samples": lambda lost: lost.trainer.samples.clear_samples(
            [f"{lost.claimed}_g{row}" for row in range(2)]
        ),
    },
    InOrderSampler: {
        "admit": lambda lost: lost.sampler.admit(trainer_version_fn=lambda: 9),
        "wait_until_admissible": lambda lost: lost.sampler.wait_until_admissible(
            trainer_version_fn=lambda: 9
        ),
        "select": lambda lost: lost.sampler.select(current_train_weight=0, **ONE),
        "evict": lambda lost: lost.sampler.evict(current_train_weight=9),
        "refresh": lambda lost: lost.sampler.refresh(),
        "flush": LostTrainer.flush,
    },
    GroupFilter: {
        "commit": lambda lost: lost.filter.commit(
            lost.reserved.group_id, record_of([0.0, 1.0]), **PLACE
        ),
        "fail": lambda lost: lost.filter.fail(lost.reserved.group_id, reason="failed"),
    },
    LostTrainer: {"cut": LostTrainer.cut},
}
"""For each class the calls under a session, by name."""
