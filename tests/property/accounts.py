"""What the model keeps of each step: groups lost and made good by batch, and the reward tally.

The tally is that of the pure functions. A batch is accounted for until the trainer passes it. Where
groups have no stamps, a passed batch lives on in `carry`: what all of them together still lack.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from redis_replay import StepRewardStats, drain_step_reward_metrics, record_group_rewards

NEVER_DRAINED = -1


@dataclass
class Accounts:
    """The accounts of one run.

    Attributes:
        first_admitted: The first index that was ever admitted.
        batches: Counts by batch and by what happened: lost, replaced, borrowed or lent.
        carry: Groups that the passed batches lack; below zero there are some to spare.
        drained: The newest step whose tally was drained.
    """

    groups_per_step: int
    stamped: bool
    first_admitted: int | None = None
    batches: Counter[tuple[int, str]] = field(default_factory=Counter)
    carry: int = 0
    tally: dict[int, StepRewardStats] = field(default_factory=dict)
    drained: int = NEVER_DRAINED

    @property
    def _carries(self) -> bool:
        return not self.stamped and self.first_admitted is not None

    def begin(self, index: int) -> None:
        """Note the first admission; accounts that are carried begin after it."""
        if self.first_admitted is None:
            self.first_admitted = index

    def credit(self, batch: int | None, what: str, *, version: int) -> None:
        """Note that a batch lost a group, or got or gave one."""
        if batch is None:
            return
        if batch >= version:
            self.batches[batch, what] += 1
        elif self._carries:
            self.carry += {"lost": 1, "replaced": -1}[what]

    def train(self, groups: int) -> None:
        """Note that groups were trained; the batches they came from lack them."""
        if self._carries:
            self.carry += groups

    def pass_to(self, version: int, *, since: int) -> None:
        """Close the accounts of the batches between two trainer versions."""
        for batch in range(since, version):
            if self._carries:
                lacking = self.batches[batch, "lost"] - self.batches[batch, "replaced"]
                dispatched = batch >= (self.first_admitted or 0)
                self.carry += lacking - self.groups_per_step * dispatched
        self.batches = Counter({key: n for key, n in self.batches.items() if key[0] >= version})

    def generated(
        self, step: int | None, rewards: list[float], *, replacement: int, zero_variance: bool
    ) -> None:
        """Tally a group for the step it was generated for, unless that was drained already."""
        if step is not None and step > self.drained:
            record_group_rewards(
                self.tally,
                step,
                rewards,
                replacement_index=replacement,
                zero_variance=zero_variance,
            )

    def drain(self, step: int) -> dict[str, float]:
        """Return a step's metrics and forget it and every older one."""
        self.drained = max(self.drained, step)
        return drain_step_reward_metrics(self.tally, step)
