"""Samples become figures, figures are held against limits, and the document says it all."""

from __future__ import annotations

import json

import pytest

from benchmarks.results import Figure, Found, Outcome, document_of, outcomes_of
from benchmarks.targets import TARGETS, WHOLE, Target, at_least, at_most, target_of


def outcome(samples: dict[str, list[float]], **parts: object) -> Outcome:
    """Return the outcome of a target with these parts."""
    target = Target("P0", "what", "how.", parts)  # type: ignore[arg-type]
    return Outcome(target, {name: Figure.of(listed) for name, listed in samples.items()})


def test_a_figure_is_the_median_with_the_lowest_and_the_highest() -> None:
    assert Figure(2.0, 1.0, 9.0) == Figure.of([9.0, 1.0, 2.0])


@pytest.mark.parametrize(("value", "holds"), [(0.9, False), (1.0, True), (1.1, True)])
def test_a_value_that_should_be_large_holds_from_its_limit_on(value: float, holds: bool) -> None:
    assert holds == at_least(1.0).holds(value)


@pytest.mark.parametrize(("value", "holds"), [(0.9, True), (1.0, True), (1.1, False)])
def test_a_value_that_should_be_small_holds_up_to_its_limit(value: float, holds: bool) -> None:
    assert holds == at_most(1.0).holds(value)


def test_a_target_holds_when_all_its_parts_do() -> None:
    parts = {"a": at_least(1.0), "b": at_most(1.0)}
    assert outcome({"a": [2.0], "b": [0.5]}, **parts).holds is True
    assert outcome({"a": [2.0], "b": [1.5]}, **parts).holds is False


def test_a_part_that_was_not_measured_is_neither_kept_nor_broken() -> None:
    parts = {"a": at_least(1.0), "b": at_most(1.0)}
    some = outcome({"a": [2.0]}, **parts)
    assert (True, False) == (some.holds, some.is_whole)
    none = outcome({}, **parts)
    assert (None, False) == (none.holds, none.is_whole)


def test_every_target_has_an_outcome_in_order_measured_or_not() -> None:
    outcomes = outcomes_of(Found(samples={"P5": {WHOLE: [3.0]}}))
    assert [target.id for target in TARGETS] == [one.target.id for one in outcomes]
    assert ["P5"] == [one.target.id for one in outcomes if one.figures]


@pytest.mark.parametrize("samples", [{"P5": {"nothing": [1.0]}}, {"P99": {WHOLE: [1.0]}}])
def test_samples_of_a_part_that_no_target_has_are_an_error(
    samples: dict[str, dict[str, list[float]]],
) -> None:
    with pytest.raises(ValueError, match="has no parts"):
        outcomes_of(Found(samples=samples))


def test_measurements_of_the_same_target_are_joined() -> None:
    found = Found(samples={"P8": {"1,000 groups": [1.0]}})
    found.add(Found(samples={"P8": {"10,000 groups": [2.0]}}, details={"x": 1}))
    assert {"1,000 groups": [1.0], "10,000 groups": [2.0]} == found.samples["P8"]
    assert {"x": 1} == found.details


def test_the_document_has_value_limits_spread_and_verdict_of_each_target() -> None:
    found = Found(samples={"P5": {WHOLE: [6.0, 8.0, 9.0]}, "P1": {"small": [0.3]}})
    document = json.loads(json.dumps(document_of(found, {"machine": {"cores": 2}})))
    assert {"cores": 2} == document["machine"]
    assert [target.id for target in TARGETS] == list(document["targets"])
    five = document["targets"]["P5"]
    assert (8.0, 7.0, 4.0) == (five["value"], five["must"], five["ambition"])
    assert ([6.0, 9.0], False) == (five["spread"], five["holds"])
    one = document["targets"]["P1"]
    assert ({"small": 0.3}, {"small": [0.3, 0.3]}) == (one["value"], one["spread"])
    assert ({"small": 0.25, "standard": 0.45, "long": 0.6}, True) == (one["must"], one["holds"])
    assert (None, None) == (document["targets"]["P9"]["value"], document["targets"]["P9"]["holds"])


def test_a_target_is_found_by_its_id() -> None:
    assert "P12" == target_of("P12").id
