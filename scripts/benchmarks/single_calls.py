"""P7: what one small call costs over one PING.

In turns, call by call: admit a batch, reserve a group for it, commit it with rows of a few bytes,
claim where nothing is eligible, PING; then the group is claimed and settled, untimed. The PING is
that of an idle asynchronous client, which costs what the client library's own path costs; over the
store's own line it is among the details.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from benchmarks.bench import Bench
from benchmarks.results import Figure, Found
from benchmarks.rows import GROUP_SIZE
from benchmarks.scaling import NOWHERE
from benchmarks.servers import idle_client, own_server
from benchmarks.turns import ratios
from benchmarks.workload import (
    bare_rows,
    opened,
    settle,
    settled_down,
)
from redis_replay import InOrderSamplerConfig, create_sampler

_CALLS = ("reserve", "commit flip", "admit", "empty claim")
_LOOKAHEAD = 1_000_000
_TIMES_A_ROUND = 30


async def measure_single_calls(bench: Bench) -> Found:
    """Measure P7 on a server of its own."""
    bench.say("single calls")
    with own_server() as socket:
        async with idle_client(socket) as client, opened(socket, "calls", 64) as store:
            config = InOrderSamplerConfig(max_lookahead_versions=_LOOKAHEAD)
            sampler = create_sampler(store.buffer, config)
            rounds = [await _round(store, sampler, client) for _ in range(bench.rounds + 1)][1:]
    by_name = {name: [one[name] for one in rounds] for name in rounds[0]}
    return Found(
        samples={"P7": {name: ratios(by_name[name], by_name["ping"]) for name in _CALLS}},
        details={
            "single calls": {
                "ms": {name: Figure.of(listed).value * 1000 for name, listed in by_name.items()},
                "over a PING on the store's own line": {
                    name: Figure.of(ratios(by_name[name], by_name["line ping"])).value
                    for name in _CALLS
                },
            }
        },
    )


async def _round(store: Any, sampler: Any, client: Any) -> dict[str, float]:
    """Return the median seconds of each call."""
    spent: dict[str, list[float]] = {}
    rows = bare_rows()
    gateway, admission = store.buffer.session.link.gateway, store.buffer.admission
    await sampler.flush()

    async def timed(name: str, call: Any) -> Any:
        start = time.perf_counter()
        result = await call
        spent.setdefault(name, []).append(time.perf_counter() - start)
        return result

    for _ in range(_TIMES_A_ROUND):
        await timed("ping", client.ping())
        await timed("line ping", gateway.pipeline([("PING",)]))
        index = await timed("admit", admission.admit())
        slot = await timed("reserve", store.buffer.reserve(0, target_step=index))
        weights = {"start_weight_version": 0, "end_weight_version": 0}
        await timed("commit flip", store.buffer.commit(slot.group_id, rows, **weights))
        await timed("empty claim", store.buffer.claim(NOWHERE))
        meta = await store.buffer.claim_for_training([slot.group_id])
        if meta.size != GROUP_SIZE:
            raise RuntimeError(f"a group of {meta.size} rows was claimed")
        await settle(store, meta)
        await settled_down(store)
    return {name: statistics.median(listed) for name, listed in spent.items()}
