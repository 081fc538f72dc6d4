"""The page on custom samplers, executed as written."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

from redis_replay import create_sampler
from redis_replay.testing import SamplerConformance
from tests.harness import Runs, commit_ready

_PAGE = Path(__file__).parents[2] / "docs" / "custom-samplers.md"
_BLOCKS = re.findall(r"^```python\n(.*?)^```", _PAGE.read_text(encoding="utf-8"), re.M | re.S)

_MODULE = types.ModuleType("spread_first")
sys.modules["spread_first"] = _MODULE
for _block in _BLOCKS:
    exec(compile(_block, str(_PAGE), "exec"), _MODULE.__dict__)


class TestTheSamplerOfThePage(_MODULE.TestSpreadFirst):  # type: ignore[name-defined, misc]
    """Its own conformance suite, as the page derives it."""


class TestTheSamplerOfThePageWithoutClaims(
    _MODULE.TestSpreadFirstForGood  # type: ignore[name-defined, misc]
):
    """The page's variant without training claims."""


class TestTheBuiltIns(SamplerConformance):
    """The suite holds for a built-in sampler too."""

    config: ClassVar[dict[str, Any]] = {"name": "windowed"}


@pytest.mark.anyio
async def test_the_widest_spread_is_trained_first(runs: Runs) -> None:
    rewards = {"narrow": [0.4, 0.5], "wide": [0.0, 1.0], "none": [1.0, 1.0]}
    async with runs.open() as store, store.trainer(owner="t") as trainer:
        for group_id, values in rewards.items():
            await store.buffer.reserve(0, group_id=group_id)
            await store.buffer.commit(
                group_id,
                [{"reward": value} for value in values],
                start_weight_version=0,
                end_weight_version=0,
            )
        trained: Any = await _MODULE.train_two(trainer)
        assert [[0.0, 1.0], [0.4, 0.5]] == trained
        left = [slot.group_id for slot in await store.buffer.slots()]
        assert ["none"] == left


@pytest.mark.anyio
async def test_a_variant_without_claims_is_read_before_its_step_commits(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="t") as trainer:
        for _ in range(3):
            await commit_ready(store, 0)
        assert [0.0, 1.0, 0.0, 1.0] == await _MODULE.train_two_for_good(trainer)
        assert {"trained:selected": 2} == (await store.stats()).ends


@pytest.mark.anyio
async def test_the_run_remembers_the_custom_policy(runs: Runs) -> None:
    async with runs.open() as store:
        config = {"name": "custom", "target": "spread_first:SpreadFirstSampler"}
        sampler: Any = create_sampler(store.buffer, config)
        await sampler.flush()
        [policy] = await store.buffer.session.link.gateway.pipeline(
            [("HGET", f"rr:{{{store.buffer.session.link.gateway.keyspace.tag}}}:meta", "policy")]
        )
        assert b"spread_first:SpreadFirstSampler" == policy
