"""The verdict on a resume run, computed from logs: what a restore undoes, and what it may not."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay.demo.resume.settings import GROUPS_PER_STEP, STEPS
from redis_replay.demo.resume.verdict import PROMPTS, ResumeVerdict, judge
from redis_replay.demo.settings import SUPERVISOR, TRAINER
from redis_replay.demo.witness import Kind, Line, Result

HOST = "rollout-1"


class Run:
    """The logs of a run with one host and no lookahead; each line is one tick later."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.epoch = 1
        self.life = 0
        self.groups: dict[int, str] = {}
        self.payloads: dict[str, int] = {}
        self.version = 0
        self.position = 0
        self.resume(0)

    def add(self, who: str, kind: Kind, call: str, **facts: Any) -> None:
        life = self.life if who == TRAINER else 0
        number = len(self.lines)
        if kind is Kind.OUTCOME:
            number = next(ln.number for ln in reversed(self.lines) if ln.call == call)
        self.lines.append(Line(len(self.lines), who, life, number, kind, call, facts))

    def call(self, who: str, call: str, *, is_open: bool = False, **facts: Any) -> None:
        self.add(who, Kind.INTENT, call, **facts)
        if not is_open:
            self.add(who, Kind.OUTCOME, call, **{"result": Result.OK, "action": "restore", **facts})

    def see(self, who: str) -> None:
        facts = {"store_epoch": self.epoch, "trainer_version": self.version}
        states = dict.fromkeys(self.groups.values(), "ready")
        self.add(
            who,
            Kind.SEEN,
            "store",
            **facts,
            prompts=self.position,
            slots=states,
            payloads=dict(self.payloads),
        )

    def resume(self, step: int) -> None:
        """A trainer begins; the host looks at the store too."""
        self.add(TRAINER, Kind.SEEN, "resumed_model", after=step, digest="")
        self.call(TRAINER, "resume", model_step=step)
        self.see(TRAINER)
        self.see(HOST)

    def cut(self, step: int, **options: Any) -> None:
        first = step * GROUPS_PER_STEP
        prompts = range(first, first + GROUPS_PER_STEP)
        self.groups |= {prompt: f"{prompt:05d}-{self.epoch}" for prompt in prompts}
        groups = [self.groups[prompt] for prompt in prompts]
        self.call(HOST, "cut", groups=groups, first_prompt=first, stamp=step, **options)
        self.position = first + GROUPS_PER_STEP

    def generate(self, prompt: int) -> None:
        facts = {"prompt": prompt, "step": prompt // GROUPS_PER_STEP, "fence": len(self.lines)}
        self.add(HOST, Kind.SEEN, "generate", group=self.groups[prompt], **facts)

    def commit(self, prompt: int, **options: Any) -> None:
        fence = len(self.lines)
        self.generate(prompt)
        self.call(HOST, "commit", group=self.groups[prompt], fence=fence, attempt=1, **options)
        self.payloads[self.groups[prompt]] = fence

    def fill(self, step: int) -> None:
        """Dispatch and commit the batch of a step."""
        self.cut(step)
        for prompt in range(step * GROUPS_PER_STEP, (step + 1) * GROUPS_PER_STEP):
            self.commit(prompt)

    def train(self, step: int, *, checkpoint: bool = False) -> None:
        prompts = range(step * GROUPS_PER_STEP, (step + 1) * GROUPS_PER_STEP)
        groups = [self.groups[prompt] for prompt in prompts]
        made_by = [str(self.payloads[group]) for group in groups]
        self.call(TRAINER, "select", step=step, groups=groups)
        self.add(TRAINER, Kind.SEEN, "train", step=step, loss="0x0", groups=groups, made_by=made_by)
        facts = {"checkpoint": step + 1} if checkpoint else {}
        self.call(TRAINER, "commit_step", step=step, groups=groups, trained=groups, **facts)
        for prompt in prompts:
            del self.payloads[self.groups.pop(prompt)]
        self.version = step + 1

    def steps(self, first: int, last: int) -> None:
        for step in range(first, last):
            self.fill(step)
            self.train(step)

    def restore(
        self, step: int, *, position: int, groups: dict[int, str], payloads: dict[str, int]
    ) -> None:
        """The trainer died, and its successor restores a checkpoint."""
        self.life += 1
        self.epoch += 1
        self.version, self.position = step, position
        self.groups, self.payloads = dict(groups), dict(payloads)
        self.resume(step)

    def end(self) -> ResumeVerdict:
        """Take stock and judge."""
        self.groups.clear()
        self.payloads.clear()
        self.see(SUPERVISOR)
        return judge(self.lines)


def counts(verdict: ResumeVerdict) -> dict[str, int]:
    names = ("skipped_prompts", "repeated_prompts", "regenerated_committed", "retrained_steps")
    return {name: getattr(verdict, name) for name in names if getattr(verdict, name)}


def restored_run(*, again: int | None = None) -> Run:
    """Restored to step 2 with the batch of step 2 committed; one of its prompts made again."""
    run = Run()
    run.steps(0, 1)
    run.fill(1)
    run.fill(2)
    run.train(1, checkpoint=True)
    kept = dict(run.groups), dict(run.payloads)
    run.train(2)
    run.fill(3)
    run.restore(2, position=12, groups=kept[0], payloads=kept[1])
    if again is not None:
        run.generate(again)
    run.train(2)
    return run


def test_a_run_that_was_left_alone_has_nothing_to_answer_for() -> None:
    run = Run()
    run.steps(0, STEPS)
    verdict = run.end()
    assert ({}, [], 0, 0) == (
        counts(verdict),
        verdict.findings,
        verdict.restores,
        verdict.replayed_steps,
    )


def test_a_step_trained_again_from_restored_rows_is_replayed_and_nothing_else() -> None:
    run = restored_run()
    run.steps(3, STEPS)
    verdict = run.end()
    assert ({}, []) == (counts(verdict), verdict.findings)
    assert (1, 1, GROUPS_PER_STEP) == (
        verdict.restores,
        verdict.replayed_steps,
        verdict.replayed_groups,
    )


def test_a_group_that_came_back_with_its_rows_must_not_be_generated_again() -> None:
    run = restored_run(again=9)
    run.steps(3, STEPS)
    assert {"regenerated_committed": 1} == counts(run.end())


def test_a_restore_that_lost_rows_of_the_checkpoint_cannot_hide_behind_what_it_shows() -> None:
    run = Run()
    run.steps(0, 1)
    run.fill(1)
    run.fill(2)
    run.train(1, checkpoint=True)
    kept = dict(run.groups)
    run.train(2)
    run.restore(2, position=12, groups=kept, payloads={})
    for prompt in range(8, 12):
        run.commit(prompt)
    run.train(2)
    run.steps(3, STEPS)
    assert {"regenerated_committed": 4} == counts(run.end())


def test_a_group_committed_after_the_checkpoint_may_be_generated_again() -> None:
    run = Run()
    run.steps(0, 2)
    run.fill(2)
    run.train(2)
    run.restore(2, position=8, groups={}, payloads={})
    run.steps(2, STEPS)
    assert {} == counts(run.end())


def test_a_prompt_that_was_trained_before_the_restored_step_must_not_be_generated_again() -> None:
    run = restored_run()
    run.groups[5] = "00005-again"
    run.generate(5)
    del run.groups[5]
    run.steps(3, STEPS)
    assert {"regenerated_committed": 1} == counts(run.end())


def test_a_step_below_the_resumed_model_must_not_be_trained_again() -> None:
    run = Run()
    run.steps(0, 4)
    run.life += 1
    run.resume(4)
    run.add(
        TRAINER,
        Kind.SEEN,
        "train",
        step=3,
        loss="0x0",
        groups=[f"{prompt:05d}-1" for prompt in range(12, 16)],
        made_by=["0"] * 4,
    )
    run.steps(4, STEPS)
    assert {"retrained_steps": 1} == counts(run.end())


def test_a_batch_that_the_restore_undid_and_nobody_dispatched_again_is_skipped() -> None:
    run = restored_run()
    run.steps(4, STEPS)
    verdict = run.end()
    assert {"skipped_prompts": GROUPS_PER_STEP} == counts(verdict)
    assert [f"prompts were skipped: {[12, 13, 14, 15]}"] == verdict.findings


def test_a_batch_dispatched_again_although_the_restore_kept_it_is_repeated() -> None:
    run = restored_run()
    run.steps(3, STEPS)
    run.call(HOST, "cut", groups=["00044-x"], first_prompt=44, stamp=11)
    assert {"repeated_prompts": 1} == counts(run.end())


def test_a_cut_whose_host_died_happened_if_its_groups_were_met() -> None:
    run = Run()
    run.steps(0, STEPS - 1)
    run.cut(STEPS - 1, is_open=True)
    for prompt in range(PROMPTS - GROUPS_PER_STEP, PROMPTS):
        run.commit(prompt)
    run.train(STEPS - 1)
    verdict = run.end()
    assert ({}, 1, []) == (counts(verdict), verdict.explained, verdict.findings)


@pytest.mark.parametrize("call", ["commit", "cut", "commit_step"])
def test_a_call_that_nothing_explains_is_a_finding(call: str) -> None:
    run = Run()
    run.steps(0, STEPS)
    run.groups.clear()
    run.see(SUPERVISOR)
    facts = {"group": "00001-1", "groups": ["00001-1"], "fence": 1, "step": 1, "first_prompt": 48}
    run.call(HOST, call, is_open=True, **facts)
    findings = judge(run.lines).findings
    assert 1 == sum(finding.startswith("nothing explains what came of") for finding in findings)
