"""What a run came to: figures, the verdict from the logs, and where the store's account differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis_replay.demo.kills import Kill
from redis_replay.demo.supervisor import Inventory
from redis_replay.demo.verdict import End, Verdict

REWARD_RISE: Final = 0.1
"""Least rise of the held-out reward that counts as learning."""


@dataclass(frozen=True)
class Staleness:
    """Trainer version minus start weight over all trained groups."""

    least: int
    mean: float
    most: int

    @classmethod
    def of(cls, verdict: Verdict) -> Staleness:
        """Compute it from the lags of the committed batches."""
        lags = [lag for step in verdict.steps for lag in step.lags]
        if not lags:
            return cls(0, 0.0, 0)
        return cls(min(lags), sum(lags) / len(lags), max(lags))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Everything that the report states.

    Attributes:
        seconds: The whole run, from the first line to the verdict.
    """

    sampler: str
    seed: int
    reward_first: float
    reward_last: float
    verdict: Verdict
    kills: Sequence[Kill]
    seconds: float
    inventory: Inventory

    @property
    def disagreements(self) -> list[str]:
        """What the store's account says otherwise than the logs, as sentences."""
        return compare_accounts(self.verdict, self.inventory)

    @property
    def groups_per_second(self) -> float:
        """Trained groups by the time from the first committed step to the last, kills included."""
        steps = self.verdict.steps
        if len(steps) < 2:
            return 0.0
        groups = sum(len(step.lags) for step in steps[1:])
        return groups / ((steps[-1].at_ns - steps[0].at_ns) / 1e9)

    @property
    def faults(self) -> list[str]:
        """Everything that makes the run a failure, as sentences."""
        faults = [*self.verdict.findings, *self.disagreements]
        rise = round(self.reward_last - self.reward_first, 6)
        if rise < REWARD_RISE:
            faults.append(f"the reward did not rise: {rise:+.3f}, at least +{REWARD_RISE} is due")
        return faults

    def to_document(self) -> dict[str, Any]:
        """Return the outcome as it is printed with ``--json``."""
        verdict, staleness = self.verdict, Staleness.of(self.verdict)
        return {
            "steps": len(verdict.steps),
            "reward_first": round(self.reward_first, 4),
            "reward_last": round(self.reward_last, 4),
            "dispatched": verdict.dispatched,
            "trained": verdict.ends[End.TRAINED],
            "evicted": verdict.ends[End.EVICTED],
            "aborted": verdict.ends[End.ABORTED],
            "live": verdict.live,
            "lost": verdict.lost,
            "trained_twice": verdict.trained_twice,
            "regenerated_committed": verdict.regenerated_committed,
            "retrained_steps": verdict.retrained_steps,
            "redispatched": verdict.redispatched,
            "open_calls_explained": verdict.explained,
            "kills": [
                {"what": kill.what, "at_step": kill.at_step, "held": kill.held}
                for kill in self.kills
            ],
            "seconds": round(self.seconds, 2),
            "sampler": self.sampler,
            "seed": self.seed,
            "staleness": {
                "min": staleness.least,
                "mean": round(staleness.mean, 3),
                "max": staleness.most,
            },
            "groups_per_second": round(self.groups_per_second, 1),
            "audit_clean": self.inventory.audit.is_clean,
            "faults": self.faults,
        }


def compare_accounts(verdict: Verdict, inventory: Inventory) -> list[str]:
    """Return where the store's audit and totals differ from what the logs add up to."""
    stats = inventory.stats
    accounts = {
        "dispatched": (verdict.dispatched, stats.reserved_total),
        "trained": (verdict.ends[End.TRAINED], stats.trained),
        "evicted": (verdict.ends[End.EVICTED], stats.evicted),
        "aborted": (verdict.ends[End.ABORTED], stats.aborted),
        "live": (verdict.live, stats.occupancy + stats.quarantined),
        "steps": (len(verdict.steps), stats.trainer_version),
    }
    differing = [
        f"{name}: {logs} by the logs, {store} by the store"
        for name, (logs, store) in accounts.items()
        if logs != store
    ]
    broken = [
        f"audit, invariant {violation.invariant}: {violation.message}"
        for violation in inventory.audit.violations
    ]
    return differing + broken
