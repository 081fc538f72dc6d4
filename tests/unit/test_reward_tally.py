"""The reward tally of a step: what is added, what is reported, what is forgotten."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_replay.dynamic_sampling import (
    StepRewardStats,
    drain_step_reward_metrics,
    record_group_rewards,
)


def record(
    tally: dict[int, StepRewardStats],
    step: int | None,
    rewards: Sequence[object],
    *,
    replacement: int = 0,
    dropped: bool = False,
) -> None:
    record_group_rewards(tally, step, rewards, replacement_index=replacement, zero_variance=dropped)


def test_a_new_tally_is_all_zero() -> None:
    stats = StepRewardStats()

    assert (0, 0, 0.0, 0, 0.0, 0) == (
        stats.groups,
        stats.zero_variance_groups,
        stats.reward_sum,
        stats.samples,
        stats.first_attempt_reward_sum,
        stats.first_attempt_samples,
    )


def test_a_replacement_counts_in_the_step_but_not_in_its_first_attempts() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 4, [0, 0], dropped=True)
    record(tally, 4, [0, 1, 1, 1], replacement=1, dropped=True)

    assert {
        "unfiltered_reward": 0.5,
        "first_attempt_reward": 0.0,
        "generated_prompt_groups": 2.0,
        "zero_variance_prompt_groups": 2.0,
        "zero_variance_fraction": 1.0,
    } == drain_step_reward_metrics(tally, 4)


def test_dropped_groups_and_their_replacements_all_count_over_rows() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 3, [1, 0, 1, 1])
    record(tally, 3, [0, 0, 0, 0], dropped=True)
    record(tally, 3, [1, 1, 0, 0], replacement=1)
    record(tally, 3, [1, 1, 1, 1], dropped=True)

    assert {
        "unfiltered_reward": 0.5625,
        "first_attempt_reward": 7 / 12,
        "generated_prompt_groups": 4.0,
        "zero_variance_prompt_groups": 2.0,
        "zero_variance_fraction": 0.5,
    } == drain_step_reward_metrics(tally, 3)


def test_a_drained_step_is_forgotten_with_all_older_ones_and_an_unstamped_group_never_counts() -> (
    None
):
    tally: dict[int, StepRewardStats] = {}
    record(tally, 7, [1, 0, 1, 0])
    record(tally, 7, [1, 1, 1, 1], dropped=True)
    record(tally, 7, [0, 0, 0, 1], replacement=1)
    record(tally, None, [1, 1])
    record(tally, 6, [1, 0])

    metrics = drain_step_reward_metrics(tally, 7)
    assert {
        "unfiltered_reward": 7 / 12,
        "first_attempt_reward": 6 / 8,
        "generated_prompt_groups": 3.0,
        "zero_variance_prompt_groups": 1.0,
        "zero_variance_fraction": 1 / 3,
    } == metrics
    assert metrics == json.loads(json.dumps(metrics))
    assert [{}, {}, {}] == [drain_step_reward_metrics(tally, step) for step in (7, 6, 8)]


def test_a_drain_leaves_exactly_the_newer_steps() -> None:
    tally: dict[int, StepRewardStats] = {}
    for step in (1, 2, 3, 4):
        record(tally, step, [1.0])

    assert 1.0 == drain_step_reward_metrics(tally, 3)["unfiltered_reward"]
    assert [4] == list(tally)
    assert {} == drain_step_reward_metrics(tally, 3)
    assert [4] == list(tally)
    assert {} == drain_step_reward_metrics(tally, 9)
    assert {} == tally


def test_every_set_of_steps_keeps_those_above_the_drained_one() -> None:
    for size in range(5):
        for steps in itertools.combinations(range(4), size):
            for drained in range(-1, 5):
                tally = {step: StepRewardStats(groups=1, samples=1) for step in steps}
                metrics = drain_step_reward_metrics(tally, drained)
                assert (drained in steps) is bool(metrics), (steps, drained)
                assert [step for step in steps if step > drained] == sorted(tally)


def test_a_straggler_of_a_drained_step_is_dropped_by_the_next_drain_unreported() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 3, [1])
    drain_step_reward_metrics(tally, 3)
    record(tally, 3, [0])
    record(tally, 4, [1])

    assert 1.0 == drain_step_reward_metrics(tally, 4)["unfiltered_reward"]
    assert {} == tally


def test_the_mean_is_over_rows_and_not_over_groups() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 0, [1, 1, 1, 1])
    record(tally, 0, [0])

    assert 4 / 5 == drain_step_reward_metrics(tally, 0)["unfiltered_reward"]


def test_a_step_of_replacements_only_reports_no_first_attempt() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 1, [1, 0], replacement=2)

    assert {
        "unfiltered_reward": 0.5,
        "generated_prompt_groups": 1.0,
        "zero_variance_prompt_groups": 0.0,
        "zero_variance_fraction": 0.0,
    } == drain_step_reward_metrics(tally, 1)


def test_a_step_of_too_hard_prompts_reports_all_of_them() -> None:
    tally: dict[int, StepRewardStats] = {}
    for _, attempt in itertools.product(range(2), range(4)):
        record(tally, 0, [0, 0, 0, 0], replacement=attempt, dropped=True)

    assert {
        "unfiltered_reward": 0.0,
        "first_attempt_reward": 0.0,
        "generated_prompt_groups": 8.0,
        "zero_variance_prompt_groups": 8.0,
        "zero_variance_fraction": 1.0,
    } == drain_step_reward_metrics(tally, 0)


def test_a_step_of_negative_rewards_reports_its_negative_mean() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 0, [-1, -1, -1, -1], dropped=True)
    record(tally, 0, [-1, 1, -1, 1])
    record(tally, 0, [-0.5, -0.25])

    assert -0.475 == drain_step_reward_metrics(tally, 0)["unfiltered_reward"]


def test_the_flag_is_taken_as_given_and_not_computed_again() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 0, [0, 1], dropped=True)
    record(tally, 0, [1, 1], dropped=False)

    assert 1 == tally[0].zero_variance_groups


def test_a_group_without_rows_has_no_mean() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 0, [], dropped=True)

    assert {
        "generated_prompt_groups": 1.0,
        "zero_variance_prompt_groups": 1.0,
        "zero_variance_fraction": 1.0,
    } == drain_step_reward_metrics(tally, 0)


@pytest.mark.parametrize("step", [0, None])
def test_a_negative_replacement_index_is_refused_and_records_nothing(step: int | None) -> None:
    tally: dict[int, StepRewardStats] = {}
    with pytest.raises(ValueError, match="replacement_index must be non-negative, got -1"):
        record(tally, step, [1.0], replacement=-1)

    assert {} == tally


def test_extreme_rewards_that_cancel_have_a_finite_mean() -> None:
    tally: dict[int, StepRewardStats] = {}
    record(tally, 0, [1e308, -1e308])

    assert 0.0 == drain_step_reward_metrics(tally, 0)["unfiltered_reward"]


def test_rewards_whose_sum_no_float_holds_are_refused_and_change_nothing() -> None:
    tally: dict[int, StepRewardStats] = {}
    with pytest.raises(ValueError, match="too large to be summed"):
        record(tally, 0, [1e308, 1e308])
    assert {} == tally

    record(tally, 0, [-1e308], replacement=1)
    record(tally, 0, [1e308])
    before = StepRewardStats(2, 0, 0.0, 2, 1e308, 1)
    assert {0: before} == tally
    with pytest.raises(ValueError, match="first-attempt reward sum of step 0"):
        record(tally, 0, [1e308])
    record(tally, 1, [1e308], replacement=1)
    with pytest.raises(ValueError, match=r"^the reward sum of step 1"):
        record(tally, 1, [1e308], replacement=1)
    assert {0: before, 1: StepRewardStats(1, 0, 1e308, 1, 0.0, 0)} == tally


@given(
    st.lists(
        st.tuples(
            st.sampled_from([None, 0, 1, 2]),
            st.lists(st.integers(-8, 8), min_size=1, max_size=4),
            st.integers(0, 2),
            st.booleans(),
        ),
        max_size=12,
    ),
    st.integers(-1, 3),
)
def test_any_history_reports_what_a_plain_count_of_its_rows_reports(
    history: list[tuple[int | None, list[int], int, bool]], step: int
) -> None:
    tally: dict[int, StepRewardStats] = {}
    for target, rewards, attempt, dropped in history:
        record(tally, target, rewards, replacement=attempt, dropped=dropped)
    groups = [each for each in history if each[0] == step]
    rows = [row for each in groups for row in each[1]]
    first = [row for each in groups if each[2] == 0 for row in each[1]]
    expected: dict[str, float] = {}
    if groups:
        dropped_groups = sum(each[3] for each in groups)
        expected = {
            "unfiltered_reward": sum(rows) / len(rows),
            "generated_prompt_groups": len(groups),
            "zero_variance_prompt_groups": dropped_groups,
            "zero_variance_fraction": dropped_groups / len(groups),
        }
    if first:
        expected["first_attempt_reward"] = sum(first) / len(first)

    assert expected == drain_step_reward_metrics(tally, step)
