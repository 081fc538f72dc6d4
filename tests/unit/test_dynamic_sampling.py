"""Which rewards vote and which groups carry a signal."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_replay.dynamic_sampling import (
    Completion,
    PromptGroupRecord,
    StepRewardStats,
    drain_step_reward_metrics,
    mask_sample_flagged,
    participating_rewards,
    record_group_rewards,
    rewards_carry_no_signal,
)


def group(
    rewards: Sequence[Any],
    *,
    truncated: Sequence[int] = (),
    masked: Sequence[int] = (),
    loss_multiplier: float = 1.0,
) -> PromptGroupRecord:
    """Return a group with these rewards and the named rows truncated or masked."""
    return PromptGroupRecord(
        prompt_idx=7,
        prompt=[{"role": "user", "content": "2 + 2"}],
        extra_env_info=None,
        metadata={},
        completions=[
            Completion(
                message_log=[],
                env_extras={"mask_sample": True} if row in masked else None,
                truncated=row in truncated,
                reward=reward,
            )
            for row, reward in enumerate(rewards)
        ],
        rollout_metrics={},
        loss_multiplier=loss_multiplier,
    )


def voters(record: PromptGroupRecord, policy: str | None, *, overlong: bool) -> list[float]:
    return participating_rewards(record, masked_reward_policy=policy, overlong_filtering=overlong)


def record(
    tally: dict[int, StepRewardStats],
    step: int | None,
    rewards: Sequence[object],
    *,
    replacement: int = 0,
    dropped: bool = False,
) -> None:
    record_group_rewards(tally, step, rewards, replacement_index=replacement, zero_variance=dropped)


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (None, False),
        ({}, False),
        ({"reward": 1}, False),
        ({"instance_config": None}, False),
        ({"instance_config": {}}, False),
        ({"mask_sample": False, "instance_config": None}, False),
        ({"mask_sample": 0}, False),
        ({"mask_sample": None}, False),
        ({"mask_sample": True}, True),
        ({"mask_sample": 1, "instance_config": None}, True),
        ({"mask_sample": np.True_}, True),
        ({"instance_config": {"mask_sample": True}}, True),
        ({"mask_sample": False, "instance_config": {"mask_sample": True}}, True),
        ({"mask_sample": True, "instance_config": {"mask_sample": False}}, True),
        ({"mask_sample": False, "instance_config": {"mask_sample": False}}, False),
    ],
)
def test_a_sample_is_masked_by_either_of_the_two_flags(
    extra: dict[str, Any] | None, expected: bool
) -> None:
    assert expected is mask_sample_flagged(extra)


def test_an_instance_config_that_could_hide_a_flag_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="instance_config must be a mapping or None, got list"):
        mask_sample_flagged({"instance_config": ["mask_sample"]})


@pytest.mark.parametrize(
    ("rewards", "truncated", "policy", "overlong", "expected"),
    [
        ([0, 1, 1, 1], [0], "exclude", True, [1.0, 1.0, 1.0]),
        ([0, 1, 1, 1], [0], "exclude", False, [0.0, 1.0, 1.0, 1.0]),
        ([0, 1, 1, 1], [0], "include", True, [0.0, 1.0, 1.0, 1.0]),
        ([0, 1, 1, 1], [0], None, True, [0.0, 1.0, 1.0, 1.0]),
        ([1, 0, 0, 0], [1], "exclude", True, [1.0, 0.0, 0.0]),
    ],
)
def test_a_truncated_row_votes_unless_the_loss_will_mask_it(
    rewards: list[int], truncated: list[int], policy: str | None, overlong: bool, expected: Any
) -> None:
    actual = voters(group(rewards, truncated=truncated), policy, overlong=overlong)

    assert expected == actual
    assert (len(set(expected)) == 1) is rewards_carry_no_signal(actual)


def test_a_group_whose_only_spread_is_in_rows_masked_later_is_dropped_but_reported_whole() -> None:
    tally: dict[int, StepRewardStats] = {}
    for policy, overlong in itertools.product(("exclude", "include", None), (True, False)):
        votes = voters(group([0, 1, 1, 1], truncated=[0]), policy, overlong=overlong)
        dropped = rewards_carry_no_signal(votes)
        assert (policy == "exclude" and overlong) is dropped
        record(tally, 1, [0, 1, 1, 1], dropped=dropped)

        assert 0.75 == drain_step_reward_metrics(tally, 1)["unfiltered_reward"]


def test_a_group_masked_whole_has_no_voters_and_one_masked_but_for_a_row_no_signal() -> None:
    all_masked = group([0.2, 0.4, 0.6, 0.8], masked=[0, 1, 2, 3])
    one_left = group([0, 1, 1, 1], masked=[1, 2, 3])

    assert [] == voters(all_masked, "exclude", overlong=False)
    assert [0.2, 0.4, 0.6, 0.8] == voters(all_masked, "include", overlong=False)
    assert [0.0] == voters(one_left, "exclude", overlong=False)

    tally: dict[int, StepRewardStats] = {}
    for each in (all_masked, one_left):
        votes = voters(each, "exclude", overlong=False)
        record(
            tally,
            2,
            [completion.reward for completion in each.completions],
            dropped=rewards_carry_no_signal(votes),
        )
    expected = StepRewardStats(
        groups=2,
        zero_variance_groups=2,
        reward_sum=5.0,
        samples=8,
        first_attempt_reward_sum=5.0,
        first_attempt_samples=8,
    )
    assert {2: expected} == tally
    assert 0.625 == drain_step_reward_metrics(tally, 2)["unfiltered_reward"]


@pytest.mark.parametrize("policy", ["include", "exclude", None])
@pytest.mark.parametrize("weight", [0, 0.0, -0.0, False, np.float32(0)])
def test_a_prompt_of_weight_zero_has_no_voters_under_any_policy(
    policy: str | None, weight: Any
) -> None:
    record_of_no_weight = group([0, 1, 0, 1], loss_multiplier=weight)

    assert [] == voters(record_of_no_weight, policy, overlong=False)


@pytest.mark.parametrize("weight", [-1.0, 0.5, 5e-324, 2, True])
def test_a_negative_or_fractional_weight_is_not_zero(weight: float) -> None:
    assert [0.0, 1.0] == voters(group([0, 1], loss_multiplier=weight), "exclude", overlong=True)


def test_every_combination_of_flags_lets_exactly_the_unmasked_rows_vote() -> None:
    rows = list(itertools.product((False, True), repeat=2))
    settings = itertools.product(("include", "exclude", None), (False, True), (0.0, 1.0))
    for policy, overlong, weight in settings:
        for flags in itertools.product(rows, repeat=3):
            rewards = [0.25, 0.5, 0.75]
            expected = [
                reward
                for reward, (masked, truncated) in zip(rewards, flags, strict=True)
                if weight and (policy != "exclude" or not (masked or (truncated and overlong)))
            ]
            actual = voters(
                group(
                    rewards,
                    masked=[row for row in range(3) if flags[row][0]],
                    truncated=[row for row in range(3) if flags[row][1]],
                    loss_multiplier=weight,
                ),
                policy,
                overlong=overlong,
            )
            assert expected == actual, (policy, overlong, weight, flags)


@pytest.mark.parametrize("policy", ["Exclude", "drop", "", False, 0])
def test_another_masked_reward_policy_is_refused(policy: Any) -> None:
    for weight in (0.0, 1.0):
        with pytest.raises(ValueError, match="masked_reward_policy must be"):
            voters(group([0, 1], loss_multiplier=weight), policy, overlong=False)


@pytest.mark.parametrize("weight", [0.0, 1.0])
@pytest.mark.parametrize("policy", ["include", "exclude", None])
def test_a_reward_that_is_not_finite_is_refused_even_where_it_does_not_vote(
    policy: str | None, weight: float
) -> None:
    record_with_nan = group([0, 1, math.nan], masked=[2], loss_multiplier=weight)

    with pytest.raises(ValueError, match="prompt 7, completion 2: reward is nan"):
        voters(record_with_nan, policy, overlong=False)


def test_a_reward_of_a_wrong_type_is_refused_with_its_prompt_and_row() -> None:
    with pytest.raises(TypeError, match=r"prompt 7, completion 1: reward must be .* got dict"):
        voters(group([0, {"acc": 1}]), None, overlong=False)


def test_a_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt 7: loss_multiplier is nan"):
        voters(group([0, 1], loss_multiplier=math.nan), None, overlong=False)


def test_rewards_of_all_libraries_vote_as_plain_floats() -> None:
    rewards = [True, 0, 1, np.float32(0.5), np.float64(0.5), np.int64(2)]
    actual = voters(group(rewards), None, overlong=False)

    assert [1.0, 0.0, 1.0, 0.5, 0.5, 2.0] == actual
    assert [float] * 6 == [type(reward) for reward in actual]
    tally: dict[int, StepRewardStats] = {}
    record(tally, 0, rewards)
    assert 5.0 == tally[0].reward_sum
    assert float is type(tally[0].reward_sum)


@pytest.mark.parametrize(
    "rewards",
    [
        [0.95] * 8,
        [0.1] * 3,
        [0.7] * 3,
        [1 / 3] * 6,
        [-1, -1, -1, -1],
        [0.5] * 4,
        [0.0, -0.0],
        [-0.0, -0.0],
        [True, True],
        [True, 1, 1.0, np.float32(1), np.array(1)],
        [5.0],
        [],
        [0, 0, 0, 0],
    ],
)
def test_equal_rewards_carry_no_signal_whatever_their_rounded_deviation(
    rewards: list[object],
) -> None:
    assert rewards_carry_no_signal(rewards) is True


@pytest.mark.parametrize(
    "rewards",
    [
        [0.3, 0.1 + 0.2],
        [0.1 + 0.2, 0.3],
        [1.0, 1.0 + 1e-9],
        [1.0, math.nextafter(1.0, 2.0)],
        [0.0, 1e-300],
        [0.0, 5e-324],
        [-1, 1, -1, 1],
        [-0.5, -0.25],
        [True, False],
        [1e308, -1e308],
        [0.1, np.float32(0.1)],
        [0, 0, -0.5, -1.0],
        [0, 0, 0, 1],
    ],
)
def test_rewards_one_ulp_apart_carry_a_signal_at_any_mean(rewards: list[object]) -> None:
    assert rewards_carry_no_signal(rewards) is False


@pytest.mark.parametrize(
    ("rewards", "position"),
    [
        ([math.inf, math.inf], 0),
        ([math.inf, 1.0], 0),
        ([-math.inf, math.inf], 0),
        ([math.nan], 0),
        ([0.0, 1.0, math.nan], 2),
        ([1.0, 1.0, 1.0, np.float32("inf")], 3),
    ],
)
def test_a_group_with_a_reward_that_is_not_finite_is_neither_kept_nor_dropped(
    rewards: list[object], position: int
) -> None:
    tally: dict[int, StepRewardStats] = {}
    for refuse in (lambda: rewards_carry_no_signal(rewards), lambda: record(tally, 1, rewards)):
        with pytest.raises(ValueError, match=f"^reward {position} is"):
            refuse()
    assert {} == tally


@pytest.mark.parametrize(
    "rewards", [[{"acc": 1}], ["1.0"], [None], [[1.0], [0.0]], np.ones((4, 1)), np.ones((2, 1, 1))]
)
def test_a_group_with_something_else_than_numbers_is_refused(rewards: Any) -> None:
    with pytest.raises(TypeError, match=r"^reward 0 must be one number"):
        rewards_carry_no_signal(rewards)


def test_the_signal_is_decided_on_the_list_given_raw_or_shaped() -> None:
    raw, shaped = [0, 0, 0, 0], [0, 0, -0.5, -1.0]

    assert rewards_carry_no_signal(raw)
    assert not rewards_carry_no_signal(shaped)


def test_every_short_list_carries_a_signal_exactly_when_it_holds_two_values() -> None:
    values = (-1.0, -0.0, 0.0, 0.3, 0.1 + 0.2)
    for size in range(5):
        for rewards in itertools.product(values, repeat=size):
            assert (len(set(rewards)) <= 1) is rewards_carry_no_signal(rewards), rewards


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_any_list_carries_a_signal_exactly_when_it_holds_two_values(rewards: list[float]) -> None:
    assert (len(set(rewards)) <= 1) is rewards_carry_no_signal(rewards)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (mask_sample_flagged, "extra"),
        (rewards_carry_no_signal, "rewards"),
        (participating_rewards, "record, *, masked_reward_policy, overlong_filtering"),
        (
            record_group_rewards,
            "step_rewards, target_step, rewards, *, replacement_index, zero_variance",
        ),
        (drain_step_reward_metrics, "step_rewards, step"),
        (Completion, "message_log, env_extras, truncated, reward"),
        (
            PromptGroupRecord,
            "prompt_idx, prompt, extra_env_info, metadata, completions, rollout_metrics, "
            "loss_multiplier",
        ),
    ],
)
def test_a_public_name_keeps_the_parameters_of_its_source(
    function: Callable[..., object], parameters: str
) -> None:
    signature = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for parameter in signature.parameters.values()
    ]

    assert f"({parameters})" == str(inspect.Signature(bare))
