"""Taking turns: the sides of a comparison run one after the other within every round.

What the machine does meanwhile then happens to all of them, and a ratio of one round means
something although no absolute figure does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping

Call = Callable[[], Awaitable[object]]
Side = Callable[[], Awaitable[float]]
"""One round of one side; returns its sample."""


async def take_turns(
    sides: Mapping[str, Side], rounds: int, *, warmups: int = 1
) -> dict[str, list[float]]:
    """Return each side's samples, one a round; the warm-up rounds go first and do not count."""
    samples: dict[str, list[float]] = {name: [] for name in sides}
    for at in range(warmups + rounds):
        for name, side in sides.items():
            sample = await side()
            if at >= warmups:
                samples[name].append(sample)
    return samples


async def seconds_of(call: Call) -> float:
    """Return how long a call took."""
    start = time.perf_counter()
    await call()
    return time.perf_counter() - start


async def alternate(calls: Mapping[str, Side], times: int) -> dict[str, float]:
    """Return the median of each side over so many runs, one of each after the other: one round."""
    samples = await take_turns(calls, times, warmups=0)
    return {name: statistics.median(listed) for name, listed in samples.items()}


def ratios(above: list[float], below: list[float]) -> list[float]:
    """Return the quotient of two sides, round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]
