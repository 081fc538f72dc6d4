"""P16: the longest step of the event loop that calls of the store take.

Every call is made under `longest_step`, which times each step of the loop in wall time and in
processor time of its thread; the second does not grow when other programs take the processor away
in the middle of a step. Views of a whole buffer (`slots`, `audit`) grow with it and are left out.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from benchmarks.bench import Bench
from benchmarks.results import Figure, Found
from benchmarks.rows import GROUP_SIZE, group_rows
from benchmarks.servers import own_server
from benchmarks.workload import (
    BATCH,
    PROFILES,
    SMALL,
    STANDARD,
    Profile,
    bare_rows,
    claim,
    commit_all,
    fill,
    opened,
    reserve,
    settle,
    settled_down,
)
from redis_replay.selection import Eviction

_STANDING_GROUPS: Final = 1_000
_PLACES: Final = 3_000
_SLICE: Final = 256

Steps = dict[str, tuple[float, float]]
"""Longest step in milliseconds of wall and of processor time, by call."""


@contextmanager
def longest_step(found: list[tuple[float, float]]) -> Iterator[None]:
    """Append the milliseconds of the block's longest step of the loop, and of processor time."""
    longest = busiest = 0.0
    run = asyncio.events.Handle._run

    def timed_run(handle: asyncio.Handle) -> None:
        nonlocal longest, busiest
        start, used = time.perf_counter(), time.thread_time()
        run(handle)
        longest = max(longest, time.perf_counter() - start)
        busiest = max(busiest, time.thread_time() - used)

    asyncio.events.Handle._run = timed_run  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        found.append((longest * 1000, busiest * 1000))


class _Calls:
    """Makes calls and keeps the longest step of each."""

    def __init__(self) -> None:
        self.steps: Steps = {}

    async def make(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call and return its result.

        It runs in a task of its own, so that its first and its last step are whole ones.
        """
        found: list[tuple[float, float]] = []
        with longest_step(found):
            result = await asyncio.ensure_future(call())
        before = self.steps.get(name, (0.0, 0.0))
        self.steps[name] = (max(before[0], found[0][0]), max(before[1], found[0][1]))
        return result


async def measure_event_loop(bench: Bench) -> Found:
    """Measure P16 on a server of its own."""
    bench.say("the longest step of the event loop")
    profiles = (SMALL, STANDARD) if bench.quick else PROFILES
    rows = {profile.name: group_rows(profile.tokens) for profile in profiles}
    few = bare_rows()
    rounds: list[Steps] = []
    with own_server() as socket:
        async with opened(socket, "loop", _PLACES, groups_per_step=BATCH) as store:
            await fill(store, _STANDING_GROUPS, lambda _: few)
            async with store.trainer(owner="job") as trainer:
                for _ in range(bench.rounds + 1):
                    calls = _Calls()
                    await _control(calls, store, trainer)
                    await _checkpoint(calls, store, bench)
                    rounds.append(calls.steps)
        async with opened(socket, "payload", _PLACES) as store:
            for at in range(bench.rounds + 1):
                calls = _Calls()
                for profile in profiles:
                    await _payload(calls, store, profile, rows[profile.name])
                rounds[at].update(calls.steps)
    return _found(rounds[1:])


def _found(rounds: list[Steps]) -> Found:
    by_call = {
        name: {
            "wall ms": Figure.of([one[name][0] for one in rounds]).value,
            "processor ms": Figure.of([one[name][1] for one in rounds]).value,
        }
        for name in rounds[0]
    }
    return Found(
        samples={
            "P16": {
                "wall": [max(wall for wall, _ in one.values()) for one in rounds],
                "processor": [max(used for _, used in one.values()) for one in rounds],
            }
        },
        details={"longest steps": by_call},
    )


async def _payload(calls: _Calls, store: Any, profile: Profile, rows: Any) -> None:
    """Commit and read a round of groups, and write a column back."""
    groups = profile.groups
    slots = await reserve(store, [1] * groups)
    await calls.make(
        f"commit {profile.name}", lambda: commit_all(store, slots, lambda _: rows, in_flight=4)
    )
    meta = await claim(store, groups)
    read = await calls.make(f"get_samples {profile.name}", lambda: store.samples.get_samples(meta))
    del read
    values = [np.full(profile.tokens, row, np.float32) for row in range(GROUP_SIZE)]
    chosen = meta.sample_ids[:GROUP_SIZE]
    await calls.make(
        f"put_samples {profile.name}",
        lambda: store.samples.put_samples(chosen, fields={"advantages": values}),
    )
    await settle(store, meta)
    await settled_down(store)


async def _control(calls: _Calls, store: Any, trainer: Any) -> None:
    """Make the calls of the control plane, in batches of 64."""
    few = bare_rows()
    await calls.make("reserve", lambda: store.buffer.reserve(1))
    slots = await calls.make("cut of 64", lambda: reserve(store, [1] * BATCH))
    await calls.make("commit bare", lambda: commit_all(store, slots, lambda _: few, in_flight=4))
    await calls.make("claim of 64", lambda: claim(trainer))
    await calls.make("requeue", trainer.requeue)
    meta = await claim(trainer)

    async def settle_down() -> None:
        await settle(trainer, meta)
        await settled_down(store)

    await calls.make("settle", settle_down)
    old = await reserve(store, [0] * _SLICE)
    await commit_all(store, old, lambda _: few)
    await calls.make("evict", lambda: store.buffer.evict(Eviction(below=1)))
    await calls.make("stats", store.stats)
    await calls.make("step_target", lambda: store.step_target(1))


async def _checkpoint(calls: _Calls, store: Any, bench: Bench) -> None:
    """Create, export, import, restore and drop a checkpoint of a thousand groups."""
    checkpoints, exported = store.checkpoints, bench.folder / "loop"
    await calls.make("checkpoint create", lambda: checkpoints.create("one"))
    await calls.make("checkpoint export", lambda: checkpoints.export("one", exported))
    await calls.make("checkpoint import", lambda: checkpoints.import_(exported, name="two"))
    await calls.make("checkpoint drop", lambda: checkpoints.drop("two"))
    await checkpoints.drop("one")
    shutil.rmtree(exported)
