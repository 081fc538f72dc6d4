"""Groups of 16 rows as rollouts make them. Imports NumPy alone, since peers use it too.

A row is input_ids int32[L], generation_logprobs float32[L], token_mask uint8[L], reward and length.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

GROUP_SIZE: Final = 16
BYTES_PER_TOKEN: Final = 9

Rows = list[dict[str, Any]]


def group_rows(tokens: int, seed: int = 0) -> Rows:
    """Return 16 rows of so many tokens each."""
    draw = np.random.default_rng(seed)
    return [
        {
            "input_ids": draw.integers(0, 150_000, tokens, dtype=np.int32),
            "generation_logprobs": draw.random(tokens, dtype=np.float32),
            "token_mask": draw.integers(0, 2, tokens, dtype=np.uint8),
            "reward": float(row % 2),
            "length": tokens,
        }
        for row in range(GROUP_SIZE)
    ]


def stacked(rows: Rows) -> dict[str, np.ndarray[Any, Any]]:
    """Return the fields of a group's rows as arrays of 16, as peers want them that hold columns."""
    return {
        **{
            name: np.stack([row[name] for row in rows])
            for name in ("input_ids", "generation_logprobs", "token_mask")
        },
        "reward": np.array([row["reward"] for row in rows], dtype=np.float32),
        "length": np.array([row["length"] for row in rows], dtype=np.int32),
    }
