"""P10: export and import over a plain Python copy of the same files, in turns; second export."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks.bench import Bench
from benchmarks.results import Figure, Found
from benchmarks.rows import group_rows
from benchmarks.servers import own_server
from benchmarks.turns import Side, ratios, take_turns
from benchmarks.workload import (
    STANDARD,
    commit_all,
    fill,
    opened,
    reserve,
)

_COPY_BYTES: Final = 1 << 20
_DIFFERENT_ROWS: Final = 32
"""So many groups of different content are made and repeated; no two groups have equal fences."""


def copy_files(source: Path, target: Path) -> float:
    """Copy the files of a folder as plain Python does, durably, and return the seconds."""
    start = time.perf_counter()
    target.mkdir()
    for path in source.iterdir():
        with path.open("rb") as read, (target / path.name).open("wb") as written:
            while part := read.read(_COPY_BYTES):
                written.write(part)
            written.flush()
            os.fsync(written.fileno())
    return time.perf_counter() - start


@contextmanager
def emptied(folder: Path) -> Iterator[Path]:
    """Give a folder that is not there, and remove it afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Files:
    """The sides of the comparison; each round exports anew, copies that, imports it."""

    def __init__(self, store: Any, folder: Path) -> None:
        self._store, self._folder = store, folder
        self.total_bytes = 0

    async def export(self) -> float:
        shutil.rmtree(self._folder / "export", ignore_errors=True)
        start = time.perf_counter()
        report = await self._store.checkpoints.export("one", self._folder / "export")
        spent = time.perf_counter() - start
        self.total_bytes = report.total_bytes
        return spent

    async def copy(self) -> float:
        with emptied(self._folder / "copy") as copied:
            return await anyio.to_thread.run_sync(copy_files, self._folder / "export", copied)

    async def import_(self) -> float:
        start = time.perf_counter()
        await self._store.checkpoints.import_(self._folder / "export", name="again")
        spent = time.perf_counter() - start
        await self._store.checkpoints.drop("again")
        return spent


async def measure_files(bench: Bench) -> Found:
    """Measure P10 with standard groups."""
    groups = 40 if bench.quick else 400
    bench.say(f"export and import of {groups} standard groups")
    rows = [group_rows(STANDARD.tokens, seed) for seed in range(_DIFFERENT_ROWS)]
    with own_server() as socket:
        async with opened(socket, "files", groups) as store:
            await fill(store, groups, lambda at: rows[at % len(rows)])
            await store.checkpoints.create("one")
            files = _Files(store, bench.folder)
            sides: dict[str, Side] = {
                "export": files.export,
                "copy": files.copy,
                "import": files.import_,
            }
            seconds = await take_turns(sides, bench.rounds)
            share = await _second_export(store, bench.folder, groups)
    return Found(
        samples={
            "P10": {
                "export": ratios(seconds["copy"], seconds["export"]),
                "import": ratios(seconds["copy"], seconds["import"]),
                "second export": [share],
            }
        },
        details={
            "files": {
                "bytes": files.total_bytes,
                **{
                    f"{name} MB/s": files.total_bytes / Figure.of(listed).value / 1e6
                    for name, listed in seconds.items()
                },
            }
        },
    )


async def _second_export(store: Any, folder: Path, groups: int) -> float:
    """Return the share of bytes that an export writes after a tenth of the groups was replaced."""
    with emptied(folder / "second") as exported:
        first = await store.checkpoints.export("one", exported)
        slots = (await store.buffer.slots())[: groups // 10]
        await store.buffer.remove([slot.group_id for slot in slots])
        new = [group_rows(STANDARD.tokens, 10_000 + at) for at in range(len(slots))]
        await commit_all(store, await reserve(store, [1] * len(slots)), lambda at: new[at])
        await store.checkpoints.create("two")
        second = await store.checkpoints.export("two", exported)
        return float(second.written_bytes / first.total_bytes)
