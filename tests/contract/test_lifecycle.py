"""One group from reservation to training, on both backends."""

from __future__ import annotations

import pytest

from redis_replay import WindowedSamplerConfig, create_sampler
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


async def test_a_trained_group_leaves_no_slot_and_no_payload(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="t") as trainer:
        group_id = await commit_ready(store, 0)
        sampler = create_sampler(trainer.buffer, WindowedSamplerConfig())
        meta, groups = await sampler.select(
            current_train_weight=0, min_prompt_groups=1, max_prompt_groups=4
        )
        assert meta is not None
        assert ([group_id], 1) == (meta.extra_info["group_ids"], groups)
        assert (group_id,) == (await trainer.commit_step(0)).trained
        assert 0 == await store.buffer.size()
    assert [] == await runs.payload_keys()
