"""What a resume demo came to: each kill point's run beside the runs that were never killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis_replay.demo.kills import Kill
from redis_replay.demo.resume.points import KillPoint, Struck
from redis_replay.demo.resume.settings import STEPS
from redis_replay.demo.resume.verdict import PROMPTS, ResumeVerdict
from redis_replay.demo.supervisor import Inventory
from redis_replay.demo.witness import Line

COUNTS: Final = (
    "skipped_prompts",
    "repeated_prompts",
    "regenerated_committed",
    "retrained_steps",
)
"""What must be 0 in every run."""

_SUMS: Final = (
    *COUNTS,
    *("redispatched", "restores", "replayed_steps", "replayed_groups", "explained"),
)


@dataclass(frozen=True)
class Trace:
    """The bits of a run.

    Attributes:
        final: Digest of the last model: weights, optimizer, losses.
        losses: Every loss that was ever computed, by step, as hexadecimal numbers.
        models: Digest of every model that was ever saved, by step.
    """

    final: str
    losses: dict[int, set[str]]
    models: dict[int, set[str]]

    @classmethod
    def of(cls, final: str, lines: Sequence[Line]) -> Trace:
        """Read losses and digests in the logs."""
        losses: dict[int, set[str]] = {}
        models: dict[int, set[str]] = {}
        for line in lines:
            if line.call == "train":
                losses.setdefault(int(line.facts["step"]), set()).add(line.facts["loss"])
            elif line.call in ("model", "resumed_model"):
                models.setdefault(int(line.facts["after"]), set()).add(line.facts["digest"])
        return cls(final, losses, models)

    def differences(self, other: Trace) -> list[str]:
        """Return where two runs differ, as sentences."""
        found = [f"losses of step {s}" for s in range(STEPS) if self.losses[s] != other.losses[s]]
        found += [
            f"model of step {step}"
            for step in sorted(self.models.keys() & other.models.keys())
            if self.models[step] != other.models[step]
        ]
        return found + (["the last model"] if self.final != other.final else [])


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """One run.

    Attributes:
        point: Where it was to be killed, ``None`` for a run that was not.
        struck: The kills that were ordered.
        kills: What died.
    """

    point: KillPoint | None
    struck: Sequence[Struck]
    kills: Sequence[Kill]
    trace: Trace
    verdict: ResumeVerdict
    inventory: Inventory
    seconds: float

    @property
    def faults(self) -> list[str]:
        """What the run did wrong, whatever its bits are, as sentences."""
        stats, audit = self.inventory.stats, self.inventory.audit
        account = {
            "trainer version": (STEPS, stats.trainer_version),
            "reserved": (PROMPTS, stats.reserved_total),
            "trained": (PROMPTS, stats.trained),
            "live": (0, stats.occupancy + stats.quarantined),
        }
        return [
            *self.verdict.findings,
            *(
                f"{n}: {due} are due, {has} by the store"
                for n, (due, has) in account.items()
                if due != has
            ),
            *(f"audit, invariant {v.invariant}: {v.message}" for v in audit.violations),
            *(["it was never killed"] if self.point is not None and not self.struck else []),
        ]

    def to_document(self, differences: Sequence[str]) -> dict[str, Any]:
        """Return a kill point as it is printed with ``--json``."""
        assert self.point is not None
        return {
            "victim": self.point.victim.value,
            "place": self.point.describe(),
            "at_step": self.struck[0].step if self.struck else None,
            "held": self.struck[0].held if self.struck else 0,
            "in_flight": self.struck[0].in_flight if self.struck else 0,
            "killed": [kill.what for kill in self.kills],
            "resumptions": list(self.verdict.resumptions),
            "restores": self.verdict.restores,
            "replayed_steps": self.verdict.replayed_steps,
            "replayed_groups": self.verdict.replayed_groups,
            "redispatched": self.verdict.redispatched,
            "identical": not differences,
            "differences": list(differences),
            "seconds": round(self.seconds, 2),
        }


@dataclass(kw_only=True)
class ResumeOutcome:
    """The whole demo.

    Attributes:
        undisturbed: Runs that were never killed; the first is what all others are compared with.
        killed: One run for each kill point.
        initial: Digest of the untrained model.
        seconds: From the first process to the verdict.
    """

    policy: str
    lookahead: int
    ranks: int
    seed: int
    undisturbed: list[RunOutcome] = field(default_factory=list[RunOutcome])
    killed: list[RunOutcome] = field(default_factory=list[RunOutcome])
    seconds: float = 0.0

    def differences(self, run: RunOutcome) -> list[str]:
        """Return where a run's bits differ from those of the first undisturbed run."""
        return self.undisturbed[0].trace.differences(run.trace)

    @property
    def different(self) -> int:
        """Kill points whose run came to other bits."""
        return sum(1 for run in self.killed if self.differences(run))

    @property
    def in_flight(self) -> int:
        """Kill points at which groups were claimed or in flight."""
        return sum(1 for run in self.killed if run.struck and run.struck[0].in_flight)

    @property
    def faults(self) -> list[str]:
        """Everything that makes the demo a failure, as sentences."""
        found: list[str] = []
        for number, run in enumerate(self.undisturbed, 1):
            name = f"undisturbed run {number}"
            found += [f"{name}: {fault}" for fault in run.faults]
            found += [f"{name} differs in {where}" for where in self.differences(run)]
            if len(set().union(*run.trace.losses.values())) < STEPS:
                found.append(f"{name} learned nothing: its losses repeat")
        for number, run in enumerate(self.killed, 1):
            name = f"kill point {number}"
            found += [f"{name}: {fault}" for fault in run.faults]
            found += [f"{name} differs in {where}" for where in self.differences(run)]
        if 2 * self.in_flight < len(self.killed):
            found.append(
                f"groups were in flight at only {self.in_flight} kill points, half are due"
            )
        return found

    def to_document(self) -> dict[str, Any]:
        """Return the outcome as it is printed with ``--json``."""
        runs = [*self.undisturbed, *self.killed]
        return {
            "kill_points": len(self.killed),
            "identical": len(self.killed) - self.different,
            "different": self.different,
            **{name: sum(getattr(run.verdict, name) for run in runs) for name in _SUMS},
            "resumptions": Counter(what for run in runs for what in run.verdict.resumptions),
            "in_flight": self.in_flight,
            "while_holding": sum(1 for r in self.killed if r.struck and r.struck[0].held),
            "undisturbed_agree": not any(self.differences(run) for run in self.undisturbed),
            "seconds": round(self.seconds, 2),
            "seconds_undisturbed": [round(run.seconds, 2) for run in self.undisturbed],
            "policy": self.policy,
            "lookahead": self.lookahead,
            "ranks": self.ranks,
            "seed": self.seed,
            "steps": STEPS,
            "points": [run.to_document(self.differences(run)) for run in self.killed],
            "faults": self.faults,
        }
