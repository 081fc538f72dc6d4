"""The benchmark's table of targets is complete, and every target is measured by something."""

from __future__ import annotations

import pytest

from benchmarks.registry import MEASUREMENTS
from benchmarks.targets import PROFILE_NAMES, SCALED_VERBS, TARGETS, WHOLE, Direction, Target

every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.id)


def test_the_targets_are_p1_to_p17_in_order() -> None:
    assert [f"P{number}" for number in range(1, 18)] == [target.id for target in TARGETS]


def test_every_target_is_measured_and_nothing_else_is() -> None:
    measured = {name for one in MEASUREMENTS for name in one.targets}
    assert {target.id for target in TARGETS} == measured


@every_target
def test_a_target_says_what_it_is_and_how_it_is_measured(target: Target) -> None:
    assert target.what
    assert target.how.endswith(".")
    assert target.parts


@every_target
def test_a_target_is_one_whole_or_has_named_parts(target: Target) -> None:
    assert target.parts.keys() == {WHOLE} or WHOLE not in target.parts


@every_target
def test_an_ambition_is_harder_to_reach_than_what_must_be(target: Target) -> None:
    for part in target.parts.values():
        if part.ambition is not None and part.direction is Direction.AT_LEAST:
            assert part.ambition > part.must
        elif part.ambition is not None:
            assert part.ambition < part.must


def test_payload_and_control_targets_have_a_part_for_each_size_and_verb() -> None:
    parts = {target.id: target.parts.keys() for target in TARGETS}
    assert set(PROFILE_NAMES) == set(parts["P1"]) == set(parts["P2"]) == set(parts["P14"])
    assert {f"{verb} exponent" for verb in SCALED_VERBS} <= set(parts["P4"])
