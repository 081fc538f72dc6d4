"""Memory of reads whose cells are copies of what was received: their own, and a fixed amount."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from redis_replay import FieldOptions, group_reads, reading
from redis_replay.blocks import Blocks
from tests.harness import GROUP_SIZE, Runs

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("client", ["real"], indirect=True)]

KIB = 1024
CELL_BYTES = 256 * KIB
GROUPS = 32
BATCH_BYTES = GROUPS * GROUP_SIZE * CELL_BYTES
PASSING_BYTES = 1024 * KIB
FIXED_BYTES = PASSING_BYTES + 2 * 1024 * KIB
"""What passes, and what one group, the window and the event loop may need beside it."""

CELLS: dict[str, Callable[[int], Any]] = {
    "bytes": lambda seed: bytes([seed]) * CELL_BYTES,
    "arrays in cells": lambda seed: {"image": np.full(CELL_BYTES, seed, np.uint8)},
    "narrowed": lambda seed: np.full(CELL_BYTES // 8, seed, np.int64),
    "compressed": lambda seed: np.random.default_rng(seed).integers(0, 200, CELL_BYTES, np.uint8),
}
FIELDS = {
    "narrowed": FieldOptions(narrow_to="int32"),
    "compressed": FieldOptions(compression="zstd", level=1),
}


async def commit_batch(store: Any, rows_of: Callable[[int], list[dict[str, Any]]]) -> list[str]:
    """Commit groups and return the ids of their samples."""
    for seed in range(GROUPS):
        made = await store.buffer.reserve(0)
        await store.buffer.commit(
            made.group_id, rows_of(seed), start_weight_version=0, end_weight_version=0
        )
    return list(await store.samples.list_sample_ids())


@pytest.fixture(autouse=True)
def _few_bytes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MOST_PASSING_BYTES", PASSING_BYTES)
    monkeypatch.setattr(group_reads, "BLOCKS", Blocks(most_idle_bytes=2 * PASSING_BYTES))


@pytest.mark.parametrize("kind", CELLS)
async def test_cells_that_are_copies_are_not_in_memory_twice(runs: Runs, kind: str) -> None:
    fields = {"x": FIELDS[kind]} if kind in FIELDS else {}
    async with runs.open(fields=fields) as store:
        ids = await commit_batch(
            store, lambda seed: [{"x": CELLS[kind](2 * seed + row)} for row in range(GROUP_SIZE)]
        )
        tracemalloc.start()
        try:
            read = await store.samples.get_samples(ids)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert [str(CELLS[kind](at)) for at in range(len(ids))] == [str(row["x"]) for row in read]
        assert BATCH_BYTES < peak < BATCH_BYTES + FIXED_BYTES


async def test_arrays_keep_nothing_of_the_cells_beside_them(runs: Runs) -> None:
    async with runs.open() as store:
        ids = await commit_batch(
            store,
            lambda seed: [
                {
                    "ids": np.full(CELL_BYTES // 16, row, np.int32),
                    "image": bytes([row]) * CELL_BYTES,
                }
                for row in range(GROUP_SIZE)
            ],
        )
        tracemalloc.start()
        try:
            read = await store.samples.get_samples(ids)
            arrays = [row["ids"] for row in read]
            del read
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sum(array.nbytes for array in arrays) < kept < BATCH_BYTES // 4 + FIXED_BYTES


async def test_rows_that_are_copied_into_the_callers_array_pass(runs: Runs) -> None:
    async with runs.open() as store:
        floats = CELL_BYTES // 4
        ids = await commit_batch(
            store,
            lambda seed: [{"x": np.full(floats - row, seed, np.float32)} for row in (0, 1)],
        )
        out = {"x": np.zeros((len(ids), floats), np.float32)}
        tracemalloc.start()
        try:
            read = await store.samples.get_samples(ids, select_fields=["x"], out=out)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert [float(at // GROUP_SIZE) for at in range(len(ids))] == [row["x"][0] for row in read]
        assert peak < FIXED_BYTES
