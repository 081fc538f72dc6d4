"""Calls that are refused, for the table of all refusals: the error, its words, the call."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from redis_replay import errors
from tests.harness import Runs, commit_ready

Met = tuple[type[Exception], str, Awaitable[Any]]


async def selected(runs: Runs, store: Any) -> Met:
    await store.buffer.selecting_for_good().claim_for_training([await commit_ready(store, 0)])
    return errors.CheckpointError, "selected are being trained", store.checkpoints.create("a")


async def tally(runs: Runs, store: Any) -> Met:
    for group_id in ("a", "b"):
        await store.buffer.reserve(0, group_id=group_id, target_step=4)
    whole = [{"reward": 1.5e308}, {"reward": 0.0}]
    versions = {"start_weight_version": 0, "end_weight_version": 0}
    await store.buffer.commit("a", whole, **versions)
    return ValueError, "'b'.*step 4.*beyond a float64", store.buffer.commit("b", whole, **versions)
