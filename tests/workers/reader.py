"""Reads batches in a process of its own and prints by how much its memory has grown at most.

Arguments: url, run, and ``fresh`` or ``out``. First it reads the group ``small``, so that all that
is needed once is there; then the other groups, each field at once.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import anyio
import numpy as np

import redis_replay
from tests.harness import GROUP_SIZE


def peak_bytes() -> int:
    """Return the most memory that this program has had; getrusage counts its parent's too."""
    [line] = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(line) * 1024


async def read(url: str, run: str, way: str) -> dict[str, int]:
    """Read, and return the bytes of the batch and of the memory that this needed."""
    async with redis_replay.open_store(url, run=run) as store:
        slots = await store.buffer.slots()
        ids = [f"{slot.group_id}_g{row}" for slot in slots for row in range(GROUP_SIZE)]
        small, batch = ids[:GROUP_SIZE], ids[GROUP_SIZE:]
        await store.samples.get_samples(small)
        out: Any = None
        if way == "out":
            [first] = await store.samples.get_samples(batch[:1])
            out = {"x": np.ones((len(batch), *first["x"].shape), first["x"].dtype)}
        before = peak_bytes()
        read = await store.samples.get_samples(batch, select_fields=["x"], out=out)
        grown = peak_bytes() - before
        columns = [row["x"] for row in read]
        assert all(float(column[0]) == float(column[-1]) != 0 for column in columns)
        return {"batch_bytes": sum(column.nbytes for column in columns), "grown_bytes": grown}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(anyio.run(read, *sys.argv[1:])))
