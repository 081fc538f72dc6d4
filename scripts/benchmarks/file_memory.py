"""Peak memory of processes that export and import, with little and with much payload."""

from __future__ import annotations

import sys
from typing import Final

import anyio

from benchmarks.bench import Bench
from benchmarks.exported_files import emptied
from benchmarks.results import Found
from benchmarks.rows import group_rows
from benchmarks.servers import own_server
from benchmarks.workload import STANDARD, fill, opened

PAYLOAD_BYTES: Final = (10_000_000, 1_000_000_000)
_COMMAND: Final = """
import sys
from redis_replay.cli import main
status = main(["checkpoint", *sys.argv[1:], "--json"])
[peak] = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak.split()[1])
sys.exit(status)
"""


async def measure_file_memory(bench: Bench) -> Found:
    """Return the peak resident megabytes of the command line's export and import, by payload.

    ``list`` is what the command takes that moves nothing. Left out of a quick run, and where the
    system does not tell a process's peak.
    """
    if bench.quick or not sys.platform.startswith("linux"):
        return Found()
    peaks: dict[str, dict[str, float]] = {}
    rows = group_rows(STANDARD.tokens, 0)
    for size in PAYLOAD_BYTES:
        groups = -(-size // STANDARD.payload_bytes)
        bench.say(f"memory of an export and an import of {groups:,} standard groups")
        with own_server() as socket, emptied(bench.folder / "memory") as exported:
            async with opened(socket, "memory", groups) as store:
                await fill(store, groups, lambda _: rows)
                await store.checkpoints.create("one")
                place = ("--url", f"unix://{socket}", "--run", "memory")
                peaks[f"{size:,} bytes"] = {
                    "list": await _peak_mb("list", *place),
                    "export": await _peak_mb("export", "one", str(exported), *place),
                    "import": await _peak_mb("import", str(exported), "--name", "two", *place),
                }
    return Found(details={"peak memory of exports and imports, MB": peaks})


async def _peak_mb(*arguments: str) -> float:
    """Run ``redis-replay checkpoint`` as a process and return its peak resident megabytes."""
    done = await anyio.run_process([sys.executable, "-c", _COMMAND, *arguments])
    return int(done.stdout.split()[-1]) / 1024
