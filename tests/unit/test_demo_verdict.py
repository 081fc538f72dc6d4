"""The verdict on a demo run, computed from logs: what it counts, explains and finds at fault."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay.demo.settings import SUPERVISOR, TRAINER
from redis_replay.demo.verdict import End, Verdict, judge
from redis_replay.demo.witness import Kind, Line, Result

GROUPS = ["g0", "g1", "g2", "g3"]


class Logs:
    """Logs of a run, written line by line; each line is one tick later."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._numbers = 0

    def _add(self, who: str, life: int, number: int, kind: Kind, call: str, facts: Any) -> None:
        self.lines.append(Line(len(self.lines), who, life, number, kind, call, facts))

    def call(
        self,
        call: str,
        *,
        who: str = "rollout-1",
        life: int = 0,
        result: Result | None = Result.OK,
        found: dict[str, Any] | None = None,
        **facts: Any,
    ) -> Logs:
        """Add a call; without a result, its process died in it."""
        self._numbers += 1
        self._add(who, life, self._numbers, Kind.INTENT, call, facts)
        if result is not None:
            self._add(
                who, life, self._numbers, Kind.OUTCOME, call, {"result": result, **(found or {})}
            )
        return self

    def cut(self, groups: list[str], *, first: int = 0, **options: Any) -> Logs:
        """Add a dispatch."""
        return self.call(
            "cut", groups=groups, first_prompt=first, found={"groups": groups}, **options
        )

    def commit(self, group: str, *, fence: int = 1, **options: Any) -> Logs:
        """Add the commit of a group."""
        return self.call("commit", group=group, fence=fence, **options)

    def commit_step(self, step: int, groups: list[str], **options: Any) -> Logs:
        """Add the commit of a step."""
        facts = {"step": step, "groups": groups, "lags": [0] * len(groups), "reward": 0.5}
        found = {"trained": groups, "aborted": 0}
        return self.call("commit_step", who=TRAINER, found=found, **facts, **options)

    def seen(self, who: str, *, life: int = 0, version: int, prompts: int, **slots: str) -> Logs:
        """Add an observation of the store."""
        self._numbers += 1
        facts = {"trainer_version": version, "prompts": prompts, "slots": slots}
        self._add(who, life, self._numbers, Kind.SEEN, "store", facts)
        return self

    def end(self, *, version: int, prompts: int, **slots: str) -> Verdict:
        """Add the supervisor's last look and judge."""
        return judge(self.seen(SUPERVISOR, version=version, prompts=prompts, **slots).lines)


def undisturbed() -> Logs:
    """Four groups dispatched and committed, two of them trained."""
    logs = Logs().cut(GROUPS)
    for group in GROUPS:
        logs.commit(group)
    return logs.commit_step(0, ["g0", "g1"])


# Counting


def test_groups_are_counted_by_their_end() -> None:
    logs = undisturbed().call("abort", group="g2")
    logs.call("evict", who=TRAINER, stale=["g3"], found={"count": 1, "gone": ["g3"]})
    verdict = logs.cut(["g4"], first=4).end(version=1, prompts=5, g4="reserved")
    assert 5 == verdict.dispatched
    assert {End.TRAINED: 2, End.EVICTED: 1, End.ABORTED: 1} == verdict.ends
    assert 1 == verdict.live
    assert (0, 0, []) == (verdict.lost, verdict.trained_twice, verdict.findings)


def test_committed_steps_keep_their_rewards_and_lags() -> None:
    verdict = undisturbed().end(version=1, prompts=4, g2="ready", g3="ready")
    assert [(0, 0.5, [0, 0])] == [(s.step, s.reward, s.lags) for s in verdict.steps]


def test_tickets_taken_are_counted_as_redispatched() -> None:
    logs = Logs().cut(["g0"]).call("tickets", who="rollout-2", found={"groups": ["g0"]})
    assert 1 == logs.end(version=0, prompts=1, g0="reserved").redispatched


@pytest.mark.parametrize("result", [Result.REFUSED, Result.CANCELLED])
def test_a_call_that_was_refused_or_cancelled_did_not_happen(result: Result) -> None:
    logs = Logs().cut(GROUPS, result=result).cut(["g4"]).call("abort", group="g4", result=result)
    verdict = logs.end(version=0, prompts=1, g4="reserved")
    assert (1, 1, []) == (verdict.dispatched, verdict.live, verdict.findings)


# Faults


def test_a_group_without_an_end_that_is_not_live_is_lost() -> None:
    verdict = undisturbed().end(version=1, prompts=4, g2="ready")
    assert 1 == verdict.lost
    assert ["group g3 is lost: dispatched, never ended, not live"] == verdict.findings


def test_a_group_trained_in_two_steps_is_trained_twice() -> None:
    logs = undisturbed().commit_step(1, ["g1", "g2"])
    verdict = logs.end(version=2, prompts=4, g3="ready")
    assert 1 == verdict.trained_twice
    assert ["group g1 was trained 2 times"] == verdict.findings


def test_a_trained_group_that_is_live_again_is_a_fault() -> None:
    verdict = undisturbed().end(version=1, prompts=4, g1="ready", g2="ready", g3="ready")
    assert ["group g1 has several ends: trained and is live"] == verdict.findings


def test_a_group_with_two_different_ends_is_a_fault() -> None:
    logs = undisturbed().call("abort", group="g1")
    verdict = logs.end(version=1, prompts=4, g2="ready", g3="ready")
    assert ["group g1 has several ends: trained, aborted"] == verdict.findings


def test_a_group_that_nobody_dispatched_is_a_fault() -> None:
    verdict = undisturbed().end(version=1, prompts=4, g2="ready", g3="ready", g9="ready")
    assert ["group g9 is live and was never dispatched"] == verdict.findings
    verdict = Logs().commit_step(0, ["g7"]).end(version=1, prompts=0)
    assert ["group g7 ended and was never dispatched"] == verdict.findings


def test_prompts_that_no_cut_dispatched_are_lost() -> None:
    logs = Logs().cut(["g0"], first=0).cut(["g3"], first=3)
    verdict = logs.end(version=0, prompts=4, g0="ready", g3="ready")
    assert (2, ["prompts were skipped: [1, 2]"]) == (verdict.lost, verdict.findings)


def test_prompts_that_two_cuts_dispatched_are_a_fault() -> None:
    logs = Logs().cut(["g0"], first=0).cut(["h0"], first=0)
    verdict = logs.end(version=0, prompts=1, g0="ready", h0="ready")
    assert ["prompts were dispatched twice: [0]"] == verdict.findings


def test_a_step_committed_with_other_groups_than_its_batch_is_a_fault() -> None:
    logs = Logs().cut(["g0", "g1"])
    logs.call(
        "commit_step",
        who=TRAINER,
        step=0,
        groups=["g0"],
        lags=[0],
        reward=0.0,
        found={"trained": ["g1"]},
    )
    [finding] = logs.end(version=1, prompts=2, g1="ready").findings
    assert finding.startswith("other groups than its batch were trained by commit_step")


def test_an_eviction_that_drops_more_than_went_is_a_fault() -> None:
    logs = undisturbed()
    logs.call("evict", who=TRAINER, stale=["g2"], found={"count": 2, "gone": ["g2"]})
    [finding] = logs.end(version=1, prompts=4, g3="ready").findings
    assert finding.startswith("2 groups were dropped, 1 went, by evict")


def test_a_step_trained_again_after_its_commit_is_counted() -> None:
    logs = undisturbed().commit_step(0, ["g2", "g3"], result=Result.REFUSED)
    assert 1 == logs.end(version=1, prompts=4, g2="ready", g3="ready").retrained_steps


def test_a_step_that_was_not_committed_may_be_trained_again() -> None:
    logs = Logs().cut(["g0"]).commit_step(0, ["g0"], result=None)
    logs.seen(TRAINER, life=1, version=0, prompts=1, g0="ready")
    verdict = logs.commit_step(0, ["g0"], life=1).end(version=1, prompts=1)
    assert (0, 0, []) == (verdict.retrained_steps, verdict.trained_twice, verdict.findings)


def test_a_committed_group_that_is_generated_again_is_counted() -> None:
    logs = undisturbed().commit("g2", fence=2, result=Result.REFUSED)
    assert 1 == logs.end(version=1, prompts=4, g2="ready", g3="ready").regenerated_committed


def test_repeating_a_commit_with_the_same_attempt_is_no_new_generation() -> None:
    logs = undisturbed().commit("g2", fence=1)
    assert 0 == logs.end(version=1, prompts=4, g2="ready", g3="ready").regenerated_committed


def test_a_run_that_nobody_looked_at_in_the_end_has_lost_everything() -> None:
    assert 4 == judge(undisturbed().lines).lost


# Open calls


def test_a_call_that_no_observation_follows_is_lost() -> None:
    logs = Logs().call("select", who=TRAINER, step=0, result=None)
    verdict = judge(logs.lines)
    assert 1 == verdict.lost
    assert "nothing explains what came of select (call 1 of trainer, life 0)" in verdict.findings


def test_an_observation_by_somebody_else_explains_nothing() -> None:
    logs = Logs().cut(["g0"]).commit_step(0, ["g0"], result=None)
    logs.seen("rollout-1", life=1, version=1, prompts=1)
    assert 0 == judge(logs.lines).explained


@pytest.mark.parametrize(("version", "slots"), [(1, {}), (0, {"g0": "ready"})])
def test_an_open_step_happened_if_the_next_trainer_found_it_committed(
    version: int, slots: dict[str, str]
) -> None:
    logs = Logs().cut(["g0"]).commit_step(0, ["g0"], result=None)
    logs.seen(TRAINER, life=1, version=version, prompts=1, **slots)
    verdict = logs.end(version=version, prompts=1, **slots)
    assert (version, 1 - version) == (verdict.ends[End.TRAINED], verdict.live)
    assert (1, 0, []) == (verdict.explained, verdict.lost, verdict.findings)


def test_an_open_cut_happened_if_its_groups_were_met_again() -> None:
    logs = Logs().cut(["g0"], result=None)
    logs.seen("rollout-1", life=1, version=0, prompts=1, g0="reserved")
    verdict = logs.end(version=0, prompts=1, g0="ready")
    assert (1, 1, 0) == (verdict.dispatched, verdict.live, verdict.lost)


def test_an_open_cut_did_not_happen_if_another_cut_took_its_prompts() -> None:
    logs = Logs().cut(["g0"], result=None).cut(["h0"], who="rollout-2")
    verdict = logs.end(version=0, prompts=1, h0="ready")
    assert (1, 1, 0, []) == (verdict.dispatched, verdict.live, verdict.lost, verdict.findings)


def test_an_open_cut_whose_groups_vanished_does_not_hide() -> None:
    logs = Logs().cut(["g0", "g1"], result=None).cut(["g2"], first=2)
    verdict = logs.end(version=0, prompts=3, g2="ready")
    assert (2, ["prompts were skipped: [0, 1]"]) == (verdict.lost, verdict.findings)


def test_half_of_a_cut_is_a_fault() -> None:
    logs = Logs().cut(["g0", "g1"], result=None)
    findings = logs.end(version=0, prompts=2, g0="reserved").findings
    assert any(finding.startswith("only 1 of 2 groups appeared") for finding in findings)


@pytest.mark.parametrize(("slots", "aborted"), [({}, 1), ({"g0": "reserved"}, 0)])
def test_an_open_abort_happened_if_the_group_is_gone(slots: dict[str, str], aborted: int) -> None:
    logs = Logs().cut(["g0"]).call("abort", group="g0", result=None)
    verdict = logs.end(version=0, prompts=1, **slots)
    assert (aborted, 0, []) == (verdict.ends[End.ABORTED], verdict.lost, verdict.findings)


def test_an_open_eviction_excuses_stale_groups_only() -> None:
    logs = undisturbed().call("evict", who=TRAINER, stale=["g2"], result=None)
    verdict = logs.end(version=1, prompts=4)
    assert (1, 1) == (verdict.ends[End.EVICTED], verdict.lost)
    assert ["group g3 is lost: dispatched, never ended, not live"] == verdict.findings


def test_an_open_commit_that_was_found_ready_must_not_be_generated_again() -> None:
    logs = Logs().cut(["g0"]).commit("g0", result=None)
    logs.seen("rollout-1", life=1, version=0, prompts=1, g0="ready")
    logs.commit("g0", fence=2, life=1, result=Result.REFUSED)
    assert 1 == logs.end(version=0, prompts=1, g0="ready").regenerated_committed


def test_an_open_commit_that_was_found_reserved_may_be_generated_again() -> None:
    logs = Logs().cut(["g0"]).commit("g0", result=None)
    logs.seen("rollout-1", life=1, version=0, prompts=1, g0="reserved")
    logs.commit("g0", fence=2, life=1)
    verdict = logs.end(version=0, prompts=1, g0="ready")
    assert (0, []) == (verdict.regenerated_committed, verdict.findings)


def test_a_call_that_could_not_reach_the_server_is_open() -> None:
    logs = Logs().cut(["g0"]).commit_step(0, ["g0"], result=Result.UNKNOWN)
    verdict = logs.end(version=1, prompts=1)
    assert (1, 1) == (verdict.ends[End.TRAINED], verdict.explained)


def test_lines_are_judged_in_the_order_of_their_clock() -> None:
    logs = undisturbed()
    logs.seen(SUPERVISOR, version=1, prompts=4, g2="ready", g3="ready")
    assert judge(logs.lines) == judge(list(reversed(logs.lines)))
