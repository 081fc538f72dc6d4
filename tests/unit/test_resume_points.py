"""The resume demo's kills: drawn by seed, struck at a line of a log, half of them in flight."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay.demo.resume.points import (
    MODEL_SAVED,
    STEP_COMMITTED,
    KillPoint,
    Place,
    ResumePlan,
    Struck,
    Victim,
    draw_kill_points,
)
from redis_replay.demo.resume.settings import SAVE_EVERY_STEPS, STEPS
from redis_replay.demo.witness import Kind, Line, Result

OWNERS = ["trainer", "rollout-1", "rollout-2"]
IN_COMMIT = Place("rollout", "commit", Kind.INTENT, is_within=True)
RESUMED = Place("trainer", "resume", Kind.OUTCOME, holds=False)


def line(who: str, call: str, kind: Kind = Kind.OUTCOME, **facts: Any) -> Line:
    if kind is Kind.OUTCOME:
        facts = {"result": Result.OK, **facts}
    return Line(0, who, 0, 1, kind, call, facts)


CLAIMED = line("trainer", "select", groups=["g0", "g1"])
COMMITTED = line("trainer", "commit_step")


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("lookahead", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 2, 5, 20, 60])
def test_at_half_of_the_points_or_more_a_process_holds_groups(
    count: int, lookahead: int, ranks: int
) -> None:
    for seed in range(20):
        points = draw_kill_points(seed=seed, count=count, lookahead=lookahead, ranks=ranks)
        assert count == len(points)
        assert 2 * sum(point.place.holds for point in points) >= count


def test_points_are_drawn_by_seed() -> None:
    def drawn(seed: int) -> list[KillPoint]:
        return draw_kill_points(seed=seed, count=20, lookahead=1, ranks=1)

    assert [drawn(seed) for seed in range(9)] == [drawn(seed) for seed in range(9)]
    assert 9 == len({str(drawn(seed)) for seed in range(9)})


@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_points_kill_everything_there_is_and_the_trainer_around_its_saves(
    ranks: int,
) -> None:
    points = draw_kill_points(seed=1, count=20, lookahead=1, ranks=ranks)
    expected = set(Victim) - ({Victim.RANK} if ranks == 1 else set())
    assert expected == {point.victim for point in points}
    assert {MODEL_SAVED, STEP_COMMITTED} <= {point.place for point in points}
    assert 10 == sum(point.victim is Victim.TRAINER for point in points)
    assert any(point.again for point in points)


def test_a_point_after_a_save_lies_at_a_step_whose_model_is_saved() -> None:
    for seed in range(50):
        for point in draw_kill_points(seed=seed, count=20, lookahead=2, ranks=2):
            assert 1 <= point.step <= STEPS - 2
            if point.place is MODEL_SAVED:
                assert 0 == (point.step + 1) % SAVE_EVERY_STEPS


def test_the_trainer_dies_at_its_line_once_the_step_has_come() -> None:
    plan = ResumePlan(KillPoint(Victim.TRAINER, 5, STEP_COMMITTED), OWNERS)
    assert plan.aim(CLAIMED, step=5, held=0) is None
    assert plan.aim(COMMITTED, step=4, held=0) is None
    strike = plan.aim(COMMITTED, step=5, held=0)
    assert strike is not None
    assert (frozenset({"trainer"}), False, 0.0) == (
        strike.owners,
        strike.server,
        strike.delay_seconds,
    )
    assert plan.is_done
    assert plan.aim(COMMITTED, step=6, held=0) is None


def test_what_is_held_at_a_kill_before_a_call_counts_the_groups_of_that_call() -> None:
    committing = line("trainer", "commit_step", Kind.INTENT, groups=["g0", "g1"])
    place = Place("trainer", "commit_step", Kind.INTENT)
    plan = ResumePlan(KillPoint(Victim.TRAINER, 0, place), OWNERS)
    plan.aim(line("rollout-1", "cut", groups=["g2", "g3", "g4"]), step=0, held=0)
    plan.aim(CLAIMED, step=0, held=0)
    plan.aim(committing, step=0, held=0)
    assert [Struck(0, held=2, in_flight=5)] == plan.struck


def test_a_new_session_holds_nothing_of_the_old_one() -> None:
    plan = ResumePlan(KillPoint(Victim.TRAINER, 0, STEP_COMMITTED), OWNERS)
    plan.aim(line("rollout-1", "cut", groups=["g2"]), step=0, held=0)
    plan.aim(line("rollout-1", "attach"), step=0, held=0)
    plan.aim(COMMITTED, step=0, held=0)
    assert [Struck(0, held=0, in_flight=0)] == plan.struck


def test_a_kill_within_a_call_comes_later_than_its_intent() -> None:
    point = KillPoint(Victim.ROLLOUT, 2, IN_COMMIT, passed_over=1, delay_seconds=0.003)
    plan = ResumePlan(point, OWNERS)
    committing = line("rollout-2", "commit", Kind.INTENT, group="g0")
    assert plan.aim(committing, step=2, held=0) is None
    strike = plan.aim(committing, step=2, held=0)
    assert strike is not None
    assert (frozenset({"rollout-2"}), 0.003) == (strike.owners, strike.delay_seconds)


@pytest.mark.parametrize(
    ("victim", "owners"), [(Victim.SERVER, frozenset()), (Victim.ALL, frozenset(OWNERS))]
)
def test_the_server_dies_alone_or_with_all_others(victim: Victim, owners: frozenset[str]) -> None:
    plan = ResumePlan(KillPoint(victim, 0, STEP_COMMITTED), OWNERS)
    strike = plan.aim(COMMITTED, step=0, held=0)
    assert strike is not None
    assert (owners, True) == (strike.owners, strike.server)


def test_a_trainer_that_resumes_is_killed_once_more_where_the_point_says_so() -> None:
    point = KillPoint(Victim.ALL, 3, STEP_COMMITTED, again=RESUMED)
    plan = ResumePlan(point, OWNERS)
    resumed = line("trainer", "resume")
    assert plan.aim(resumed, step=3, held=0) is None
    assert plan.aim(COMMITTED, step=3, held=0) is not None
    assert not plan.is_done
    strike = plan.aim(resumed, step=3, held=0)
    assert strike is not None
    assert (frozenset({"trainer"}), False) == (strike.owners, strike.server)
    assert plan.is_done


def test_a_run_without_a_point_is_left_alone() -> None:
    plan = ResumePlan(None, OWNERS)
    assert plan.is_done
    assert plan.aim(COMMITTED, step=5, held=0) is None
