"""P3: one column of a long group over a GET of as many bytes; and columns written back."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench import Bench
from benchmarks.limit import GET, Limit
from benchmarks.results import Figure, Found
from benchmarks.rows import GROUP_SIZE, group_rows
from benchmarks.servers import idle_client, own_server
from benchmarks.targets import WHOLE
from benchmarks.turns import Side, alternate, ratios, seconds_of, take_turns
from benchmarks.workload import (
    LONG,
    STANDARD,
    Profile,
    claim,
    commit_all,
    opened,
    reserve,
)

_GROUPS = 8
_READS_A_ROUND = 8


async def measure_columns(bench: Bench) -> Found:
    """Measure P3, and what `put_samples` costs over SETs of as many bytes."""
    profile = STANDARD if bench.quick else LONG
    bench.say(f"one column of {profile.name} groups")
    with own_server() as socket:
        async with (
            idle_client(socket) as client,
            opened(socket, "columns", _GROUPS) as store,
            store.trainer(owner="bench") as trainer,
        ):
            slots = await reserve(store, [1] * _GROUPS)
            rows = group_rows(profile.tokens)
            await commit_all(store, slots, lambda _: rows)
            ids = (await claim(trainer, _GROUPS)).sample_ids
            found = await _reading(bench, client, trainer, ids, profile, socket)
            found.details["write back"] = await _writing(bench, client, trainer, ids, profile)
    return found


async def _reading(
    bench: Bench, client: Any, trainer: Any, ids: Any, profile: Profile, socket: Path
) -> Found:
    size = GROUP_SIZE * profile.tokens * 4
    await client.set("plain0", bytes(size))
    gateway = trainer.buffer.session.link.gateway
    turn = [0]

    async def column() -> float:
        turn[0] = (turn[0] + 1) % _GROUPS
        chosen = ids[turn[0] * GROUP_SIZE : (turn[0] + 1) * GROUP_SIZE]
        read = partial(trainer.samples.get_samples, chosen, select_fields=["input_ids"])
        return await seconds_of(read)

    sides: dict[str, Side] = {
        "column": column,
        "get": lambda: seconds_of(lambda: client.get("plain0")),
        "line": lambda: seconds_of(lambda: gateway.pipeline([("GET", "plain0")])),
    }
    if bench.limit is not None:
        limit = Limit(bench.limit, socket)
        sides["limit"] = lambda: limit.seconds(GET, "plain", 0, 1, size)
    await alternate(sides, _READS_A_ROUND)
    rounds = [await alternate(sides, _READS_A_ROUND) for _ in range(bench.rounds)]
    by_side = {name: [one[name] for one in rounds] for name in sides}
    details = {
        f"over {name}": Figure.of(ratios(by_side["column"], by_side[name])).value
        for name in sides
        if name != "column"
    }
    milliseconds = {f"{name} ms": Figure.of(by_side[name]).value * 1000 for name in sides}
    return Found(
        samples={"P3": {WHOLE: ratios(by_side["column"], by_side["get"])}},
        details={"column": {"profile": profile.name, "bytes": size, **details, **milliseconds}},
    )


async def _writing(
    bench: Bench, client: Any, trainer: Any, ids: Any, profile: Profile
) -> dict[str, float]:
    """Return put_samples of a column of a group over a SET of a fresh key of as many bytes."""
    values = [np.full(profile.tokens, row, np.float32) for row in range(GROUP_SIZE)]
    whole = np.concatenate(values).tobytes()
    turn = [0]

    async def write_back() -> float:
        turn[0] += 1
        at = turn[0] % _GROUPS
        chosen = ids[at * GROUP_SIZE : (at + 1) * GROUP_SIZE]
        fields = {f"advantages_{turn[0]}": values}
        return await seconds_of(partial(trainer.samples.put_samples, chosen, fields=fields))

    async def plain() -> float:
        return await seconds_of(partial(client.set, f"written{turn[0]}", whole))

    seconds = await take_turns({"write back": write_back, "set": plain}, bench.rounds)
    return {
        "over set": Figure.of(ratios(seconds["write back"], seconds["set"])).value,
        **{f"{name} ms": Figure.of(listed).value * 1000 for name, listed in seconds.items()},
    }
