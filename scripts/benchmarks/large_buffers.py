"""P4, P5, P15 and P8 by groups: all that needs buffers of up to 100,000 groups, filled once."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from benchmarks.bench import Bench
from benchmarks.checkpoint_costs import measure_checkpoint_costs
from benchmarks.longest_scripts import measure_longest_scripts
from benchmarks.results import Found
from benchmarks.scaling import measure_scaling
from benchmarks.servers import idle_client, own_server
from benchmarks.workload import bare_rows, fill, opened

_SPARE_PLACES = 2_048


async def measure_large_buffers(bench: Bench) -> Found:
    """Fill a buffer of each size, then measure everything that compares them."""
    rows = bare_rows()
    with own_server() as socket:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(idle_client(socket))
            stores: dict[int, Any] = {}
            for size in bench.sizes:
                bench.say(f"filling a buffer with {size:,} groups")
                run = opened(socket, f"n{size}", size + _SPARE_PLACES)
                stores[size] = await stack.enter_async_context(run)
                await fill(stores[size], size, lambda _: rows)
            found = Found()
            if bench.wanted & {"P4", "P5"}:
                found.add(await measure_scaling(bench, stores, client))
            if "P15" in bench.wanted:
                found.add(await measure_longest_scripts(bench, stores[bench.sizes[-1]], client))
            if "P8" in bench.wanted:
                found.add(await measure_checkpoint_costs(bench, stores, client))
    return found
