"""Runs of one name, one after the other: what an earlier one left, or still does, is its own."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay.errors import StoreRegressed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def lose_control(runs: Runs) -> None:
    """Delete the run but for its payload, as a `discard` that is cut short does."""
    payload = set(await runs.payload_keys())
    for key in await runs.keys():
        if key not in payload:
            await runs.client.delete(key)


async def written(runs: Runs, column: str) -> list[dict[str, Any]]:
    """Commit a group in a new run, claim it, write a column back, and return its rows."""
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_ready(store, 0, group_id="g")
        await trainer.buffer.claim_for_training(["g"])
        await trainer.samples.put_samples(["g_g0"], fields={column: [1.0]})
        found = await trainer.samples.get_samples(["g_g0"])
        await lose_control(runs)
        return found


async def test_columns_of_an_earlier_run_are_not_read(runs: Runs) -> None:
    runs.audited = False
    [first] = await written(runs, "advantages")
    [second] = await written(runs, "returns")
    assert {"advantages", "returns"} == first.keys() ^ second.keys()


async def test_a_host_of_an_earlier_run_destroys_no_rows_of_the_next(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as left_over:
        await left_over.buffer.reserve(0, group_id="g")
        await lose_control(runs)
        async with runs.open() as store:
            await commit_ready(store, 7, group_id="g")
            with pytest.raises(StoreRegressed):
                await left_over.buffer.commit(
                    "g", rows(0), start_weight_version=0, end_weight_version=0
                )
            [row] = await store.samples.get_samples(["g_g0"])
            assert 7 == row["reward"]
