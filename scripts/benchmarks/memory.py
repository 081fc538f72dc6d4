"""P12: what the server's memory grows by."""

from __future__ import annotations

from typing import Any

import anyio

from benchmarks.bench import Bench
from benchmarks.results import Found
from benchmarks.rows import group_rows
from benchmarks.servers import idle_client, own_server
from benchmarks.workload import (
    PROFILES,
    SMALL,
    STANDARD,
    fill,
    opened,
    settled_down,
)

_FEW_TOKENS = 8
_PIPELINED = 1_000
_COUNTED_SECONDS = 1.5
"""After so long the server has counted the buffers of all connections anew."""


async def measure_memory(bench: Bench) -> Found:
    """Measure P12. Memory does not vary from round to round, so there is one."""
    bench.say("memory of the server")
    growth: dict[str, float] = {}
    for profile in (SMALL, STANDARD) if bench.quick else PROFILES:
        groups = max(16, 60_000_000 // profile.payload_bytes)
        grown, _ = await _growth(groups, profile.tokens)
        growth[profile.name] = grown / (groups * profile.payload_bytes)
    groups = 4_000 if bench.quick else 20_000
    grown, payload = await _growth(groups, _FEW_TOKENS, target_steps=False)
    more_grown, more_payload = await _growth(groups, _FEW_TOKENS)
    return Found(
        samples={
            "P12": {
                "memory per payload byte": [growth["standard"]],
                "control bytes": [(grown - payload) / groups],
            }
        },
        details={
            "memory": {
                **{f"{name} groups, per payload byte": value for name, value in growth.items()},
                f"bytes of a group of {_FEW_TOKENS} tokens a row": grown / groups,
                "control bytes of a group": (grown - payload) / groups,
                "control bytes of a group with a target step": (more_grown - more_payload) / groups,
            }
        },
    )


async def _growth(groups: int, tokens: int, *, target_steps: bool = True) -> tuple[int, int]:
    """Return by what so many groups make used_memory grow, and what their payload keys take."""
    rows = group_rows(tokens)
    with own_server() as socket:
        async with idle_client(socket) as client, opened(socket, "memory", groups) as store:
            await fill(store, 1, lambda _: rows)  # scripts and connections exist afterwards
            await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])
            await settled_down(store)
            before = await _used_memory(client)
            await fill(store, groups, lambda _: rows, target_steps=target_steps)
            await settled_down(store)
            after = await _used_memory(client)
            return after - before, await _payload_memory(client)


async def _used_memory(client: Any) -> int:
    """Return the bytes in use less the buffers of connections, which are not the groups'."""
    await anyio.sleep(_COUNTED_SECONDS)
    memory = await client.info("memory")
    return int(memory["used_memory"]) - int(memory["mem_clients_normal"])


async def _payload_memory(client: Any) -> int:
    names = [name async for name in client.scan_iter(match="rr:p:*", count=1000)]
    total = 0
    for first in range(0, len(names), _PIPELINED):
        async with client.pipeline(transaction=False) as pipeline:
            for name in names[first : first + _PIPELINED]:
                pipeline.memory_usage(name)
            total += sum(await pipeline.execute())
    return total
