"""Decide which prompt groups carry a training signal, and tally the rewards of each step.

Pure functions over plain values: nothing here waits, draws or touches the store. A group without
signal (all voting rewards exactly equal) has zero advantage everywhere, so a driver drops it and
generates a replacement; the tally counts every row it generated, so that the reported reward does
not rise merely because hard and easy prompts were filtered out.

Two questions, two sets of rows:

* who votes on the signal: `participating_rewards` (masked, overlong and weightless rows may not);
* what is reported as progress: `record_group_rewards` (every row, voting or not).

Source: names and behaviour of NeMo RL's `dynamic_sampling`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from redis_replay.rewards import (
    RewardScalar,
    reward_as_float,
    rewards_as_floats,
    sum_of_rewards,
)

_MASKED_REWARD_POLICIES = ("include", "exclude", None)


@dataclass(slots=True)
class Completion:
    """A single generation for one prompt.

    Attributes:
        message_log: The conversation, one mapping per message.
        env_extras: What the environment reported, the mask flag included.
        truncated: The generation ran into its length limit.
        reward: One finite number of any kind that `redis_replay.rewards` accepts.
    """

    message_log: Sequence[Mapping[str, Any]]
    env_extras: Mapping[str, Any] | None
    truncated: bool
    reward: RewardScalar


@dataclass(slots=True)
class PromptGroupRecord:
    """All completions of one prompt, with what belongs to the prompt.

    Attributes:
        prompt_idx: Number of the prompt in its data set.
        loss_multiplier: Weight of the prompt in the data set; exactly 0 takes it out of training.
    """

    prompt_idx: int
    prompt: Sequence[Mapping[str, Any]]
    extra_env_info: Mapping[str, Any] | None
    metadata: Mapping[str, Any]
    completions: Sequence[Completion]
    rollout_metrics: Mapping[str, Any]
    loss_multiplier: float = 1.0


@dataclass(slots=True)
class StepRewardStats:
    """Rewards of all groups generated for one step, kept or dropped.

    The ``first_attempt`` sums leave out replacements, which exist only because an earlier group
    was dropped and therefore do not describe the policy on the prompts as they come.
    """

    groups: int = 0
    zero_variance_groups: int = 0
    reward_sum: float = 0.0
    samples: int = 0
    first_attempt_reward_sum: float = 0.0
    first_attempt_samples: int = 0


def mask_sample_flagged(extra: Mapping[str, Any] | None) -> bool:
    """Return whether the environment asked for this sample to be masked.

    Both ``extra["mask_sample"]`` and ``extra["instance_config"]["mask_sample"]`` are read: the
    first may be present and false while the nested one is true.

    Raises:
        TypeError: ``instance_config`` holds something that is not a mapping.
    """
    if not extra:
        return False
    nested: object = extra.get("instance_config") or {}
    if not isinstance(nested, Mapping):
        raise TypeError(f"instance_config must be a mapping or None, got {type(nested).__name__}")
    instance_config = cast(Mapping[str, object], nested)
    return bool(extra.get("mask_sample") or instance_config.get("mask_sample"))


def participating_rewards(
    record: PromptGroupRecord, *, masked_reward_policy: str | None, overlong_filtering: bool
) -> list[float]:
    """Return the rewards that vote in the group's mean and spread, in completion order.

    Args:
        record: The group, with one reward per completion.
        masked_reward_policy: ``"exclude"`` drops masked completions, and with
            ``overlong_filtering`` truncated ones; ``"include"`` and ``None`` let all vote.
        overlong_filtering: Whether the loss will mask truncated completions.

    Returns:
        Plain floats; none when the weight of the group is 0, under every policy.

    Raises:
        TypeError: A reward is not one number.
        ValueError: Another policy, or a reward (voting or not) that is NaN or infinite.
    """
    if masked_reward_policy not in _MASKED_REWARD_POLICIES:
        raise ValueError(
            f"masked_reward_policy must be 'include', 'exclude' or None, "
            f"got {masked_reward_policy!r}"
        )
    rewards = [
        reward_as_float(
            completion.reward, where=f"prompt {record.prompt_idx}, completion {position}: reward"
        )
        for position, completion in enumerate(record.completions)
    ]
    weight = reward_as_float(
        record.loss_multiplier, where=f"prompt {record.prompt_idx}: loss_multiplier"
    )
    if weight == 0:
        return []
    if masked_reward_policy != "exclude":
        return rewards
    return [
        reward
        for reward, completion in zip(rewards, record.completions, strict=True)
        if not mask_sample_flagged(completion.env_extras)
        and not (overlong_filtering and completion.truncated)
    ]


def rewards_carry_no_signal(rewards: Iterable[object]) -> bool:
    """Return whether at most one reward votes, or all are exactly equal.

    Equality is that of float64 without a tolerance: a standard deviation of equal values such as
    eight times 0.95 is not exactly zero, and values one ulp apart are a signal.

    Raises:
        TypeError: An element is not one number.
        ValueError: A reward is NaN or infinite; the message names its position.
    """
    return len(set(rewards_as_floats(rewards))) <= 1


def record_group_rewards(
    step_rewards: MutableMapping[int, StepRewardStats],
    target_step: int | None,
    rewards: Iterable[object],
    *,
    replacement_index: int,
    zero_variance: bool,
) -> None:
    """Add every row of one generated group to the tally of the step it was generated for.

    Args:
        step_rewards: The tallies by step; changed in place, or not at all on an error.
        target_step: The step; ``None`` (an unstamped group) records nothing.
        rewards: All rows of the group, voting or not.
        replacement_index: 0 for the first attempt, n for the n-th replacement.
        zero_variance: The decision already taken; it is not computed again.

    Raises:
        TypeError: A reward is not one number.
        ValueError: A negative index, a reward that is NaN or infinite, or sums beyond float64.
    """
    if replacement_index < 0:
        raise ValueError(f"replacement_index must be non-negative, got {replacement_index}")
    values = rewards_as_floats(rewards)
    group_sum = sum_of_rewards(values)
    if target_step is None:
        return
    first_attempt = replacement_index == 0
    stats = step_rewards.get(target_step, StepRewardStats())
    if not math.isfinite(stats.reward_sum + group_sum):
        raise ValueError(f"the reward sum of step {target_step} is beyond the range of a float64")
    if first_attempt and not math.isfinite(stats.first_attempt_reward_sum + group_sum):
        raise ValueError(
            f"the first-attempt reward sum of step {target_step} is beyond the range of a float64"
        )
    stats.groups += 1
    stats.zero_variance_groups += bool(zero_variance)
    stats.reward_sum += group_sum
    stats.samples += len(values)
    if first_attempt:
        stats.first_attempt_reward_sum += group_sum
        stats.first_attempt_samples += len(values)
    step_rewards[target_step] = stats


def drain_step_reward_metrics(
    step_rewards: MutableMapping[int, StepRewardStats], step: int
) -> dict[str, float]:
    """Return the metrics of ``step`` and forget it and every older step.

    A straggler recorded for a step that was drained already is dropped by the next drain,
    unreported. Newer steps stay.

    Returns:
        ``unfiltered_reward`` and ``first_attempt_reward`` (means over rows, each left out when
        there is no row), ``generated_prompt_groups``, ``zero_variance_prompt_groups`` and
        ``zero_variance_fraction``; empty when nothing was generated for the step.
    """
    stats = step_rewards.get(step, StepRewardStats())
    for old_step in [known for known in step_rewards if known <= step]:
        del step_rewards[old_step]
    if stats.groups == 0:
        return {}
    metrics: dict[str, float] = {}
    if stats.samples:
        metrics["unfiltered_reward"] = stats.reward_sum / stats.samples
    if stats.first_attempt_samples:
        metrics["first_attempt_reward"] = (
            stats.first_attempt_reward_sum / stats.first_attempt_samples
        )
    metrics["generated_prompt_groups"] = float(stats.groups)
    metrics["zero_variance_prompt_groups"] = float(stats.zero_variance_groups)
    metrics["zero_variance_fraction"] = stats.zero_variance_groups / stats.groups
    return metrics
