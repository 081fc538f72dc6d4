"""The reward tally of the store: shared by all rollout hosts, drained by the trainer.

Recording is part of the commit's (or the filter's) script, so a repeated or duplicated commit
counts once. The sums are those of the pure functions in `dynamic_sampling`, group by group in
commit order.
"""

from __future__ import annotations

from redis_replay._redis.scripts import Drain
from redis_replay.dynamic_sampling import StepRewardStats, drain_step_reward_metrics
from redis_replay.selection import validate_version
from redis_replay.session import Session


async def drain_stored_metrics(session: Session, step: int) -> dict[str, float]:
    """Return the reward metrics of a step and forget it and every older one.

    Atomic: a group recorded meanwhile is in this answer or in none. A group that arrives for a step
    already drained is not recorded any more.

    Args:
        step: The trainer step whose groups are asked for.

    Returns:
        As `drain_step_reward_metrics`; empty when nothing was generated for the step.

    Raises:
        ValueError: the step is negative, or 2**53 and more.
    """
    validate_version("step", step)
    packed = await session.call(Drain(step))
    if packed is None:
        return {}
    return drain_step_reward_metrics({step: parse_stats(packed)}, step)


def parse_stats(packed: str) -> StepRewardStats:
    """Read one step's field of the tally."""
    groups, zero_variance, reward_sum, samples, first_sum, first_samples = packed.split(" ")
    return StepRewardStats(
        groups=int(groups),
        zero_variance_groups=int(zero_variance),
        reward_sum=float(reward_sum),
        samples=int(samples),
        first_attempt_reward_sum=float(first_sum),
        first_attempt_samples=int(first_samples),
    )
