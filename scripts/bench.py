"""Cost of a claim against the size of the buffer, measured side by side in one run.

Two runs on one private server, a small and a large buffer; each round claims 64 groups from the
one, then from the other, then pings. Prints medians and ratios, and with --json FILE writes them
with the machine's facts.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import redis.asyncio

from redis_replay import ReplayStore, Rule, Selection, __version__, open_store
from redis_replay.embedded import open_embedded

CLAIMED_GROUPS = 64
VERSIONS = 4
FILL_SLICE = 500
RULES = (Rule.BUFFER, Rule.FRESHEST, Rule.OLDEST_VERSION, Rule.ARRIVAL, Rule.STEP)


async def fill(store: ReplayStore, groups: int) -> None:
    """Make groups ready, spread over versions, with the smallest payload there is."""
    rows = [{"reward": 1.0}]
    for start in range(0, groups, FILL_SLICE):
        async with store.mutation() as cut:
            for at in range(start, min(start + FILL_SLICE, groups)):
                cut.reserve(at % VERSIONS, target_step=at % VERSIONS)
        limiter = anyio.CapacityLimiter(16)
        async with anyio.create_task_group() as tasks:
            for slot in cut.reservations:
                tasks.start_soon(commit, store, slot.group_id, slot.weight_version, rows, limiter)


async def commit(
    store: ReplayStore, group_id: str, weight: int, rows: Any, limiter: anyio.CapacityLimiter
) -> None:
    """Commit one group."""
    async with limiter:
        await store.buffer.commit(
            group_id, rows, start_weight_version=weight, end_weight_version=weight
        )


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Return how long a call took, in milliseconds."""
    start = time.perf_counter()
    await call()
    return (time.perf_counter() - start) * 1000


async def claim_round(store: ReplayStore, rule: Rule) -> float:
    """Claim and give back, and return the milliseconds of the claim."""
    highest = 0 if rule is Rule.STEP else VERSIONS - 1
    selection = Selection(rule, 0, highest, CLAIMED_GROUPS, CLAIMED_GROUPS)
    spent = await timed(lambda: store.buffer.claim(selection))
    await store.buffer.claims.requeue_all(failed=False)
    return spent


async def measure(url: str, sizes: tuple[int, int], rounds: int) -> Iterator[dict[str, Any]]:
    """Fill both buffers and return one row of figures for each rule."""
    small_groups, large_groups = sizes
    options = {"group_size": 1, "journal_events": 1000}
    client = redis.asyncio.Redis.from_url(url)
    results: list[dict[str, Any]] = []
    async with (
        open_store(url, run="small", capacity=small_groups, **options) as small,
        open_store(url, run="large", capacity=large_groups, **options) as large,
    ):
        for store, groups in ((small, small_groups), (large, large_groups)):
            print(f"filling {groups:,} groups ...", file=sys.stderr)
            await fill(store, groups)
        for rule in RULES:
            samples: dict[str, list[float]] = {"small": [], "large": [], "ping": []}
            for _ in range(rounds):
                samples["small"].append(await claim_round(small, rule))
                samples["large"].append(await claim_round(large, rule))
                samples["ping"].append(await timed(client.ping))
            medians = {name: statistics.median(values) for name, values in samples.items()}
            results.append(
                {
                    "rule": rule.value,
                    "small_ms": medians["small"],
                    "large_ms": medians["large"],
                    "ping_ms": medians["ping"],
                    "large_over_small": medians["large"] / medians["small"],
                    "small_over_ping": medians["small"] / medians["ping"],
                }
            )
    await client.aclose()
    return iter(results)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small run that shows it works")
    parser.add_argument("--rounds", type=int, default=51)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    sizes = (1_000, 3_000) if arguments.quick else (1_000, 100_000)
    rounds = 7 if arguments.quick else arguments.rounds
    with open_embedded(None) as lease:
        rows = list(anyio.run(measure, lease.url, sizes, rounds))
    print(f"claim of {CLAIMED_GROUPS} groups, medians of {rounds} rounds")
    print(
        f"{'rule':<16}{f'{sizes[0]:,}':>10}{f'{sizes[1]:,}':>10}{'PING':>9}{'ratio':>8}{'PINGs':>8}"
    )
    for row in rows:
        print(
            f"{row['rule']:<16}{row['small_ms']:>7.2f} ms{row['large_ms']:>7.2f} ms"
            f"{row['ping_ms']:>6.2f} ms{row['large_over_small']:>8.2f}"
            f"{row['small_over_ping']:>8.1f}"
        )
    if arguments.json:
        facts = {"machine": platform.platform(), "python": platform.python_version()}
        document = {"version": __version__, "sizes": sizes, "rounds": rounds, **facts, "rows": rows}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
