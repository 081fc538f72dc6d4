"""The verdict on a run, from the logs of its processes alone: what became of every group.

Rules, in the order in which they are applied:

* A call that reported success happened; one that was refused or cancelled did not.
* A call without a report is open. What settles it is an observation by a later process of the same
  owner, or the supervisor's at the end: a cut happened if any of its groups was ever met again, a
  step was committed if the trainer version is above it, an abort or an eviction happened if the
  group is gone and nobody else ended it. A call that no observation follows counts as lost.
* Every prompt up to the loader's last position must have been dispatched by exactly one cut; so a
  cut that nobody saw, and that left no group behind, cannot hide.
* Every dispatched group ends once, or is live at the end; else it is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from redis_replay.demo.calls import Call, History, Observation
from redis_replay.demo.witness import Line, group_ids
from redis_replay.types import GroupState

_COMMITTED: Final = (GroupState.READY, GroupState.CLAIMED, GroupState.QUARANTINED)


class End(StrEnum):
    """How a group ends."""

    TRAINED = "trained"
    EVICTED = "evicted"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A step that was committed, with the facts of its batch."""

    step: int
    at_ns: int
    reward: float
    lags: Sequence[int]


@dataclass(frozen=True)
class Verdict:
    """What became of the groups of a run.

    Attributes:
        dispatched: Groups reserved by cuts that happened.
        live: Of these, those that were live at the end.
        lost: Groups without an end, prompts that were skipped and calls that nothing explains.
        trained_twice: Trainings of a group beyond its first.
        regenerated_committed: Attempts at groups that had been committed before.
        retrained_steps: Attempts at steps that had been committed before.
        redispatched: Groups given out again after their process was gone.
        explained: Calls without a report that an observation settled.
        steps: Committed steps in order.
        findings: Every fault, as a sentence.
    """

    dispatched: int
    ends: dict[End, int]
    live: int
    lost: int
    trained_twice: int
    regenerated_committed: int
    retrained_steps: int
    redispatched: int
    explained: int
    steps: Sequence[TrainedStep]
    findings: Sequence[str]


def judge(lines: Sequence[Line]) -> Verdict:
    """Compute the verdict from the lines of all logs."""
    return _Judgement(History.from_lines(lines)).verdict()


@dataclass
class _Judgement:
    history: History
    findings: list[str] = field(default_factory=list[str])
    lost: int = 0
    explained: int = 0
    ends: dict[str, Counter[End]] = field(default_factory=lambda: defaultdict(Counter[End]))
    prompts: Counter[int] = field(default_factory=Counter[int])
    dispatched: set[str] = field(default_factory=set[str])

    def verdict(self) -> Verdict:
        self._explain_open_calls()
        self._dispatches()
        committed = list(self._committed_steps())
        self._aborts()
        self._evictions()
        live = self._close_books()
        return Verdict(
            dispatched=len(self.dispatched),
            ends={end: sum(1 for ends in self.ends.values() if ends[end]) for end in End},
            live=live,
            lost=self.lost,
            trained_twice=self._trained_twice(),
            regenerated_committed=self._regenerated(),
            retrained_steps=self._retrained(committed),
            redispatched=sum(
                len(call.found("groups")) for call in self.history.named("tickets") if call.is_done
            ),
            explained=self.explained,
            steps=[
                TrainedStep(
                    call.intent.facts["step"],
                    call.intent.at_ns,
                    call.intent.facts["reward"],
                    call.intent.facts["lags"],
                )
                for call in committed
            ],
            findings=self.findings,
        )

    def _lose(self, count: int, finding: str) -> None:
        self.lost += count
        self.findings.append(finding)

    def _explain_open_calls(self) -> None:
        for call in self.history.calls:
            if call.is_open and self.history.witness_of(call) is None:
                self._lose(1, f"nothing explains what came of {call.describe()}")
            elif call.is_open:
                self.explained += 1

    def _happened(self, call: Call) -> Observation | bool | None:
        """Return whether a call happened; for an open one, the observation that must tell."""
        return self.history.witness_of(call) if call.is_open else call.is_done

    def _dispatches(self) -> None:
        met = self._groups_met()
        for call in self.history.named("cut"):
            groups, happened = call.groups, self._happened(call)
            if isinstance(happened, Observation):
                seen = [group_id for group_id in groups if group_id in met]
                if 0 < len(seen) < len(groups):
                    self.findings.append(
                        f"only {len(seen)} of {len(groups)} groups appeared of {call.describe()}"
                    )
                happened = bool(seen)
            if happened:
                first = call.intent.facts["first_prompt"]
                self.prompts.update(range(first, first + len(groups)))
                self.dispatched.update(groups)

    def _groups_met(self) -> set[str]:
        """Return every group that somebody met after its cut."""
        met = {group_id for seen in self.history.observations for group_id in seen.states}
        for name in ("tickets", "select"):
            for call in self.history.named(name):
                met.update(call.found("groups") or ())
        for call in self.history.named("evict"):
            met.update(group_ids(call.intent.facts, "stale"))
        for name in ("commit", "abort"):
            met.update(call.intent.facts["group"] for call in self.history.named(name))
        return met

    def _committed_steps(self) -> Iterator[Call]:
        for call in self.history.named("commit_step"):
            happened = self._happened(call)
            if isinstance(happened, Observation):
                happened = happened.trainer_version > call.intent.facts["step"]
            if not happened:
                continue
            for group_id in call.groups:
                self.ends[group_id][End.TRAINED] += 1
            said = call.found("trained")
            if said is not None and sorted(said) != sorted(call.groups):
                self.findings.append(
                    f"other groups than its batch were trained by {call.describe()}"
                )
            yield call

    def _aborts(self) -> None:
        for call in self.history.named("abort"):
            group_id, happened = call.intent.facts["group"], self._happened(call)
            if isinstance(happened, Observation):
                happened = group_id not in happened.states and not self.ends[group_id]
            if happened:
                self.ends[group_id][End.ABORTED] += 1

    def _evictions(self) -> None:
        for call in self.history.named("evict"):
            happened = self._happened(call)
            if isinstance(happened, Observation):
                stale = group_ids(call.intent.facts, "stale")
                gone = [g for g in stale if g not in happened.states and not self.ends[g]]
            else:
                gone = [g for g in call.found("gone") or () if not self.ends[g]]
                count = call.found("count") or 0
                if len(gone) != count:
                    self.findings.append(
                        f"{count} groups were dropped, {len(gone)} went, by {call.describe()}"
                    )
            for group_id in gone:
                self.ends[group_id][End.EVICTED] += 1

    def _close_books(self) -> int:
        """Look for groups with no end or several, and return how many are live."""
        final = self.history.final
        if final is None:
            self._lose(len(self.dispatched), "nobody looked at the store at the end")
            return 0
        live = set(final.states)
        for group_id in sorted(self.dispatched | live):
            ends = [end.value for end, count in self.ends[group_id].items() if count]
            if group_id not in self.dispatched:
                self.findings.append(f"group {group_id} is live and was never dispatched")
            elif not ends and group_id not in live:
                self._lose(1, f"group {group_id} is lost: dispatched, never ended, not live")
            elif len(ends) > 1 or (ends and group_id in live):
                self.findings.append(
                    f"group {group_id} has several ends: {', '.join(ends)}"
                    f"{' and is live' if group_id in live else ''}"
                )
        for group_id in sorted(g for g, ends in self.ends.items() if ends):
            if group_id not in self.dispatched:
                self.findings.append(f"group {group_id} ended and was never dispatched")
        skipped = [index for index in range(final.prompts) if not self.prompts[index]]
        if skipped:
            self._lose(len(skipped), f"prompts were skipped: {skipped}")
        repeated = [index for index, count in self.prompts.items() if count > 1]
        if repeated:
            self.findings.append(f"prompts were dispatched twice: {sorted(repeated)}")
        return len(live & self.dispatched)

    def _trained_twice(self) -> int:
        twice = {g: ends[End.TRAINED] for g, ends in self.ends.items() if ends[End.TRAINED] > 1}
        self.findings += [f"group {g} was trained {count} times" for g, count in twice.items()]
        return sum(count - 1 for count in twice.values())

    def _regenerated(self) -> int:
        """Count attempts that began after another attempt at the same group had been committed."""
        committed: dict[str, tuple[int, Line]] = {}
        for call in self.history.named("commit"):
            facts, happened = call.intent.facts, self._happened(call)
            since = call.outcome
            if isinstance(happened, Observation):
                since = happened.line
                happened = happened.states.get(facts["group"]) in _COMMITTED
            if happened and since is not None:
                committed.setdefault(facts["group"], (facts["fence"], since))
        count = 0
        for call in self.history.named("commit"):
            facts = call.intent.facts
            fence, since = committed.get(facts["group"], (facts["fence"], call.intent))
            if fence != facts["fence"] and call.intent > since:
                count += 1
                self.findings.append(f"group {facts['group']} was generated again after its commit")
        return count

    def _retrained(self, committed: Sequence[Call]) -> int:
        count = 0
        for call in self.history.named("commit_step"):
            step = call.intent.facts["step"]
            if any(c.intent < call.intent and c.intent.facts["step"] >= step for c in committed):
                count += 1
                self.findings.append(f"step {step} was trained again after its commit")
        return count
