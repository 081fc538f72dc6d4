"""What checkpoints cost: by number of groups, by bytes of payload, and as files.

* `measure_by_groups`: create, restore and drop at several numbers of groups with tiny payloads.
  ``total`` is what a caller waits, ``script`` the longest script of it by the server's SLOWLOG.
* `measure_by_bytes`: the same at one number of groups with little and with much payload. Bytes that
  a restore moved are INFO's network bytes, to be held against those of the other size.
* `measure_files`: export and import over a plain Python copy of the same files (read, write,
  fsync), in turns within the same rounds; a second export after a tenth of the groups changed.
* `measure_memory`: peak resident memory of a process that exports or imports, at two sizes.

Run as a program it starts a server of its own on a unix socket, without persistence.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import redis
import redis.asyncio

from redis_replay import ReplayStore, open_store

sys.path.insert(0, str(Path(__file__).parent))

from bench_transfer import GROUP_SIZE, Profile, group_rows, own_server

GROUPS = (1_000, 10_000, 100_000)
PAYLOAD_BYTES = (10_000_000, 1_000_000_000)
FILE_BYTES = (100_000_000, 1_000_000_000)
STANDARD = Profile("standard", 4096, 64)
FILL_SLICE = 500
COPY_BYTES = 1 << 20


async def fill(store: ReplayStore, groups: int, *, tokens: int, seed: int = 0) -> None:
    """Make groups ready, each with rows of its own; without tokens with the smallest rows."""
    limiter = anyio.CapacityLimiter(8)
    for start in range(0, groups, FILL_SLICE):
        async with store.mutation() as cut:
            for _ in range(start, min(start + FILL_SLICE, groups)):
                cut.reserve(0)
        async with anyio.create_task_group() as tasks:
            for at, slot in enumerate(cut.reservations, seed + start):
                rows = group_rows(tokens, at) if tokens else [{"reward": float(at)}]
                tasks.start_soon(commit, store, slot.group_id, rows, limiter)


async def commit(
    store: ReplayStore, group_id: str, rows: Any, limiter: anyio.CapacityLimiter
) -> None:
    """Commit one group."""
    async with limiter:
        await store.buffer.commit(group_id, rows, start_weight_version=0, end_weight_version=0)


class Meter:
    """What one call cost: milliseconds, the longest script, network bytes."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client

    async def of(self, call: Callable[[], Awaitable[object]]) -> dict[str, float]:
        """Run a call and return its figures."""
        await self._client.config_set("slowlog-log-slower-than", 100)
        await self._client.slowlog_reset()
        before = await self._net_bytes()
        start = time.perf_counter()
        await call()
        total_ms = (time.perf_counter() - start) * 1000
        net_bytes = await self._net_bytes() - before
        entries = await self._client.slowlog_get(1000)
        scripts = [e["duration"] for e in entries if e["command"].upper().startswith(b"EVAL")]
        longest_ms = max(scripts, default=0) / 1000
        return {"total_ms": total_ms, "script_ms": longest_ms, "net_bytes": net_bytes}

    async def _net_bytes(self) -> int:
        stats = await self._client.info("stats")
        return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])


@asynccontextmanager
async def opened(url: str, run: str, capacity: int, group_size: int) -> Any:
    """Open a run of its own, and delete it afterwards."""
    client = redis.asyncio.Redis.from_url(url)
    settings = {"capacity": capacity, "group_size": group_size, "journal_events": 1000}
    async with open_store(url, run=run, **settings) as store:
        yield store, Meter(client)
    keys = [key async for key in client.scan_iter(match="rr:*", count=1000) if run.encode() in key]
    for at in range(0, len(keys), 1000):
        await client.unlink(*keys[at : at + 1000])
    await client.aclose()


async def lifecycle(store: ReplayStore, meter: Meter, rounds: int) -> dict[str, Any]:
    """Create, restore and drop in each round, and return the medians."""
    found: dict[str, list[dict[str, float]]] = {"create": [], "restore": [], "drop": []}
    for number in range(rounds):
        name = f"c{number}"
        checkpoints = store.checkpoints
        found["create"].append(await meter.of(lambda: checkpoints.create(name)))  # noqa: B023
        found["restore"].append(await meter.of(lambda: checkpoints.restore(name)))  # noqa: B023
        found["drop"].append(await meter.of(lambda: checkpoints.drop(name)))  # noqa: B023
    return {
        verb: {name: statistics.median(one[name] for one in listed) for name in listed[0]}
        for verb, listed in found.items()
    }


async def measure_by_groups(
    url: str, *, sizes: Sequence[int] = GROUPS, rounds: int = 5
) -> dict[str, Any]:
    """Return figures of create, restore and drop for each number of groups, with tiny payloads."""
    figures: dict[str, Any] = {}
    for size in sizes:
        async with opened(url, f"groups-{size}", size, 1) as (store, meter):
            await fill(store, size, tokens=0)
            figures[str(size)] = await lifecycle(store, meter, rounds)
    return figures


async def measure_by_bytes(
    url: str, *, sizes: Sequence[int] = PAYLOAD_BYTES, groups: int = 200, rounds: int = 5
) -> dict[str, Any]:
    """Return figures of create, restore and drop at one number of groups, by bytes of payload."""
    figures: dict[str, Any] = {}
    for size in sizes:
        tokens = size // groups // Profile("one", 1, 1).payload_bytes
        async with opened(url, f"bytes-{size}", groups, GROUP_SIZE) as (store, meter):
            await fill(store, groups, tokens=tokens)
            stats = await store.stats()
            figures[str(size)] = {
                "payload_bytes": stats.payload_bytes,
                **await lifecycle(store, meter, rounds),
            }
    return figures


def copy_files(source: Path, target: Path) -> float:
    """Copy the files of a folder as plain Python does, durably, and return the seconds."""
    start = time.perf_counter()
    target.mkdir()
    for path in source.iterdir():
        with path.open("rb") as read, (target / path.name).open("wb") as written:
            while part := read.read(COPY_BYTES):
                written.write(part)
            written.flush()
            os.fsync(written.fileno())
    return time.perf_counter() - start


async def measure_files(
    url: str, folder: Path, *, sizes: Sequence[int] = FILE_BYTES, rounds: int = 5
) -> dict[str, Any]:
    """Return MB/s of copy, export and import in turns, with ratios of each round's pair."""
    figures: dict[str, Any] = {}
    for size in sizes:
        groups = -(-size // STANDARD.payload_bytes)
        async with opened(url, f"files-{size}", groups, GROUP_SIZE) as (store, _):
            await fill(store, groups, tokens=STANDARD.tokens)
            await store.checkpoints.create("one")
            figures[str(size)] = await _measure_files(store, folder, rounds)
            figures[str(size)]["second_export"] = await _measure_second(store, folder, groups)
    return figures


async def _measure_files(store: ReplayStore, folder: Path, rounds: int) -> dict[str, Any]:
    seconds: dict[str, list[float]] = {"copy": [], "export": [], "import": []}
    total_bytes = 0
    for number in range(rounds):
        with emptied(folder / "export") as exported, emptied(folder / "copy") as copied:
            start = time.perf_counter()
            report = await store.checkpoints.export("one", exported)
            seconds["export"].append(time.perf_counter() - start)
            total_bytes = report.total_bytes
            seconds["copy"].append(await anyio.to_thread.run_sync(copy_files, exported, copied))
            start = time.perf_counter()
            await store.checkpoints.import_(exported, name=f"i{number}")
            seconds["import"].append(time.perf_counter() - start)
        await store.checkpoints.drop(f"i{number}")
    speed = {verb: total_bytes / statistics.median(t) / 1e6 for verb, t in seconds.items()}
    ratios = {
        verb: sorted(c / t for c, t in zip(seconds["copy"], seconds[verb], strict=True))
        for verb in ("export", "import")
    }
    return {
        "bytes": total_bytes,
        "mb_per_second": speed,
        "over_copy": {verb: statistics.median(listed) for verb, listed in ratios.items()},
        "over_copy_spread": {verb: [listed[0], listed[-1]] for verb, listed in ratios.items()},
    }


async def _measure_second(store: ReplayStore, folder: Path, groups: int) -> dict[str, Any]:
    """Return what a second export wrote after a tenth of the groups was replaced."""
    with emptied(folder / "second") as exported:
        first = await store.checkpoints.export("one", exported)
        renewed = max(1, groups // 10)
        slots = await store.buffer.slots()
        await store.buffer.remove([slot.group_id for slot in slots[:renewed]])
        await fill(store, renewed, tokens=STANDARD.tokens, seed=10**6)
        await store.checkpoints.create("two")
        start = time.perf_counter()
        second = await store.checkpoints.export("two", exported)
        return {
            "seconds": time.perf_counter() - start,
            "written_share": second.written_bytes / first.total_bytes,
            "renewed_share": renewed / groups,
        }


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """Give a folder that is not there, and remove it afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def measure_memory(
    url: str, folder: Path, *, sizes: Sequence[int] = (PAYLOAD_BYTES[0], FILE_BYTES[1])
) -> dict[str, Any]:
    """Return peak resident megabytes of the command line's export and import, by size."""
    figures: dict[str, Any] = {}
    for size in sizes:
        groups = -(-size // STANDARD.payload_bytes)
        run = f"memory-{size}"
        with emptied(folder / "memory") as exported:
            async with opened(url, run, groups, GROUP_SIZE) as (store, _):
                await fill(store, groups, tokens=STANDARD.tokens)
                await store.checkpoints.create("one")
                place = ("--url", url, "--run", run)
                figures[str(size)] = {
                    "list": await peak_mb("list", *place),
                    "export": await peak_mb("export", "one", str(exported), *place),
                    "import": await peak_mb("import", str(exported), "--name", "two", *place),
                }
    return figures


PEAK = """
import sys
from redis_replay.cli import main
status = main(["checkpoint", *sys.argv[1:], "--json"])
[peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak.split()[1])
sys.exit(status)
"""


async def peak_mb(*arguments: str) -> float:
    """Run ``redis-replay checkpoint`` as a process and return its peak resident megabytes."""
    done = await anyio.run_process([sys.executable, "-c", PEAK, *arguments])
    return int(done.stdout.split()[-1]) / 1024


async def measure_checkpoints(url: str, folder: Path, *, quick: bool = False) -> dict[str, Any]:
    """Return all figures; ``quick`` shows in seconds that everything runs."""
    if quick:
        return {
            "by_groups": await measure_by_groups(url, sizes=(200, 1_000), rounds=2),
            "by_bytes": await measure_by_bytes(
                url, sizes=(1_000_000, 10_000_000), groups=20, rounds=2
            ),
            "files": await measure_files(url, folder, sizes=(10_000_000,), rounds=2),
            "memory": await measure_memory(url, folder, sizes=(2_000_000, 20_000_000)),
        }
    return {
        "by_groups": await measure_by_groups(url),
        "by_bytes": await measure_by_bytes(url),
        "files": await measure_files(url, folder),
        "memory": await measure_memory(url, folder),
    }


def show(figures: dict[str, Any]) -> None:
    """Print the figures as lines."""
    for part in ("by_groups", "by_bytes"):
        for size, verbs in figures.get(part, {}).items():
            for verb in ("create", "restore", "drop"):
                one = verbs[verb]
                print(
                    f"{part:<10}{int(size):>13,}  {verb:<8}{one['total_ms']:>9.1f} ms, script "
                    f"{one['script_ms']:>8.1f} ms, network {one['net_bytes']:>12,.0f} bytes"
                )
    for size, one in figures.get("files", {}).items():
        for verb in ("export", "import"):
            low, high = one["over_copy_spread"][verb]
            print(
                f"files     {int(size):>13,}  {verb:<8}{one['mb_per_second'][verb]:>7.0f} MB/s of "
                f"{one['mb_per_second']['copy']:.0f}: {one['over_copy'][verb]:.2f} ({low:.2f} to "
                f"{high:.2f})"
            )
        second = one["second_export"]
        print(
            f"files     {int(size):>13,}  second export wrote {second['written_share']:.1%} after "
            f"{second['renewed_share']:.1%} changed"
        )
    for size, one in figures.get("memory", {}).items():
        print(
            f"memory    {int(size):>13,}  {', '.join(f'{n} {mb:.0f} MB' for n, mb in one.items())}"
        )


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a small run that shows it works")
    parser.add_argument("--only", choices=["by_groups", "by_bytes", "files", "memory"])
    parser.add_argument("--folder", type=Path, help="where exports are written")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    measures = {
        "by_groups": lambda url, _: measure_by_groups(url),
        "by_bytes": lambda url, _: measure_by_bytes(url),
        "files": measure_files,
        "memory": measure_memory,
    }

    async def run(url: str, folder: Path) -> dict[str, Any]:
        if arguments.only is None:
            return await measure_checkpoints(url, folder, quick=arguments.quick)
        return {arguments.only: await measures[arguments.only](url, folder)}

    with (
        tempfile.TemporaryDirectory(prefix="rr-") as name,
        tempfile.TemporaryDirectory(prefix="rr-files-", dir=arguments.folder) as files,
        own_server(Path(name)) as socket,
    ):
        figures = anyio.run(run, f"unix://{socket}", Path(files))
    show(figures)
    if arguments.json:
        facts = {
            "machine": platform.platform(),
            "python": platform.python_version(),
            "redis_py": redis.__version__,
            "load": os.getloadavg()[0],
        }
        arguments.json.write_text(json.dumps({**facts, "figures": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
