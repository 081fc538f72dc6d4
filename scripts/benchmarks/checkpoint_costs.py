"""P8 and P9: what checkpoints cost by number of groups and by bytes of payload.

Create is what its caller waits for, digest included; the longest script of it, by SLOWLOG, is among
the details. Restore and drop are timed too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.longest_scripts import ScriptLog
from benchmarks.results import Figure, Found
from benchmarks.rows import BYTES_PER_TOKEN, GROUP_SIZE, group_rows
from benchmarks.servers import idle_client, net_bytes, own_server
from benchmarks.targets import WHOLE
from benchmarks.turns import ratios, seconds_of
from benchmarks.workload import (
    fill,
    opened,
    same_rows,
)

_GROUPS: Final = 200
_RESTORES: Final = 2
_CHEAP_VERBS: Final = ("create", "drop")
_STRING_COMMANDS: Final = (
    *("get", "mget", "getrange", "getdel", "getex", "set", "mset", "setrange", "append"),
    *("dump", "restore"),
)
"""What reads or writes strings; only payload is kept in strings."""


async def measure_checkpoint_costs(bench: Bench, stores: Mapping[int, Any], client: Any) -> Found:
    """Measure P8 by number of groups on filled buffers, by their size."""
    bench.say("checkpoints by number of groups")
    found = Found(samples={"P8": {}})
    measured = await _lifecycles(stores, client, bench.rounds, restores=_RESTORES)
    for size, samples in measured.items():
        if size in (1_000, 10_000, 100_000):
            name = f"{size:,} groups"
            found.samples["P8"] = {**found.samples["P8"], name: samples["create"]}
    found.details["checkpoints by groups"] = _medians(measured)
    return found


async def measure_checkpoint_bytes(bench: Bench) -> Found:
    """Measure P8 by bytes of payload, and P9."""
    sizes = (10_000_000, 100_000_000) if bench.quick else (10_000_000, 1_000_000_000)
    bench.say("checkpoints by bytes of payload")
    with own_server() as socket:
        async with (
            idle_client(socket) as client,
            opened(socket, "little", _GROUPS) as little,
            opened(socket, "much", _GROUPS) as much,
        ):
            for store, size in ((little, sizes[0]), (much, sizes[1])):
                rows = group_rows(size // _GROUPS // GROUP_SIZE // BYTES_PER_TOKEN)
                await fill(store, _GROUPS, partial(same_rows, rows))
            both = {sizes[0]: little, sizes[1]: much}
            measured = await _lifecycles(both, client, bench.rounds, restores=bench.rounds)
    return Found(
        samples={
            "P8": {
                "much over little payload": ratios(
                    measured[sizes[1]]["create"], measured[sizes[0]]["create"]
                )
            },
            "P9": {WHOLE: measured[sizes[1]]["restore payload bytes"]},
        },
        details={"checkpoints by bytes": _medians(measured)},
    )


async def _lifecycles(
    stores: Mapping[int, Any], client: Any, rounds: int, *, restores: int
) -> dict[int, dict[str, list[float]]]:
    """Create, restore and drop in turns; return samples in milliseconds and bytes, by store.

    Only so many rounds restore, the last ones: of many groups that takes seconds.
    """
    log = ScriptLog(client)
    measured: dict[int, dict[str, list[float]]] = {at: {} for at in stores}
    for number in range(rounds + 1):
        for at, store in stores.items():
            verbs = ("create", "restore", "drop") if number > rounds - restores else _CHEAP_VERBS
            samples = await _lifecycle(store, client, log, f"c{number}", verbs)
            for name, value in samples.items() if number else ():
                measured[at].setdefault(name, []).append(value)
    return measured


async def _lifecycle(
    store: Any, client: Any, log: ScriptLog, name: str, verbs: tuple[str, ...]
) -> dict[str, float]:
    samples: dict[str, float] = {}

    async def timed(verb: str) -> None:
        call = getattr(store.checkpoints, verb)
        samples[verb] = await seconds_of(lambda: call(name)) * 1000

    for verb in verbs:
        before, strings = await net_bytes(client), await _string_calls(client)
        longest = await log.longest(partial(timed, verb))
        moved = await net_bytes(client) - before
        samples[f"{verb} script"] = max(longest.values(), default=0.0)
        samples[f"{verb} network bytes"] = moved
        touched = await _string_calls(client) != strings
        samples[f"{verb} payload bytes"] = moved if touched else 0
    return samples


async def _string_calls(client: Any) -> int:
    stats = await client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in _STRING_COMMANDS)


def _medians(measured: Mapping[int, Mapping[str, list[float]]]) -> dict[str, dict[str, float]]:
    return {
        str(at): {
            name if name.endswith("bytes") else f"{name} ms": Figure.of(listed).value
            for name, listed in samples.items()
        }
        for at, samples in measured.items()
    }
