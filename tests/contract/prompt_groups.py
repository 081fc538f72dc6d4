"""Records of finished prompt groups with the rewards of a test's choice."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from redis_replay import Completion, PromptGroupRecord


def record_of(
    rewards: Sequence[Any],
    *,
    truncated: Collection[int] = (),
    masked: Collection[int] = (),
    weight: float = 1.0,
) -> PromptGroupRecord:
    """Return a group with one completion for each reward; rows are named by position."""
    return PromptGroupRecord(
        prompt_idx=0,
        prompt=[],
        extra_env_info=None,
        metadata={},
        completions=[
            Completion(
                message_log=[{"role": "assistant", "content": "x" * (row + 1)}],
                env_extras={"mask_sample": row in masked},
                truncated=row in truncated,
                reward=reward,
            )
            for row, reward in enumerate(rewards)
        ],
        rollout_metrics={},
        loss_multiplier=weight,
    )
