"""A rollout host or trainer as a process of its own: obeys JSON lines, answers each with one.

``python -m benchmarks.worker SOCKET RUN OWNER``. It answers ``"ready"`` when it is attached. Times
are seconds of the system's monotonic clock, which all processes share.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from benchmarks.rows import Rows, group_rows
from benchmarks.workload import (
    BATCH,
    bare_rows,
    claim,
    commit,
    commit_all,
    fill,
    opened,
    reserve,
    settle,
    settled_down,
)

_ANSWER_SECONDS = 0.05
"""A reply is held back for so long that it disturbs nobody who is being timed."""


class Worker:
    """The verbs, by name."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._rows: dict[int, Rows] = {}

    async def fill(self, groups: int) -> None:
        """Make groups of a few bytes ready."""
        rows = bare_rows()
        await fill(self._store, groups, lambda _: rows)

    async def commit_one(self, pause: float) -> tuple[float, float]:
        """Reserve a group, wait, commit it; return when the commit began and was acknowledged."""
        [slot] = await reserve(self._store, [1])
        await anyio.sleep(pause)
        begun = time.monotonic()
        await commit(self._store, slot, bare_rows())
        done = time.monotonic()
        await anyio.sleep(_ANSWER_SECONDS)
        return begun, done

    async def claim_and_settle(self, batches: int, begin: float) -> tuple[float, float]:
        """From an instant on, claim and settle so many batches; return when it began and ended."""
        await _wait_for(begin)
        begun = time.monotonic()
        for _ in range(batches):
            await settle(self._store, await claim(self._store, BATCH))
        done = time.monotonic()
        await settled_down(self._store)
        return begun, done

    async def commit_many(self, groups: int, tokens: int, begin: float) -> tuple[float, float]:
        """From an instant on, reserve and commit groups; return when it began and ended."""
        if tokens not in self._rows:
            self._rows[tokens] = group_rows(tokens)
        await _wait_for(begin)
        begun = time.monotonic()
        slots = await reserve(self._store, [1] * groups)
        await commit_all(self._store, slots, lambda _: self._rows[tokens], in_flight=4)
        return begun, time.monotonic()


async def _wait_for(instant: float) -> None:
    await anyio.sleep(max(0.0, instant - time.monotonic()))


async def _serve(socket: str, run: str, owner: str) -> None:
    async with opened(Path(socket), run) as store, store.rollout(owner=owner):
        worker, reply = Worker(store), json.dumps("ready")
        while True:
            sys.stdout.write(reply + "\n")
            sys.stdout.flush()
            line = await anyio.to_thread.run_sync(sys.stdin.readline)
            if not line:
                return
            verb, arguments = json.loads(line)
            method: Callable[..., Awaitable[Any]] = getattr(worker, verb)
            reply = json.dumps(await method(*arguments))


if __name__ == "__main__":
    logging.getLogger("redis_replay").setLevel(logging.ERROR)  # that the server persists nothing
    socket_path, run_name, owner_name = sys.argv[1:]
    anyio.run(_serve, socket_path, run_name, owner_name)
