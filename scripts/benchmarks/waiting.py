"""P11: how soon a waiting trainer has what another process commits, and what waiting costs.

The trainer waits in `select` for some time before each commit, so its loop sleeps when the event
comes. The PING it is compared with is sent after the same quiet time.
"""

from __future__ import annotations

import random
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks.bench import Bench
from benchmarks.processes import Lines, worker
from benchmarks.results import Figure, Found
from benchmarks.servers import idle_client, own_server
from benchmarks.turns import ratios, seconds_of
from benchmarks.workload import VERSIONS, opened, settle, settled_down
from redis_replay import WindowedSampler

_TIMES_A_ROUND: Final = 8
_QUIET_SECONDS: Final = 0.04
_WATCHED_SECONDS: Final = 6.0


async def measure_waiting(bench: Bench) -> Found:
    """Measure P11 on a server of its own, with the committing host in a process of its own."""
    bench.say("a waiting trainer")
    with own_server() as socket:
        async with (
            idle_client(socket) as client,
            opened(socket, "waiting", 64) as store,
            store.trainer(owner="job") as trainer,
            worker(socket, "waiting", "host") as host,
        ):
            rounds = [await _round(store, trainer, host, client) for _ in range(bench.rounds + 1)][
                1:
            ]
    with own_server() as socket:
        commands = await _commands_of_a_waiter(socket)
    by_name = {name: [one[name] for one in rounds] for name in rounds[0]}
    return Found(
        samples={
            "P11": {
                "wake-up": ratios(by_name["acknowledged to claimed"], by_name["idle ping"]),
                "commands a second": [commands],
            }
        },
        details={
            "waiting": {
                f"{name} ms": Figure.of(listed).value * 1000 for name, listed in by_name.items()
            }
        },
    )


async def _round(store: Any, trainer: Any, host: Lines, client: Any) -> dict[str, float]:
    """Return median seconds of the wake-ups and PINGs of one round."""
    sampler = WindowedSampler(trainer.buffer, max_staleness_versions=VERSIONS)
    spent: dict[str, list[float]] = {}
    for _ in range(_TIMES_A_ROUND):
        came: list[tuple[Any, float]] = []
        pause = _QUIET_SECONDS * random.uniform(0.5, 1.5)

        async def wait(came: list[tuple[Any, float]] = came) -> None:
            meta, _ = await trainer.select(
                sampler, current_train_weight=1, min_prompt_groups=1, max_prompt_groups=1
            )
            came.append((meta, time.monotonic()))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            begun, done = await host.ask("commit_one", pause)
        [(meta, claimed)] = came
        spent.setdefault("called to claimed", []).append(claimed - begun)
        spent.setdefault("acknowledged to claimed", []).append(claimed - done)
        await settle(trainer, meta)
        await settled_down(store)
        await anyio.sleep(pause)
        spent.setdefault("idle ping", []).append(await seconds_of(client.ping))
        spent.setdefault("busy ping", []).append(await seconds_of(client.ping))
    return {name: statistics.median(listed) for name, listed in spent.items()}


async def _commands_of_a_waiter(socket: Path) -> float:
    """Return how many commands a second a process sends whose trainer waits for nothing."""
    seen = 0
    async with (
        opened(socket, "alone", 64) as store,
        store.trainer(owner="job") as trainer,
        idle_client(socket) as client,
        client.monitor() as monitor,
        anyio.create_task_group() as tasks,
    ):
        sampler = WindowedSampler(trainer.buffer, max_staleness_versions=VERSIONS)
        select = partial(trainer.select, sampler, min_prompt_groups=1, max_prompt_groups=1)
        tasks.start_soon(select)
        await anyio.sleep(1)  # what it sends before it waits
        start, begun = time.monotonic(), time.time()
        with anyio.move_on_after(_WATCHED_SECONDS):
            while True:
                command = await monitor.next_command()
                if command["time"] >= begun:
                    seen += command["client_type"] != "lua"  # those are a script's own
        tasks.cancel_scope.cancel()
    return seen / (time.monotonic() - start)
