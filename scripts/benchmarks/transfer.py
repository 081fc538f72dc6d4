"""P1 and P2: the payload path over what one connection carries without a client library.

Per group size and round: the C program sets fresh keys, the store commits as many groups of the
same size under fresh keys. When all is written, the same for reading: GETs, then claim, read,
decode and settle. The C program's processes and the store's connections exist before the clock
starts. Payload can travel two ways (`open_store`'s ``transfer``); the default is what counts.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.limit import GET, NO_COMPILER, SET, Limit
from benchmarks.results import Figure, Found
from benchmarks.rows import GROUP_SIZE, Rows, group_rows
from benchmarks.servers import own_server
from benchmarks.turns import Side, ratios, take_turns
from benchmarks.workload import (
    PROFILES,
    SMALL,
    STANDARD,
    Profile,
    claim,
    commit_all,
    opened,
    reserve,
    settle,
    settled_down,
)

WAYS: Final = ("channel", "plain")
_COMMITS_IN_FLIGHT: Final = 4


async def measure_transfer(bench: Bench) -> Found:
    """Measure P1 and P2 for each group size, on a server of its own."""
    if bench.limit is None:
        return Found(skipped={"P1": NO_COMPILER, "P2": NO_COMPILER})
    found = Found(samples={"P1": {}, "P2": {}})
    for profile in (SMALL, STANDARD) if bench.quick else PROFILES:
        ways = WAYS[:1] if bench.quick else WAYS
        bench.say(f"transfer of {profile.name} groups")
        with own_server() as socket:
            found.add(await _profile(Limit(bench.limit, socket), socket, profile, bench, ways))
    return found


async def _profile(
    limit: Limit, socket: Path, profile: Profile, bench: Bench, ways: tuple[str, ...]
) -> Found:
    rows, groups = group_rows(profile.tokens), profile.groups
    capacity = groups * (bench.rounds + 1)
    async with AsyncExitStack() as stack:
        stores = {
            way: await stack.enter_async_context(opened(socket, way, capacity, transfer=way))
            for way in ways
        }
        writers: dict[str, Side] = {
            way: partial(commit_round, store, rows, groups) for way, store in stores.items()
        }
        readers: dict[str, Side] = {
            way: partial(read_round, store, groups) for way, store in stores.items()
        }
        first_write, first_read = ([0], [0])
        size = profile.payload_bytes
        sets = partial(_limit_round, limit, SET, first_write, groups, size)
        gets = partial(_limit_round, limit, GET, first_read, groups, size)
        written = await take_turns({"limit": sets, **writers}, bench.rounds)
        stored = (await stores[ways[0]].stats()).payload_bytes // capacity
        read = await take_turns({"limit": gets, **readers}, bench.rounds)
    # The limit moved the bytes of the arrays; the store is not credited with its own overhead.
    default = ways[0]
    found = Found(details={f"transfer {profile.name}": {"bytes a group": stored, "groups": groups}})
    details = found.details[f"transfer {profile.name}"]
    for target_id, verb, seconds in (("P1", "commit", written), ("P2", "read", read)):
        found.samples[target_id] = {profile.name: ratios(seconds["limit"], seconds[default])}
        details[verb] = _speeds(seconds, groups * size)
    return found


def _speeds(seconds: dict[str, list[float]], size: int) -> dict[str, Any]:
    """Return MB/s of each side, and its ratio to the limit."""
    speeds: dict[str, Any] = {}
    for side, listed in seconds.items():
        over_limit = Figure.of(ratios(seconds["limit"], listed))
        speeds[side] = {
            "MB/s": size / Figure.of(listed).value / 1e6,
            "over the C program": over_limit.value,
            "lowest": over_limit.low,
            "highest": over_limit.high,
        }
    return speeds


async def _limit_round(limit: Limit, verb: str, first: list[int], groups: int, size: int) -> float:
    seconds = await limit.seconds(verb, "limit-", first[0], groups, size)
    first[0] += groups
    return seconds


async def commit_round(store: Any, rows: Rows, groups: int) -> float:
    """Reserve and commit so many groups and return the seconds it took."""
    start = time.perf_counter()
    slots = await reserve(store, [1] * groups)
    await commit_all(store, slots, lambda _: rows, in_flight=_COMMITS_IN_FLIGHT)
    return time.perf_counter() - start


async def read_round(store: Any, groups: int) -> float:
    """Claim, read, decode and settle so many groups and return the seconds it took.

    Raises:
        RuntimeError: rows are missing.
    """
    start = time.perf_counter()
    meta = await claim(store, groups)
    rows = await store.samples.get_samples(meta)
    await settle(store, meta)
    spent = time.perf_counter() - start
    if len(rows) != groups * GROUP_SIZE:
        raise RuntimeError(f"{len(rows)} rows came back instead of {groups * GROUP_SIZE}")
    del rows
    await settled_down(store)
    return spent
