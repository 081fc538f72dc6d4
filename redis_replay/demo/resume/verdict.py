"""The verdict on a resume run, from the logs of its processes.

A restore puts the store back, so what happened before counts only as far as it is in the restored
state. Rules:

* Each line belongs to the store epoch that its process was last attached to; a restore begins the
  next one. It undoes every cut whose prompts are not below the loader's position then.
* What is left of the cuts must dispatch every prompt once, and the step that made it into
  the model must have trained every prompt once.
* A prompt is committed in an epoch from its commit on. It is so from the epoch's beginning if its
  commit was reported before the checkpoint restored to was begun, or its rows were met after the
  restore, or its step is below the model's. Whoever begins to generate it after that has
  generated it again.
* A step below the model that a trainer has resumed from must not be trained again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from redis_replay.demo.calls import History
from redis_replay.demo.observation import SEEN_STORE
from redis_replay.demo.resume.settings import GROUPS_PER_STEP, STEPS
from redis_replay.demo.witness import Kind, Line, group_ids

PROMPTS: Final = STEPS * GROUPS_PER_STEP


@dataclass(frozen=True, kw_only=True)
class ResumeVerdict:
    """What a run's logs say.

    Attributes:
        skipped_prompts: Prompts that no surviving cut dispatched or no surviving step trained.
        repeated_prompts: Prompts that more than one did.
        regenerated_committed: Attempts at prompts that were committed in the state they met.
        retrained_steps: Steps trained again although a model that holds them was resumed from.
        redispatched: Groups given out again after their process was gone.
        restores: Times the store was put back to a checkpoint.
        resumptions: What each resumption did, but for the run's first.
        replayed_steps: Steps trained again because the model that held them was lost.
        replayed_groups: Groups of these whose rows came back from the store.
        explained: Calls without a report that a later observation settled.
        findings: Every fault, as a sentence.
    """

    skipped_prompts: int
    repeated_prompts: int
    regenerated_committed: int
    retrained_steps: int
    redispatched: int
    restores: int
    resumptions: Sequence[str]
    replayed_steps: int
    replayed_groups: int
    explained: int
    findings: Sequence[str]


def prompt_of(group_id: str) -> int:
    """Return the index of a group's prompt, with which its id begins."""
    return int(group_id.partition("-")[0])


def judge(lines: Sequence[Line]) -> ResumeVerdict:
    """Compute the verdict from the lines of all logs of a run."""
    return _Judgement(History.from_lines(lines)).verdict()


@dataclass(frozen=True, slots=True)
class _Epoch:
    """A store epoch.

    Attributes:
        began_ns: When the resumption that restored the store began; 0 for the first epoch.
        position: The loader's position at its beginning.
        first_step: Step of the model that the store was restored to.
    """

    began_ns: int
    position: int
    first_step: int


@dataclass
class _Judgement:
    history: History
    findings: list[str] = field(default_factory=list[str])

    def verdict(self) -> ResumeVerdict:
        explained = self._explained()
        dispatched, trained = self._dispatched(), self._trained()
        return ResumeVerdict(
            skipped_prompts=self._skipped(dispatched, trained),
            repeated_prompts=self._repeated(dispatched, trained),
            regenerated_committed=self._regenerated(),
            retrained_steps=self._retrained(),
            redispatched=sum(
                len(call.found("groups")) for call in self.history.named("tickets") if call.is_done
            ),
            restores=len(self._epochs) - 1,
            resumptions=[
                str(call.found("action")) for call in self.history.named("resume") if call.is_done
            ][1:],
            replayed_steps=len(self._train_lines) - len({self._step(t) for t in self._train_lines}),
            replayed_groups=self._replayed_groups(),
            explained=explained,
            findings=self.findings,
        )

    @cached_property
    def _epoch_of(self) -> dict[tuple[str, int, int], int]:
        """The store epoch of each line, by process, life and number."""
        found: dict[tuple[str, int, int], int] = {}
        now: dict[tuple[str, int], int] = {}
        for line in self.history.lines:
            if line.kind is Kind.SEEN and line.call == SEEN_STORE:
                now[line.who, line.life] = int(line.facts["store_epoch"])
            epoch = now.get((line.who, line.life))
            if epoch is not None:
                found.setdefault((line.who, line.life, line.number), epoch)
        return found

    def _epoch(self, line: Line) -> int:
        return self._epoch_of[line.who, line.life, line.number]

    @cached_property
    def _epochs(self) -> dict[int, _Epoch]:
        """Every store epoch of the run, in order."""
        epochs: dict[int, _Epoch] = {}
        resumptions = [call.intent for call in self.history.named("resume")]
        for number in sorted(set(self._epoch_of.values())):
            seen = [s for s in self.history.observations if self._epoch(s.line) == number]
            positions = [s.prompts for s in seen] + [
                int(call.intent.facts["first_prompt"])
                for call in self.history.named("cut")
                if self._epoch(call.intent) == number
            ]
            causes = [line for line in resumptions if line.at_ns < min(s.line.at_ns for s in seen)]
            began, step = (
                (causes[-1].at_ns, int(causes[-1].facts["model_step"]))
                if epochs and causes
                else (0, 0)
            )
            epochs[number] = _Epoch(began, min(positions), step)
        return epochs

    def _explained(self) -> int:
        open_calls = [call for call in self.history.calls if call.is_open]
        for call in open_calls:
            if self.history.witness_of(call) is None:
                self.findings.append(f"nothing explains what came of {call.describe()}")
        return len(open_calls)

    def _dispatched(self) -> Counter[int]:
        """Count how often each prompt was dispatched, in what the restores have left."""
        met = {group_id for seen in self.history.observations for group_id in seen.states}
        for name in ("tickets", "select"):
            for call in self.history.named(name):
                met.update(call.found("groups") or ())
        met.update(call.intent.facts["group"] for call in self.history.named("commit"))
        met.update(line.facts["group"] for line in self._seen("generate"))
        prompts: Counter[int] = Counter()
        for number, epoch in self._epochs.items():
            for prompt in [known for known in prompts if known >= epoch.position]:
                del prompts[prompt]
            for call in self.history.named("cut"):
                if self._epoch(call.intent) != number:
                    continue
                if call.is_done or (call.is_open and met & set(call.groups)):
                    prompts.update(prompt_of(group_id) for group_id in call.groups)
        return prompts

    def _trained(self) -> Counter[int]:
        """Count how often each prompt was trained by the steps that made it into the model."""
        last = {self._step(line): line for line in self._train_lines}
        prompts: Counter[int] = Counter()
        for step, line in last.items():
            batch = [prompt_of(group_id) for group_id in group_ids(line.facts)]
            first = step * GROUPS_PER_STEP
            if batch != list(range(first, first + GROUPS_PER_STEP)):
                self.findings.append(f"step {step} trained the prompts {batch}")
            prompts.update(batch)
        return prompts

    def _skipped(self, dispatched: Counter[int], trained: Counter[int]) -> int:
        skipped = [p for p in range(PROMPTS) if not dispatched[p] or not trained[p]]
        if skipped:
            self.findings.append(f"prompts were skipped: {skipped}")
        return len(skipped)

    def _repeated(self, dispatched: Counter[int], trained: Counter[int]) -> int:
        repeated = [p for p in sorted(dispatched) if max(dispatched[p], trained[p]) > 1]
        if repeated:
            self.findings.append(f"prompts were dispatched or trained twice: {repeated}")
        return len(repeated)

    def _regenerated(self) -> int:
        count = 0
        for line in self._seen("generate"):
            since = self._committed[self._epoch(line)].get(int(line.facts["prompt"]))
            if since is not None and line.at_ns > since:
                count += 1
                self.findings.append(
                    f"{line.facts['group']} was generated again after its commit, by {line.who}"
                )
        return count

    @cached_property
    def _committed(self) -> dict[int, dict[int, int]]:
        """For each store epoch, the prompts that were committed in it, and since when."""
        found: dict[int, dict[int, int]] = {}
        for number, epoch in self._epochs.items():
            committed = found[number] = dict(self._committed_within(number))
            committed.update(
                dict.fromkeys(range(epoch.first_step * GROUPS_PER_STEP), epoch.began_ns)
            )
            taken = self._checkpoint_of(epoch)
            if taken is not None:
                saved = found[self._epoch(taken)]
                kept = [prompt for prompt, since in saved.items() if since < taken.at_ns]
                committed.update(dict.fromkeys(kept, epoch.began_ns))
        return found

    def _committed_within(self, number: int) -> Iterator[tuple[int, int]]:
        """Yield prompts by what was seen and done in an epoch; of several times the last counts."""
        commits = {
            (call.intent.facts["group"], call.intent.facts["fence"]): call
            for call in self.history.named("commit")
        }
        for seen in reversed(self.history.observations):
            if self._epoch(seen.line) == number:
                for group_id, fence in seen.line.facts["payloads"].items():
                    call = commits.get((group_id, fence))
                    is_older = call is not None and self._epoch(call.intent) != number
                    since = self._epochs[number].began_ns if is_older else seen.line.at_ns
                    yield prompt_of(group_id), since
        for call in commits.values():
            if call.is_done and call.outcome is not None and self._epoch(call.intent) == number:
                yield prompt_of(call.intent.facts["group"]), call.outcome.at_ns

    def _checkpoint_of(self, epoch: _Epoch) -> Line | None:
        """Return the intent of the call that took the checkpoint which an epoch began with."""
        taken = [
            call.intent
            for name in ("commit_step", "checkpoint")
            for call in self.history.named(name)
            if call.intent.at_ns < epoch.began_ns
            and call.intent.facts.get("checkpoint") == epoch.first_step
        ]
        return max(taken, default=None)

    def _retrained(self) -> int:
        resumed, count = 0, 0
        for line in self.history.lines:
            if line.kind is Kind.SEEN and line.call == "resumed_model":
                resumed = max(resumed, int(line.facts["after"]))
            elif line.kind is Kind.SEEN and line.call == "train" and self._step(line) < resumed:
                count += 1
                self.findings.append(f"step {self._step(line)} was trained again")
        return count

    def _replayed_groups(self) -> int:
        made_by: dict[str, str] = {}
        count = 0
        for line in self._train_lines:
            for group_id, maker in zip(
                group_ids(line.facts), group_ids(line.facts, "made_by"), strict=True
            ):
                count += made_by.get(group_id) == maker
                made_by[group_id] = maker
        return count

    @cached_property
    def _train_lines(self) -> list[Line]:
        return list(self._seen("train"))

    @staticmethod
    def _step(line: Line) -> int:
        return int(line.facts["step"])

    def _seen(self, what: str) -> Iterator[Line]:
        return (ln for ln in self.history.lines if ln.kind is Kind.SEEN and ln.call == what)
