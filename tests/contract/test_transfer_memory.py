"""What reading a batch needs of a process's memory: the batch's own bytes and a fixed amount."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import numpy as np
import pytest

from redis_replay import open_store
from tests.harness import GROUP_SIZE, Runs

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
GROUP_BYTES = 2 * MIB
FIXED_BYTES = 8 * MIB
"""What the sockets, one group and the allocator may need, whatever the batch."""


def grown(url: str, run: str, way: str) -> tuple[int, int]:
    """Read a run's batch in another process; return its bytes and what the memory grew by."""
    command = [sys.executable, "-m", "tests.workers.reader", url, run, way]
    ended = subprocess.run(
        command, cwd=ROOT, text=True, capture_output=True, check=False, timeout=60
    )
    assert 0 == ended.returncode, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    return found["batch_bytes"], found["grown_bytes"]


@pytest.mark.parametrize("client", ["real"], indirect=True)
async def test_a_batch_needs_its_own_bytes_and_a_fixed_amount(runs: Runs, real_server: str) -> None:
    run, floats = runs.name, GROUP_BYTES // GROUP_SIZE // 4
    async with open_store(real_server, run=run, capacity=64, group_size=GROUP_SIZE) as store:
        written = 0

        async def write(count: int) -> None:
            for number in range(written, written + count):
                made = await store.buffer.reserve(0)
                rows = [
                    {"x": np.full(floats, 2 * number + row + 1, np.float32)}
                    for row in range(GROUP_SIZE)
                ]
                await store.buffer.commit(
                    made.group_id, rows, start_weight_version=0, end_weight_version=0
                )

        overheads: list[int] = []
        for count in (1 + 16, 32):
            await write(count)
            written += count
            for way in ("fresh", "out"):
                bytes_read, growth = await anyio.to_thread.run_sync(grown, real_server, run, way)
                assert (written - 1) * GROUP_BYTES == bytes_read
                overheads.append(growth - (bytes_read if way == "fresh" else 0))
        assert max(overheads) < FIXED_BYTES, [overhead // MIB for overhead in overheads]
        await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])
