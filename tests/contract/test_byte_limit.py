"""The payload limit closes reserving and admitting, and opens them again; a commit never waits."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import InOrderSamplerConfig, create_sampler
from redis_replay.errors import BufferFull
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

PATIENCE_SECONDS = 10.0
A_MOMENT_SECONDS = 0.1


def in_order(place: Any) -> Any:
    """Return an ``in_order`` sampler on a store."""
    return create_sampler(place.buffer, InOrderSamplerConfig(max_lookahead_versions=4))


async def test_admission_waits_at_the_byte_limit_until_payload_is_freed(runs: Runs) -> None:
    async with runs.open(max_payload_bytes=1) as store:
        sampler = in_order(store)
        full = await commit_ready(store, 0)
        with anyio.move_on_after(A_MOMENT_SECONDS):
            await sampler.admit(trainer_version_fn=lambda: 0)
        assert -1 == (await store.stats()).dispatch_index

        stamps: list[int | None] = []

        async def admit() -> None:
            stamps.append(await sampler.admit(trainer_version_fn=lambda: 0))

        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(admit)
                await store.buffer.remove_group(full)
        assert [0] == stamps


async def test_a_cut_that_admits_is_refused_at_the_byte_limit(runs: Runs) -> None:
    async with runs.open(max_payload_bytes=1) as store:
        sampler = in_order(store)
        await commit_ready(store, 0)
        await sampler.flush()
        with pytest.raises(BufferFull) as refused:
            async with store.mutation() as cut:
                sampler.commit_admission(cut)
        assert ("bytes", -1) == (refused.value.unit, (await store.stats()).dispatch_index)


async def test_a_cut_that_only_moves_the_loader_passes_the_byte_limit(runs: Runs) -> None:
    async with runs.open(max_payload_bytes=1) as store:
        await commit_ready(store, 0)
        async with store.mutation() as cut:
            cut.set_loader_state(b"17")
        async with store.mutation() as cut:
            assert b"17" == cut.loader_state


async def test_a_commit_passes_the_byte_limit(runs: Runs) -> None:
    async with runs.open(max_payload_bytes=1) as store:
        slots = [await store.buffer.reserve(0) for _ in range(2)]
        for slot in slots:
            await store.buffer.commit(
                slot.group_id,
                [{"reward": 0.0}, {"reward": 1.0}],
                start_weight_version=0,
                end_weight_version=0,
            )
        assert 2 == (await store.stats()).ready
