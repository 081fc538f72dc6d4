"""What a policy decides, as numbers: which ready groups, in which order, and which to drop.

A sampler turns its windows into a `Selection` or an `Eviction`; one script serves all built-in
samplers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from redis_replay.meta import KVBatchMeta
from redis_replay.types import MAX_EXACT_INTEGER, MAX_GROUPS_PER_CALL


class Rule(StrEnum):
    """How eligible groups are found and ordered; the names are those of the claim script."""

    BUFFER = "buffer"
    FRESHEST = "freshest"
    OLDEST_VERSION = "oldest_version"
    ARRIVAL = "arrival"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class Selection:
    """Ready groups to claim.

    Attributes:
        rule: How they are found and ordered.
        lowest: Smallest start weight version, inclusive.
        highest: Largest start weight version, inclusive (for `Rule.STEP` the target step).
        min_prompt_groups: Fewer than this and nothing is claimed.
        max_prompt_groups: At most this many.
    """

    rule: Rule
    lowest: int
    highest: int
    min_prompt_groups: int
    max_prompt_groups: int

    def __post_init__(self) -> None:
        validate_group_bounds(self.min_prompt_groups, self.max_prompt_groups)
        validate_version("current_train_weight", self.highest)

    @property
    def arguments(self) -> tuple[str, int, int, int, int]:
        """What a script that selects is called with: the rule, then the numbers."""
        bounds = (self.min_prompt_groups, self.max_prompt_groups)
        return (self.rule, self.lowest, self.highest, *bounds)


@dataclass(frozen=True, slots=True)
class Eviction:
    """Ready groups to drop: those whose start weight (or target step) is below a number."""

    below: int
    by_target_step: bool = False


def validate_group_bounds(min_prompt_groups: int, max_prompt_groups: int) -> None:
    """Refuse bounds that select nothing or more than one script may claim.

    Raises:
        ValueError: the minimum is below 1, the maximum below it or above the limit.
    """
    if min_prompt_groups < 1:
        raise ValueError(f"min_prompt_groups must be at least 1, got {min_prompt_groups}")
    if max_prompt_groups < min_prompt_groups:
        raise ValueError(
            f"max_prompt_groups ({max_prompt_groups}) must be at least min_prompt_groups "
            f"({min_prompt_groups})"
        )
    if max_prompt_groups > MAX_GROUPS_PER_CALL:
        raise ValueError(
            f"max_prompt_groups ({max_prompt_groups}) must be at most {MAX_GROUPS_PER_CALL}: one "
            "step settles no more groups than that"
        )


def validate_version(name: str, value: int, *, least: int = 0) -> None:
    """Refuse a version or step that is no whole number a sorted-set score holds exactly.

    Raises:
        TypeError: not an int.
        ValueError: below the least, or 2**53 and more.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not least <= value < MAX_EXACT_INTEGER:
        raise ValueError(
            f"{name} must be at least {least} and below 2**53 (larger ones are not exact in "
            f"a sorted set), got {value}"
        )


def lag_metrics(meta: KVBatchMeta) -> dict[str, float]:
    """Return min, mean and max of trainer version minus start weight over a selected batch.

    Dropped groups do not enter. A batch that no selection made has no lags: ``{}``.
    """
    lags: Sequence[int] = meta.extra_info.get("lags", ())
    if not lags:
        return {}
    return {
        "lag_min": float(min(lags)),
        "lag_mean": sum(lags) / len(lags),
        "lag_max": float(max(lags)),
    }
