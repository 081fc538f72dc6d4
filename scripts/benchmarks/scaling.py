"""P4 and P5: what calls cost in buffers of different sizes, and a claim over a PING.

All buffers are filled before the first round. In each round and for each size, batches are
claimed by every rule and given back, some are settled, as many groups are reserved and committed
one by one, and a few more that are evicted at once; a miss is a claim where nothing is eligible.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.results import Figure, Found
from benchmarks.targets import SCALED_VERBS, WHOLE
from benchmarks.turns import ratios, seconds_of
from benchmarks.workload import (
    BATCH,
    VERSIONS,
    any_ready,
    bare_rows,
    claim,
    commit,
    settle,
    settled_down,
)
from redis_replay import Rule, Selection
from redis_replay.selection import Eviction

RULES: Final = (Rule.BUFFER, Rule.FRESHEST, Rule.OLDEST_VERSION, Rule.ARRIVAL, Rule.STEP)
NOWHERE: Final = Selection(Rule.BUFFER, 900, 901, BATCH, BATCH)
EVICTED: Final = 8
CLAIMS_A_ROUND: Final = 5
SETTLES_A_ROUND: Final = 3
EVICTIONS_A_ROUND: Final = 3
_ROWS: Final = bare_rows()

Costs = dict[str, list[float]]
"""Seconds of single calls, by verb."""


def exponent_of(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of log cost over log size, by least squares."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    return statistics.linear_regression(xs, ys).slope


async def measure_scaling(bench: Bench, stores: Mapping[int, Any], client: Any) -> Found:
    """Measure P4 and P5 on filled buffers, by their size; ``client`` is an idle one."""
    bench.say(f"calls against buffers of {', '.join(f'{size:,}' for size in stores)} groups")
    medians: dict[int, dict[str, list[float]]] = {size: {} for size in stores}
    pings: list[float] = []
    for at in range(bench.rounds + 1):
        pinged: list[float] = []
        for size, store in stores.items():
            costs = await _one_round(store, client, pinged)
            if at:
                for verb, seconds in costs.items():
                    medians[size].setdefault(verb, []).append(statistics.median(seconds))
        if at:
            pings.append(statistics.median(pinged))
    return _found(medians, pings)


async def _one_round(store: Any, client: Any, pinged: list[float]) -> Costs:
    """Make all calls against one buffer, which has as many groups afterwards as before."""
    costs: Costs = {}
    for rule in RULES:
        for _ in range(CLAIMS_A_ROUND):
            name = "claim" if rule is Rule.BUFFER else f"claim {rule.value}"
            spent = await seconds_of(partial(store.buffer.claim, any_ready(rule=rule)))
            costs.setdefault(name, []).append(spent)
            await store.buffer.claims.requeue_all(failed=False)
            await settled_down(store)
            pinged.append(await seconds_of(client.ping))
    for _ in range(CLAIMS_A_ROUND):
        spent = await seconds_of(partial(store.buffer.claim, NOWHERE))
        costs.setdefault("miss", []).append(spent)
    for _ in range(SETTLES_A_ROUND):
        meta = await claim(store)
        spent = await seconds_of(partial(settle, store, meta))
        costs.setdefault("settle", []).append(spent)
        await settled_down(store)
    await _refill(store, costs)
    return costs


async def _refill(store: Any, costs: Costs) -> None:
    """Replace what was settled, and a few times make and evict groups of the oldest version."""
    for at in range(BATCH * SETTLES_A_ROUND):
        await _add(store, 1 + at % VERSIONS, costs)
    for _ in range(EVICTIONS_A_ROUND):
        for _ in range(EVICTED):
            await _add(store, 0, costs)
        spent = await seconds_of(partial(store.buffer.evict, Eviction(below=1)))
        costs.setdefault("evict", []).append(spent)
        await settled_down(store)


async def _add(store: Any, weight: int, costs: Costs) -> None:
    """Reserve and commit one group, both timed."""
    start = time.perf_counter()
    slot = await store.buffer.reserve(weight, target_step=weight)
    reserved = time.perf_counter()
    await commit(store, slot, _ROWS)
    costs.setdefault("reserve", []).append(reserved - start)
    costs.setdefault("commit", []).append(time.perf_counter() - reserved)


def _found(medians: Mapping[int, Mapping[str, list[float]]], pings: list[float]) -> Found:
    sizes = sorted(medians)
    small, large = medians[sizes[0]], medians[sizes[-1]]
    flat: dict[str, list[float]] = {"claim ratio": ratios(large["claim"], small["claim"])}
    for verb in SCALED_VERBS:
        by_round = zip(*(medians[size][verb] for size in sizes), strict=True)
        flat[f"{verb} exponent"] = [exponent_of(sizes, costs) for costs in by_round]
    return Found(
        samples={"P4": flat, "P5": {WHOLE: ratios(large["claim"], pings)}},
        details={
            "scaling": {
                "ping ms": Figure.of(pings).value * 1000,
                "ms by groups": {
                    verb: {str(size): Figure.of(medians[size][verb]).value * 1000 for size in sizes}
                    for verb in small
                },
            }
        },
    )
