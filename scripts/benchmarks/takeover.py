"""How long it takes until another trainer holds the groups of one that was killed or handed over.

Each round starts a trainer process that claims a batch, and then either kills it with SIGKILL or
leaves it alive; the clock runs from that instant until the next trainer has claimed the same batch.
No target says how long it may take: ``scripts/bench --takeover`` runs it alone.
"""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks.machine import machine_facts, version_facts
from redis_replay import ReplayStore, Rule, Selection, TrainerSession, open_store
from redis_replay.embedded import open_embedded

GROUPS = 64
LEASE_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
HOLDER = "job"
RUN = "takeover"


@dataclass(frozen=True)
class Case:
    """One way in which a trainer is replaced."""

    name: str
    killed: bool
    owner: str
    takeover: bool


CASES = (
    Case("killed, restarted under its name", killed=True, owner=HOLDER, takeover=False),
    Case("killed, another takes over", killed=True, owner="other", takeover=True),
    Case("killed, another waits for the lease", killed=True, owner="other", takeover=False),
    Case("alive, another takes over", killed=False, owner="other", takeover=True),
)


async def claim(trainer: TrainerSession) -> None:
    """Claim the whole batch as soon as it is there."""
    selection = Selection(Rule.BUFFER, 0, 0, GROUPS, GROUPS)
    with anyio.fail_after(PATIENCE_SECONDS):
        while (await trainer.buffer.claim(selection))[0] is None:
            await anyio.sleep(0.005)


async def hold(url: str) -> None:
    """Be the trainer that is replaced: claim, say so, and do nothing more."""
    async with (
        open_store(url, run=RUN, create=False) as store,
        store.trainer(owner=HOLDER, lease_seconds=LEASE_SECONDS) as trainer,
    ):
        await claim(trainer)
        print("holds", flush=True)
        await anyio.sleep_forever()


async def fill(store: ReplayStore) -> None:
    """Make a batch ready."""
    async with store.mutation() as cut:
        for _ in range(GROUPS):
            cut.reserve(0)
    for made in cut.reservations:
        await store.buffer.commit(
            made.group_id, [{"reward": 1.0}], start_weight_version=0, end_weight_version=0
        )


async def time_of(store: ReplayStore, url: str, case: Case) -> float:
    """Replace a trainer once and return the milliseconds until its batch was claimed again."""
    holder = await anyio.to_thread.run_sync(start_holder, url)
    try:
        if case.killed:
            holder.kill()
            holder.wait()
        begun = time.perf_counter()
        async with store.trainer(owner=case.owner, takeover=case.takeover) as trainer:
            await claim(trainer)
            return (time.perf_counter() - begun) * 1000
    finally:
        holder.kill()
        holder.wait()


def start_holder(url: str) -> subprocess.Popen[str]:
    """Start the trainer that is replaced and wait until it holds the batch."""
    command = [sys.executable, "-m", "benchmarks.takeover", url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if process.stdout is None or process.stdout.readline() != "holds\n":
        raise SystemExit("the trainer process did not come up")
    return process


async def measure(url: str, rounds: int) -> list[dict[str, Any]]:
    """Return one row of figures for each case; the cases take turns."""
    spent: dict[str, list[float]] = {case.name: [] for case in CASES}
    async with open_store(
        url, run=RUN, capacity=GROUPS, group_size=1, max_requeues=10_000
    ) as store:
        await fill(store)
        for _ in range(rounds):
            for case in CASES:
                spent[case.name].append(await time_of(store, url, case))
    return [
        {"case": name, "median_ms": statistics.median(values), "longest_ms": max(values)}
        for name, values in spent.items()
    ]


def show_takeovers(rounds: int, path: Path | None) -> None:
    """Measure, print, and write the figures to a file if one is given."""
    with open_embedded(None) as lease:
        rows = anyio.run(measure, lease.url, rounds)
    print(f"{GROUPS} groups, a lease of {LEASE_SECONDS:g} s, {rounds} rounds")
    for row in rows:
        print(f"{row['case']:<40}{row['median_ms']:>9.1f} ms{row['longest_ms']:>9.1f} ms longest")
    if path is not None:
        settings = {"groups": GROUPS, "lease_seconds": LEASE_SECONDS, "rounds": rounds}
        facts = {"machine": machine_facts(), "versions": version_facts()}
        path.write_text(json.dumps({**settings, **facts, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    anyio.run(hold, sys.argv[1])
