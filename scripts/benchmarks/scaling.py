"""P4 and P5: what calls cost in buffers of different sizes, and a claim over a PING.

All buffers are filled before the first round, and each call is made against all of them in turn. In
a round batches are claimed by every rule and given back, some are settled, as many groups are
reserved and committed one by one, and a few more that are evicted at once; a miss is a claim where
nothing is eligible.
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
SELECTIONS: Final = {
    "claim": any_ready(),
    "claim, half of the versions": Selection(Rule.BUFFER, 2, 3, BATCH, BATCH),
    **{f"claim {rule.value}": any_ready(rule=rule) for rule in RULES[1:]},
}
"""Claims by name. `claim` is the windowed policy's with all ready groups in the window, as they are
after an eviction; with half of the versions in it the rule has to merge."""
NOWHERE: Final = Selection(Rule.BUFFER, 900, 901, BATCH, BATCH)
EVICTED: Final = 8
CLAIMS_A_ROUND: Final = 5
SETTLES_A_ROUND: Final = 5
EVICTIONS_A_ROUND: Final = 5
_ROWS: Final = bare_rows()


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
        probes = [Probe(store) for store in stores.values()]
        await _one_round(probes, client, pinged)
        if at:
            pings.append(statistics.median(pinged))
            for size, probe in zip(stores, probes, strict=True):
                for verb, seconds in probe.costs.items():
                    medians[size].setdefault(verb, []).append(statistics.median(seconds))
    return _found(medians, pings)


class Probe:
    """Makes single calls against one buffer and notes their seconds, by verb."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.costs: dict[str, list[float]] = {}

    def _note(self, verb: str, seconds: float) -> None:
        self.costs.setdefault(verb, []).append(seconds)

    async def claim(self, name: str) -> None:
        """Claim a batch by one of the `SELECTIONS` and give it back.

        Raises:
            RuntimeError: there were too few groups.
        """
        selection, start = SELECTIONS[name], time.perf_counter()
        _, groups = await self._store.buffer.claim(selection)
        self._note(name, time.perf_counter() - start)
        if groups != BATCH:
            raise RuntimeError(f"{groups} groups were claimed by {name!r} instead of {BATCH}")
        await self._store.buffer.claims.requeue_all(failed=False)
        await settled_down(self._store)

    async def miss(self) -> None:
        """Claim where nothing is eligible."""
        self._note("miss", await seconds_of(partial(self._store.buffer.claim, NOWHERE)))

    async def settle(self) -> None:
        """Consume a batch."""
        meta = await claim(self._store)
        self._note("settle", await seconds_of(partial(settle, self._store, meta)))
        await settled_down(self._store)

    async def add(self, weight: int) -> None:
        """Reserve and commit one group."""
        start = time.perf_counter()
        slot = await self._store.buffer.reserve(weight, target_step=weight)
        reserved = time.perf_counter()
        await commit(self._store, slot, _ROWS)
        self._note("reserve", reserved - start)
        self._note("commit", time.perf_counter() - reserved)

    async def evict(self) -> None:
        """Evict the groups of the oldest version."""
        evict = partial(self._store.buffer.evict, Eviction(below=1))
        self._note("evict", await seconds_of(evict))
        await settled_down(self._store)


async def _one_round(probes: Sequence[Probe], client: Any, pinged: list[float]) -> None:
    """Make all calls, each against all buffers in turn; they keep their number of groups."""
    for name in [*SELECTIONS] * CLAIMS_A_ROUND:
        for probe in probes:
            await probe.claim(name)
            pinged.append(await seconds_of(client.ping))
    for _ in range(CLAIMS_A_ROUND):
        for probe in probes:
            await probe.miss()
    for _ in range(SETTLES_A_ROUND):
        for probe in probes:
            await probe.settle()
    for at in range(BATCH * SETTLES_A_ROUND):
        for probe in probes:
            await probe.add(1 + at % VERSIONS)
    for _ in range(EVICTIONS_A_ROUND):
        for _ in range(EVICTED):
            for probe in probes:
                await probe.add(0)
        for probe in probes:
            await probe.evict()


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
