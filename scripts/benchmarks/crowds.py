"""P6 and P17: several processes at once, over one."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import anyio

from benchmarks.bench import Bench
from benchmarks.processes import Lines, all_at_once, worker
from benchmarks.results import Figure, Found
from benchmarks.servers import idle_client, own_server
from benchmarks.targets import WHOLE
from benchmarks.turns import Side, ratios, take_turns
from benchmarks.workload import BATCH, STANDARD, opened

_TRAINERS: Final = 8
_HOSTS: Final = 4
_PINGS: Final = 500


async def pings_a_second(client: Any) -> float:
    """Return how many PINGs one client gets answered, one after the other."""
    start = time.perf_counter()
    for _ in range(_PINGS):
        await client.ping()
    return _PINGS / (time.perf_counter() - start)


async def measure_claiming_crowd(bench: Bench) -> Found:
    """Measure P6: eight processes claim and settle prepared groups in batches of 64."""
    batches = 3 if bench.quick else 8
    groups = _TRAINERS * batches * BATCH
    total = groups * (bench.rounds + 1)
    bench.say(f"{_TRAINERS} processes that claim and settle")
    with own_server() as socket:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(idle_client(socket))
            await stack.enter_async_context(opened(socket, "crowd", total))
            trainers = [
                await stack.enter_async_context(worker(socket, "crowd", f"job-{at}"))
                for at in range(_TRAINERS)
            ]
            async with anyio.create_task_group() as tasks:
                for one in trainers[:2]:
                    tasks.start_soon(one.ask, "fill", total // 2)

            async def crowd() -> float:
                return groups / await all_at_once(trainers, "claim_and_settle", batches)

            sides: dict[str, Side] = {"PINGs/s": partial(pings_a_second, client), "groups/s": crowd}
            speeds = await take_turns(sides, bench.rounds)
    return Found(
        samples={"P6": {WHOLE: ratios(speeds["groups/s"], speeds["PINGs/s"])}},
        details={"crowd": {name: Figure.of(speeds[name]).value for name in speeds}},
    )


async def measure_writing_crowd(bench: Bench) -> Found:
    """Measure P17: the bytes a second that four rollout processes commit over those of one."""
    groups = 8 if bench.quick else 24
    bench.say(f"{_HOSTS} processes that commit")
    with own_server() as socket:
        async with AsyncExitStack() as stack:
            total = groups * (_HOSTS + 1) * (bench.rounds + 1)
            await stack.enter_async_context(opened(socket, "hosts", total))
            hosts = [
                await stack.enter_async_context(worker(socket, "hosts", f"host-{at}"))
                for at in range(_HOSTS)
            ]

            async def commit(some: list[Lines]) -> float:
                spent = await all_at_once(some, "commit_many", groups, STANDARD.tokens)
                return len(some) * groups * STANDARD.payload_bytes / spent / 1e6

            sides: dict[str, Side] = {
                "four": partial(commit, hosts),
                "one": partial(commit, hosts[:1]),
            }
            speeds = await take_turns(sides, bench.rounds)
    return Found(
        samples={"P17": {WHOLE: ratios(speeds["four"], speeds["one"])}},
        details={
            "writing crowd": {f"{name}, MB/s": Figure.of(speeds[name]).value for name in speeds}
        },
    )
