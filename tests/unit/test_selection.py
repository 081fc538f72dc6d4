"""What a policy asks the store for, as numbers: bounds, versions, and the lags of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redis_replay._redis.lua import load_script
from redis_replay._redis.scripts import Claim
from redis_replay.meta import KVBatchMeta
from redis_replay.samplers.base import BaseSampler
from redis_replay.samplers.factory import create_sampler
from redis_replay.selection import (
    Eviction,
    Rule,
    Selection,
    lag_metrics,
    validate_group_bounds,
    validate_version,
)
from redis_replay.types import MAX_EXACT_INTEGER, MAX_GROUPS_PER_CALL


class Recorder:
    """A buffer that is asked for a selection or an eviction and remembers it."""

    def __init__(self) -> None:
        self.admission: Any = self
        self.groups_per_step = None
        self.gate_window = None
        self.asked: list[Selection | Eviction] = []

    async def bind(self, binding: object) -> None:
        """Accept any policy."""

    async def claim_for_training(self, group_ids: list[str]) -> KVBatchMeta:
        """Claim whatever is named."""
        return meta_of(group_ids=group_ids)

    async def claim(self, selection: Selection) -> tuple[None, int]:
        """Remember a selection; nothing is eligible."""
        self.asked.append(selection)
        return None, 0

    async def evict(self, eviction: Eviction) -> int:
        """Remember an eviction; nothing is dropped."""
        self.asked.append(eviction)
        return 0


class ById(BaseSampler):
    """A policy of a stranger that chooses groups by their names."""

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Never gate."""

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim the first of the alphabet."""
        return await self._finalize_selection(list("abc"), min_prompt_groups, max_prompt_groups)


def meta_of(**extra_info: Any) -> KVBatchMeta:
    """Return a meta of no samples that carries facts about its groups."""
    return KVBatchMeta(
        partition_id="p", task_name=None, sample_ids=[], fields=[], extra_info=extra_info
    )


@pytest.mark.parametrize(("least", "most"), [(1, 1), (1, 2), (3, 3), (1, MAX_GROUPS_PER_CALL)])
def test_bounds_that_select_something_are_accepted(least: int, most: int) -> None:
    validate_group_bounds(least, most)
    BaseSampler._validate_group_bounds(least, most)
    selection = Selection(Rule.BUFFER, 0, 0, least, most)
    assert (least, most) == (selection.min_prompt_groups, selection.max_prompt_groups)


@pytest.mark.parametrize(
    ("least", "most", "message"),
    [
        (0, 1, "min_prompt_groups must be at least 1, got 0"),
        (-3, 1, "min_prompt_groups must be at least 1, got -3"),
        (2, 1, r"max_prompt_groups \(1\) must be at least min_prompt_groups \(2\)"),
        (1, 0, r"max_prompt_groups \(0\) must be at least min_prompt_groups \(1\)"),
        (1, 1025, r"max_prompt_groups \(1025\) must be at most 1024"),
    ],
)
def test_bounds_that_select_nothing_are_refused_with_their_numbers(
    least: int, most: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        validate_group_bounds(least, most)
    with pytest.raises(ValueError, match=message):
        Selection(Rule.BUFFER, 0, 0, least, most)


@pytest.mark.parametrize("value", [0, 1, MAX_EXACT_INTEGER - 1])
def test_a_version_is_any_whole_number_that_a_score_holds_exactly(value: int) -> None:
    validate_version("v", value)
    assert float(value) == value
    assert value == int(float(value))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (-1, ValueError, r"v must be at least 0 and below 2\*\*53 .*got -1"),
        (MAX_EXACT_INTEGER, ValueError, r"got 9007199254740992"),
        (MAX_EXACT_INTEGER + 1, ValueError, r"got 9007199254740993"),
        (True, TypeError, "v must be an int, got True"),
        (1.0, TypeError, r"v must be an int, got 1\.0"),
        ("1", TypeError, "v must be an int, got '1'"),
        (None, TypeError, "v must be an int, got None"),
    ],
)
def test_what_is_no_version_is_refused_by_name_and_value(
    value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        validate_version("v", value)


def test_a_version_may_have_a_larger_floor() -> None:
    validate_version("v", 5, least=5)
    with pytest.raises(ValueError, match="at least 5"):
        validate_version("v", 4, least=5)


@pytest.mark.parametrize("version", [-1, MAX_EXACT_INTEGER, 1.5])
def test_a_selection_for_no_version_is_refused(version: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="current_train_weight"):
        Selection(Rule.ARRIVAL, 0, version, 1, 1)


def test_every_rule_has_its_function_in_the_claim_script() -> None:
    text = load_script(Claim).text
    assert [] == [rule for rule in Rule if f"function pick.{rule.value}()" not in text]
    assert len(Rule) == text.count("function pick.")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("config", "weight", "rule", "lowest"),
    [
        ({"name": "windowed", "max_staleness_versions": 2}, 5, Rule.BUFFER, 3),
        ({"name": "windowed", "max_staleness_versions": 2}, 1, Rule.BUFFER, 0),
        ({"name": "windowed", "max_staleness_versions": 5}, 5, Rule.BUFFER, 0),
        ({"name": "windowed", "sample_freshest_first": True}, 5, Rule.FRESHEST, 4),
        ({"name": "weight_fifo", "max_staleness_versions": 2}, 5, Rule.OLDEST_VERSION, 3),
        ({"name": "weight_fifo", "max_staleness_versions": 9}, 5, Rule.OLDEST_VERSION, 0),
        ({"name": "ready_first", "max_staleness_versions": 2}, 5, Rule.ARRIVAL, 0),
        ({"name": "in_order", "max_lookahead_versions": 2}, 5, Rule.STEP, 0),
    ],
)
async def test_each_policy_asks_for_its_rule_and_its_window(
    config: dict[str, Any], weight: int, rule: Rule, lowest: int
) -> None:
    buffer = Recorder()
    selected = await create_sampler(buffer, config).select(
        current_train_weight=weight, min_prompt_groups=2, max_prompt_groups=3
    )
    assert (None, 0) == selected
    assert [Selection(rule, lowest, weight, 2, 3)] == buffer.asked


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("config", "weight", "asked"),
    [
        ({"name": "windowed", "max_staleness_versions": 2}, 5, [Eviction(below=3)]),
        ({"name": "windowed", "max_staleness_versions": 2}, 1, [Eviction(below=0)]),
        ({"name": "weight_fifo", "max_staleness_versions": 0}, 5, [Eviction(below=5)]),
        ({"name": "in_order"}, 5, [Eviction(below=5, by_target_step=True)]),
        ({"name": "ready_first", "max_staleness_versions": 2}, 5, []),
    ],
)
async def test_each_policy_drops_what_has_left_its_window(
    config: dict[str, Any], weight: int, asked: list[Eviction]
) -> None:
    buffer = Recorder()
    assert 0 == await create_sampler(buffer, config).evict(current_train_weight=weight)
    assert asked == buffer.asked


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["windowed", "ready_first", "weight_fifo", "in_order"])
async def test_impossible_bounds_never_reach_the_buffer(name: str) -> None:
    buffer = Recorder()
    sampler = create_sampler(buffer, {"name": name})
    with pytest.raises(ValueError, match="min_prompt_groups"):
        await sampler.select(current_train_weight=0, min_prompt_groups=0, max_prompt_groups=1)
    assert [] == buffer.asked


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("least", "most", "claimed"),
    [(1, 1, "a"), (1, 2, "ab"), (3, 3, "abc"), (3, 9, "abc"), (4, 9, "")],
)
async def test_a_policy_that_names_groups_claims_the_first_of_them_or_too_few_none(
    least: int, most: int, claimed: str
) -> None:
    sampler = ById(Recorder())  # type: ignore[arg-type]
    meta, groups = await sampler.select(
        current_train_weight=0, min_prompt_groups=least, max_prompt_groups=most
    )
    assert list(claimed) == (meta.extra_info["group_ids"] if meta is not None else [])
    assert len(claimed) == groups


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        ([2, 1, 1, 0], {"lag_min": 0.0, "lag_mean": 1.0, "lag_max": 2.0}),
        ([3], {"lag_min": 3.0, "lag_mean": 3.0, "lag_max": 3.0}),
        ([0, 1], {"lag_min": 0.0, "lag_mean": 0.5, "lag_max": 1.0}),
    ],
)
def test_lag_metrics_are_three_numbers_over_the_selected_groups(
    lags: list[int], expected: dict[str, float]
) -> None:
    assert expected == lag_metrics(meta_of(lags=lags))


def test_a_batch_that_no_selection_made_has_no_lags() -> None:
    assert {} == lag_metrics(meta_of())
    assert {} == lag_metrics(meta_of(lags=[]))
