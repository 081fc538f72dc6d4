"""What a trainer needs to close a step: what it wanted, what is there, what can still come.

Every dropped group is credited to the batch it was meant for by the script that drops it, so a step
that lost a group knows it at once; nobody waits for a group that nobody generates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from redis_replay._redis.gateway import Reads
from redis_replay._redis.keys import Key
from redis_replay.errors import ConfigurationError, StepStarved, StoreMissing
from redis_replay.selection import validate_version
from redis_replay.tally import parse_stats

_IN_ORDER = b"in_order"
_CREDITS = ("lost", "replaced", "borrowed", "lent")


@dataclass(frozen=True, slots=True)
class StepTarget:
    """The groups of one step, read in one instant.

    Under ``in_order`` the live counts are of the step's own groups; under the other policies, which
    take whatever comes next, they are of the whole buffer.

    Attributes:
        step: The trainer step.
        wanted: Groups of a full batch.
        ready: Finished groups that wait.
        in_flight: Reserved groups.
        claimed: Groups that a trainer holds.
        lost: Groups of this batch that ended untrained.
        replaced: Replacements and repayments reserved for it.
        borrowed: Finished groups lent to it by later steps.
        lent: Finished groups it lent to earlier steps.
        short: Groups that passed batches still lack (policies without stamps).
        generated: Groups generated for it so far, kept or dropped, as the tally counts.
        zero_variance: Those of them without signal.
        dispatched: Whether the step's batch has been admitted.
    """

    step: int
    wanted: int
    ready: int
    in_flight: int
    claimed: int
    lost: int
    replaced: int
    borrowed: int
    lent: int
    short: int
    generated: int
    zero_variance: int
    dispatched: bool

    @property
    def reachable(self) -> int:
        """Groups that the step can still have: wanted, less what was lost and not made good."""
        missing = self.lost - self.replaced - self.borrowed + self.lent + self.short
        return max(0, min(self.wanted, self.wanted - missing))

    @property
    def shortfall(self) -> int:
        """Groups that the step will never have."""
        return self.wanted - self.reachable

    def lowered_minimum(
        self, min_prompt_groups: int, *, min_batch_fraction: float, held: int = 0
    ) -> int:
        """Return the fewest groups to take for the step, now that some are lost.

        Args:
            min_prompt_groups: Fewest groups to take when none is lost.
            min_batch_fraction: Part of them that is enough.
            held: Groups that the trainer has taken for the step already.

        Raises:
            StepStarved: fewer can come than the fraction of the minimum allows, or none at all:
                then close the step with what is held, or with `TrainerSession.skip_step`.
        """
        floor = fewest_groups(min_prompt_groups, min_batch_fraction)
        remaining = self.reachable - held
        if remaining < floor:
            raise StepStarved(
                f"step {self.step} can have {self.reachable} of {self.wanted} groups and needs "
                f"{held + floor}: {self.describe()}",
                target=self,
            )
        return min(min_prompt_groups, remaining)

    def describe(self) -> str:
        """Return the numbers as one sentence."""
        return (
            f"{self.ready} ready, {self.in_flight} in flight, {self.claimed} claimed, {self.lost} "
            f"lost, {self.replaced} replaced, {self.borrowed} borrowed, {self.lent} lent, "
            f"{self.generated} generated, {self.zero_variance} of them without signal"
            + ("" if self.dispatched else "; its batch was not dispatched yet")
        )


def fewest_groups(min_prompt_groups: int, min_batch_fraction: float) -> int:
    """Return how far a minimum may be lowered; never to nothing."""
    return max(1, math.ceil(min_batch_fraction * min_prompt_groups))


async def read_rest_of_oldest(reads: Reads, window: range, *, at_most: int) -> int:
    """Return how many groups of the window's oldest live version can still come, up to a number.

    ``weight_fifo`` takes one version at a time. Once a newer one is live, what is left of the
    oldest, ready or in flight, is all that its next batch can have, however many were asked for. A
    pure read of at most twice the number.
    """
    control = reads.keyspace.control
    bounds = (window.start, window.stop - 1, "WITHSCORES", "LIMIT", 0, at_most)
    replies: list[Any] = await reads.pipeline(
        [("ZRANGEBYSCORE", control(key), *bounds) for key in (Key.READY, Key.RESERVED)],
        atomic=True,
    )
    versions = [score for reply in replies for score in _scores(reply)]
    oldest = [version for version in versions if version == min(versions)]
    return at_most if len(oldest) == len(versions) else min(at_most, len(oldest))


def _scores(reply: list[Any]) -> list[float]:
    """Return the scores of a range, which RESP3 pairs with their members and RESP2 does not."""
    paired = bool(reply) and isinstance(reply[0], list | tuple)
    return [float(pair[1]) for pair in reply] if paired else [float(s) for s in reply[1::2]]


async def read_step_target(reads: Reads, step: int) -> StepTarget:
    """Read a step's numbers. Atomic; a pure read.

    Raises:
        ValueError: the step is negative, or 2**53 and more.
        ConfigurationError: the run was opened without ``groups_per_step``.
        StoreMissing: the run is not there.
    """
    validate_version("step", step)
    control = reads.keyspace.control
    by_step = (Key.READY_BY_STEP, Key.RESERVED_BY_STEP, Key.CLAIMED_BY_STEP)
    overall = (Key.READY, Key.RESERVED, Key.CLAIMED)
    fields = [f"{step}:{what}" for what in _CREDITS]
    replies: list[Any] = await reads.pipeline(
        [
            ("HMGET", control(Key.META), "groups_per_step", "policy", "dispatch_index", "seq"),
            ("HMGET", control(Key.STEPS), *fields, "carry:lost", "carry:replaced"),
            ("HGET", control(Key.TALLY), step),
            *[("ZCOUNT", control(key), step, step) for key in by_step],
            *[("ZCARD", control(key)) for key in overall],
        ],
        atomic=True,
    )
    groups_per_step, policy, cursor, seq = replies[0]
    if seq is None:
        raise StoreMissing(f"run {reads.keyspace.run!r} is not on {reads.target.address}")
    if not groups_per_step:
        raise ConfigurationError(
            f"run {reads.keyspace.run!r} was created without groups_per_step, so its steps have "
            "no target; give it to open_store when the run is created"
        )
    lost, replaced, borrowed, lent, carry, made_good = (int(text or 0) for text in replies[1])
    in_order = policy == _IN_ORDER
    stats = parse_stats(replies[2].decode()) if replies[2] else None
    ready, in_flight, claimed = replies[3:6] if in_order else replies[6:9]
    return StepTarget(
        step=step,
        wanted=int(groups_per_step),
        ready=ready,
        in_flight=in_flight,
        claimed=claimed,
        lost=lost,
        replaced=replaced,
        borrowed=borrowed,
        lent=lent,
        short=0 if in_order else carry - made_good,
        generated=stats.groups if stats else 0,
        zero_variance=stats.zero_variance_groups if stats else 0,
        dispatched=int(cursor) >= step,
    )
