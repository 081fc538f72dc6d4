"""What the payload path carries, over what one connection carries without a client library.

`measure_transfer` commits and reads groups of three sizes and lets a C program (`transfer_limit.c`)
SET and GET keys of the same sizes on the same server, in turns, every key fresh. Its figures:

* ``commit``: reserve, encode, write and flip of a round's groups, over SETs of as many fresh keys;
* ``read``: claim, read, decode and settle of the same, over GETs of them;
* ``column``: one column of a long group, over a GET of as many bytes through the same client;
* ``write_back``: one column written back to claimed rows, over plain SETs of as many bytes;
* ``commit_block_ms``, ``read_block_ms``: the longest time that one step of the event loop took,
  and the same in processor time (``_cpu_ms``).

The first two come for each way that payload can travel, in turns within the same rounds.

Run as a program it starts a server of its own without persistence, which is the harder comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import redis
import redis.asyncio

from redis_replay import ReplayStore, Rule, Selection, open_store
from redis_replay.embedded.binary import find_server

GROUP_SIZE = 16
BYTES_PER_TOKEN = 9
COMMITS_IN_FLIGHT = 4
LIMIT_SOURCE = Path(__file__).with_name("transfer_limit.c")


@dataclass(frozen=True)
class Profile:
    """A group size: tokens in each of its 16 rows, and groups in one round."""

    name: str
    tokens: int
    groups: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of one group's arrays."""
        return GROUP_SIZE * self.tokens * BYTES_PER_TOKEN


PROFILES = (
    Profile("small", 512, 64),
    Profile("standard", 4096, 64),
    Profile("long", 32768, 16),
)
SET, GET = "set", "get"
WAYS = ("channel", "plain")


@dataclass
class Limit:
    """The C program, built once, talking to one server."""

    program: Path
    socket: Path
    keys: dict[str, int] = field(default_factory=dict)

    async def seconds(self, verb: str, prefix: str, first: int, count: int, size: int) -> float:
        """Return how long so many commands took, one after the other."""
        command = [self.program, self.socket, verb, prefix, str(first), str(count), str(size)]
        done = await anyio.run_process([str(word) for word in command])
        return float(done.stdout)


def build_limit(folder: Path) -> Path:
    """Compile the C program into a folder.

    Raises:
        RuntimeError: there is no C compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the limit needs a C compiler named cc")
    program = folder / "transfer_limit"
    subprocess.run([compiler, "-O2", "-o", program, LIMIT_SOURCE], check=True)
    return program


def group_rows(tokens: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return 16 rows as rollouts make them: ids, log probabilities, mask, reward, length."""
    draw = np.random.default_rng(seed)
    return [
        {
            "input_ids": draw.integers(0, 150_000, tokens, dtype=np.int32),
            "generation_logprobs": draw.random(tokens, dtype=np.float32),
            "token_mask": draw.integers(0, 2, tokens, dtype=np.uint8),
            "reward": float(row % 2),
            "length": tokens,
        }
        for row in range(GROUP_SIZE)
    ]


@contextmanager
def longest_step(found: list[tuple[float, float]]) -> Iterator[None]:
    """Append the milliseconds of the block's longest step of the event loop, and of processor time.

    The second does not grow when other programs take the processor away in the middle of a step.
    """
    longest = busiest = 0.0
    run = asyncio.events.Handle._run

    def timed_run(handle: asyncio.Handle) -> None:
        nonlocal longest, busiest
        start, used = time.perf_counter(), time.thread_time()
        run(handle)
        longest = max(longest, time.perf_counter() - start)
        busiest = max(busiest, time.thread_time() - used)

    asyncio.events.Handle._run = timed_run  # type: ignore[method-assign]
    try:
        yield
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        found.append((longest * 1000, busiest * 1000))


async def commit_round(store: ReplayStore, rows: Any, groups: int) -> float:
    """Reserve and commit so many groups and return the seconds it took."""
    start = time.perf_counter()
    async with store.mutation() as cut:
        for _ in range(groups):
            cut.reserve(0)
    waiting = iter(cut.reservations)

    async def commit_in_turn() -> None:
        for slot in waiting:
            await store.buffer.commit(
                slot.group_id, rows, start_weight_version=0, end_weight_version=0
            )

    async with anyio.create_task_group() as tasks:
        for _ in range(COMMITS_IN_FLIGHT):
            tasks.start_soon(commit_in_turn)
    return time.perf_counter() - start


async def claim(store: Any, groups: int) -> Any:
    """Claim so many groups and return their meta."""
    selection = Selection(Rule.BUFFER, 0, 0, groups, groups)
    meta, count = await store.buffer.claim(selection)
    if meta is None or count != groups:
        raise RuntimeError(f"{count} groups were claimed instead of {groups}")
    return meta


async def read_round(store: ReplayStore, groups: int) -> float:
    """Claim, read, decode and settle so many groups and return the seconds it took."""
    start = time.perf_counter()
    meta = await claim(store, groups)
    rows = await store.samples.get_samples(meta)
    await store.buffer.release_training_claims(meta.extra_info["group_ids"])
    spent = time.perf_counter() - start
    if len(rows) != groups * GROUP_SIZE:
        raise RuntimeError(f"{len(rows)} rows came back")
    del rows
    await store.buffer.session.link.tasks.idle()
    return spent


def summary(ours: list[float], theirs: list[float], *, size: int) -> dict[str, Any]:
    """Return medians of bytes a second of both sides, and of their ratio in the same round."""
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "mb_per_second": size / statistics.median(ours) / 1e6,
        "limit_mb_per_second": size / statistics.median(theirs) / 1e6,
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
    }


@dataclass
class Side:
    """Seconds and longest steps of one way's rounds; the first round of each does not count."""

    commits: list[float] = field(default_factory=list)
    reads: list[float] = field(default_factory=list)
    commit_blocks: list[tuple[float, float]] = field(default_factory=list)
    read_blocks: list[tuple[float, float]] = field(default_factory=list)

    def figures(self, sets: list[float], gets: list[float], *, size: int) -> dict[str, Any]:
        """Return commit and read over SETs and GETs."""
        return {
            "commit": summary(self.commits[1:], sets[1:], size=size),
            "read": summary(self.reads[1:], gets[1:], size=size),
            "commit_block_ms": max(wall for wall, _ in self.commit_blocks[1:]),
            "commit_block_cpu_ms": max(used for _, used in self.commit_blocks[1:]),
            "read_block_ms": max(wall for wall, _ in self.read_blocks[1:]),
            "read_block_cpu_ms": max(used for _, used in self.read_blocks[1:]),
        }


async def measure_profile(
    url: str, limit: Limit, profile: Profile, rounds: int, ways: tuple[str, ...], **options: Any
) -> dict[str, Any]:
    """Return the figures of one group size. What was committed is read, so nothing is left."""
    rows, groups, size = group_rows(profile.tokens), profile.groups, profile.payload_bytes
    run = f"transfer-{profile.name}-{time.time_ns()}"
    capacity = groups * (rounds + 1)
    limits: dict[str, list[float]] = {SET: [], GET: []}
    sides = {way: Side() for way in ways}
    async with AsyncExitStack() as stack:
        stores: dict[str, ReplayStore] = {}
        for way in ways:
            opened = open_store(
                url,
                run=f"{run}-{way}",
                capacity=capacity,
                group_size=GROUP_SIZE,
                journal_events=1000,
                transfer=way,
                **options,
            )
            stores[way] = await stack.enter_async_context(opened)
        for at in range(rounds + 1):  # the first round opens connections
            limits[SET].append(await limit.seconds(SET, f"{run}-", at * groups, groups, size))
            for way, store in stores.items():
                with longest_step(sides[way].commit_blocks):
                    sides[way].commits.append(await commit_round(store, rows, groups))
        payload_bytes = (await stores[ways[0]].stats()).payload_bytes // capacity
        for at in range(rounds + 1):
            limits[GET].append(await limit.seconds(GET, f"{run}-", at * groups, groups, size))
            for way, store in stores.items():
                with longest_step(sides[way].read_blocks):
                    sides[way].reads.append(await read_round(store, groups))
    return {
        "payload_bytes": payload_bytes,
        "groups": groups,
        **{
            way: side.figures(limits[SET], limits[GET], size=groups * payload_bytes)
            for way, side in sides.items()
        },
    }


async def measure_column(url: str, rounds: int, **options: Any) -> dict[str, Any]:
    """Return what one column of a long group costs over a GET of as many bytes."""
    profile = PROFILES[-1]
    size = GROUP_SIZE * profile.tokens * 4
    run = f"transfer-column-{time.time_ns()}"
    columns, plain, ours = (list[float]() for _ in range(3))
    client = redis.asyncio.Redis.from_url(url, protocol=2)
    async with open_store(
        url, run=run, capacity=profile.groups, group_size=GROUP_SIZE, **options
    ) as store:
        await client.set(f"{run}-column", bytes(size))
        await commit_round(store, group_rows(profile.tokens), profile.groups)
        meta = await claim(store, profile.groups)
        gateway = store.buffer.session.link.gateway
        for at in range(3 * rounds + 1):
            group = at % profile.groups
            ids = meta.sample_ids[group * GROUP_SIZE : (group + 1) * GROUP_SIZE]
            start = time.perf_counter()
            await store.samples.get_samples(ids, select_fields=["input_ids"])
            columns.append(time.perf_counter() - start)
            start = time.perf_counter()
            await client.get(f"{run}-column")
            plain.append(time.perf_counter() - start)
            start = time.perf_counter()
            await gateway.pipeline([("GET", f"{run}-column")])
            ours.append(time.perf_counter() - start)
    await client.aclose()
    column, get, same = (statistics.median(times[1:]) for times in (columns, plain, ours))
    return {
        "column_ms": column * 1000,
        "get_ms": get * 1000,
        "over_get": column / get,
        "over_get_same_path": column / same,
    }


async def measure_write_back(url: str, rounds: int, **options: Any) -> dict[str, Any]:
    """Return what writing a column of a long group back costs over SETs of as many bytes."""
    profile = PROFILES[-1]
    values = [np.full(profile.tokens, row, np.float32) for row in range(GROUP_SIZE)]
    run = f"transfer-write-{time.time_ns()}"
    written, plain, same, read, got = (list[float]() for _ in range(5))
    client = redis.asyncio.Redis.from_url(url, protocol=2)
    async with (
        open_store(
            url, run=run, capacity=profile.groups, group_size=GROUP_SIZE, **options
        ) as store,
        store.trainer(owner="bench") as trainer,
    ):
        await commit_round(store, group_rows(profile.tokens), profile.groups)
        meta = await claim(trainer, profile.groups)
        gateway = store.buffer.session.link.gateway
        whole = np.concatenate(values).tobytes()
        for at in range(min(rounds + 1, profile.groups)):
            ids = meta.sample_ids[at * GROUP_SIZE : (at + 1) * GROUP_SIZE]
            start = time.perf_counter()
            await trainer.samples.put_samples(ids, fields={"advantages": values})
            written.append(time.perf_counter() - start)
            start = time.perf_counter()
            await client.set(f"{run}-plain-{at}", whole)
            plain.append(time.perf_counter() - start)
            start = time.perf_counter()
            await gateway.write([("SET", f"{run}-same-{at}", whole)])
            same.append(time.perf_counter() - start)
            start = time.perf_counter()
            await trainer.samples.get_samples(ids, select_fields=["advantages"])
            read.append(time.perf_counter() - start)
            start = time.perf_counter()
            await client.get(f"{run}-plain-{at}")
            got.append(time.perf_counter() - start)
    await client.aclose()
    sides = [statistics.median(times[1:]) for times in (written, plain, same, read, got)]
    return {
        "write_ms": sides[0] * 1000,
        "set_ms": sides[1] * 1000,
        "over_set": sides[0] / sides[1],
        "over_set_same_path": sides[0] / sides[2],
        "read_ms": sides[3] * 1000,
        "read_over_get": sides[3] / sides[4],
    }


async def measure_transfer(
    socket: Path,
    program: Path,
    *,
    rounds: int = 7,
    profiles: tuple[Profile, ...] = PROFILES,
    ways: tuple[str, ...] = WAYS,
    **options: Any,
) -> dict[str, Any]:
    """Return all figures, against a server on a unix socket.

    Args:
        socket: Of the server.
        program: The compiled limit (`build_limit`).
        rounds: Measured rounds of each side; one more goes before them.
        profiles: Group sizes to measure.
        ways: How payload travels (`open_store`'s ``transfer``), each in turn in every round.
        options: Passed to `open_store`.
    """
    gc.collect()
    gc.freeze()  # what the imports made is no business of a collection in the middle of a round
    url, limit = f"unix://{socket}", Limit(program, socket)
    figures: dict[str, Any] = {}
    for profile in profiles:
        figures[profile.name] = await measure_profile(url, limit, profile, rounds, ways, **options)
    figures["column"] = await measure_column(url, rounds, **options)
    figures["write_back"] = await measure_write_back(url, rounds, **options)
    return figures


@contextmanager
def own_server(folder: Path) -> Iterator[Path]:
    """Run a server without persistence on a unix socket in the folder."""
    socket = folder / "s"
    command = [str(find_server().path), "--port", "0", "--unixsocket", str(socket)]
    command += ["--save", "", "--appendonly", "no", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 10
            while not socket.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield socket
        finally:
            server.terminate()


async def run_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start a server, measure, and return the figures with the facts of the machine."""
    options = json.loads(arguments.options)
    chosen = tuple(p for p in PROFILES if not arguments.profile or p.name in arguments.profile)
    with tempfile.TemporaryDirectory(prefix="rr-") as name, own_server(Path(name)) as socket:
        figures = await measure_transfer(
            socket,
            build_limit(Path(name)),
            rounds=arguments.rounds,
            profiles=chosen,
            **options,
        )
    return {
        "machine": platform.platform(),
        "python": platform.python_version(),
        "redis_py": redis.__version__,
        "load": os.getloadavg()[0],
        "options": options,
        "figures": figures,
    }


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="append", choices=[p.name for p in PROFILES])
    parser.add_argument("--options", default="{}", help="more arguments of open_store, as JSON")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    document = anyio.run(run_all, arguments)
    for name, figures in document["figures"].items():
        if "groups" not in figures:
            print(f"{name}: {json.dumps(figures)}")
            continue
        for way, side in ((way, side) for way in WAYS for side in ("commit", "read")):
            found = figures[way][side]
            low, high = found["spread"]
            print(
                f"{name:<9}{side:<7}{way:<8} {found['mb_per_second']:>5.0f} MB/s of "
                f"{found['limit_mb_per_second']:>5.0f}: {found['ratio']:.2f} ({low:.2f} to "
                f"{high:.2f}), longest step {figures[way][side + '_block_ms']:.1f} ms, "
                f"{figures[way][side + '_block_cpu_ms']:.1f} ms of it processor time"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
