"""The demo's kills: drawn by seed, struck while the victim holds something."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay.demo.kills import KillPlan, KillPoint, Victim, draw_kill_points, held_groups
from redis_replay.demo.settings import LEAST_STEPS, TRAINER
from redis_replay.demo.witness import Kind, Line, Result


def line(call: str, kind: Kind = Kind.OUTCOME, *, who: str = TRAINER, **facts: Any) -> Line:
    if kind is Kind.OUTCOME:
        facts = {"result": Result.OK, **facts}
    return Line(0, who, 0, 1, kind, call, facts)


CLAIMED = line("select", groups=["g0"])
COMMITTING = line("commit", Kind.INTENT, who="rollout-1", group="g0")


@pytest.mark.parametrize("steps", [LEAST_STEPS, 12, 40, 200])
def test_points_lie_in_the_middle_in_order_and_apart(steps: int) -> None:
    for seed in range(200):
        points = draw_kill_points(seed=seed, steps=steps, server=True)
        assert list(Victim) == [point.victim for point in points]
        numbers = [point.step for point in points]
        assert numbers == sorted(set(numbers))
        assert 1 <= numbers[0]
        assert numbers[-1] < steps


def test_points_are_drawn_by_seed() -> None:
    drawn = [tuple(draw_kill_points(seed=seed, steps=40, server=True)) for seed in range(50)]
    assert drawn == [tuple(draw_kill_points(seed=s, steps=40, server=True)) for s in range(50)]
    assert len(set(drawn)) > 40


def test_a_server_that_is_not_ours_is_not_on_the_plan() -> None:
    points = draw_kill_points(seed=1, steps=40, server=False)
    assert [Victim.TRAINER, Victim.ROLLOUT] == [point.victim for point in points]


@pytest.mark.parametrize("victim", [Victim.TRAINER, Victim.SERVER])
def test_trainer_and_server_die_when_a_batch_was_just_claimed(victim: Victim) -> None:
    plan = KillPlan([KillPoint(victim, 5)])
    assert plan.strike(CLAIMED, step=4, held=8) is None
    assert plan.strike(COMMITTING, step=5, held=8) is None
    assert plan.strike(line("select", Kind.INTENT, step=5), step=5, held=8) is None
    assert victim is plan.strike(CLAIMED, step=6, held=8)
    assert plan.strike(CLAIMED, step=7, held=8) is None


def test_a_rollout_process_dies_in_the_middle_of_its_groups() -> None:
    plan = KillPlan([KillPoint(Victim.ROLLOUT, 5, passed_over=2)])
    struck = [plan.strike(COMMITTING, step=5, held=8) for _ in range(3)]
    assert [None, None, Victim.ROLLOUT] == struck


def test_a_rollout_process_with_hardly_a_group_left_is_spared() -> None:
    plan = KillPlan([KillPoint(Victim.ROLLOUT, 5)])
    assert plan.strike(COMMITTING, step=5, held=3) is None
    assert Victim.ROLLOUT is plan.strike(COMMITTING, step=5, held=4)


def test_a_kill_that_came_too_late_is_made_at_a_later_step() -> None:
    plan = KillPlan([KillPoint(Victim.TRAINER, 5), KillPoint(Victim.ROLLOUT, 6)])
    assert Victim.TRAINER is plan.strike(CLAIMED, step=5, held=8)
    plan.miss(Victim.TRAINER, step=6)
    assert plan.strike(CLAIMED, step=6, held=8) is None
    assert Victim.TRAINER is plan.strike(CLAIMED, step=7, held=8)
    assert Victim.ROLLOUT is plan.strike(COMMITTING, step=7, held=8)


def test_a_trainer_that_began_to_commit_holds_nothing_for_certain() -> None:
    committing = line("commit_step", Kind.INTENT, groups=["g0", "g1"])
    selected = line("select", groups=["g0", "g1"])
    assert {"g0", "g1"} == held_groups([selected])
    assert set() == held_groups([selected, committing])


def test_a_rollout_process_holds_what_it_was_given_and_did_not_commit() -> None:
    lines = [
        line("cut", groups=["g0", "g1", "g2"]),
        line("commit", Kind.INTENT, group="g0"),
        line("abort", Kind.INTENT, group="g1"),
        line("tickets", groups=["g9"]),
        line("tickets", Kind.INTENT),
    ]
    assert {"g2", "g9"} == held_groups(lines)
