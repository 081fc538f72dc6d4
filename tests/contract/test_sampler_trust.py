"""Custom samplers and recovery: a capability that nobody declared is not assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from redis_replay import ReplayStore, WindowedSampler, create_sampler
from redis_replay.errors import ConfigurationError
from redis_replay.protocols import PromptGroupSampler
from tests.contract.keyspace import nothing_changed
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


class Undeclared(WindowedSampler):
    """Behaves as its base, but says nothing of checkpoints."""


class HalfDeclared(WindowedSampler):
    """Says that groups may be restored, but nothing of claims."""

    supports_buffer_checkpoint = True


class Declared(WindowedSampler):
    """Says both."""

    supports_buffer_checkpoint = True
    supports_training_claims = True


class Aside(PromptGroupSampler):
    """Has every member and no base class, and declares nothing."""

    supports_buffer_checkpoint = False
    dispatch_index = -1
    is_on_policy = False

    def __init__(self, buffer: Any) -> None:
        del buffer

    async def admit(self, *, trainer_version_fn: Any) -> int | None: ...
    async def select(self, **_: int) -> Any: ...  # type: ignore[override]
    async def evict(self, *, current_train_weight: int) -> int: ...  # type: ignore[empty-body]
    def should_abort_inflight(self, **_: int) -> bool: ...  # type: ignore[empty-body, override]
    def required_buffer_capacity(self, groups_per_step: int) -> int | None: ...
    def set_dispatch_index(self, resume_from_trainer_version: int) -> None: ...
    def restore_dispatch_index(self, dispatch_index: int) -> None: ...


def custom(sampler: type) -> Mapping[str, object]:
    """Return the config of a class of this module."""
    windows = {} if sampler is Aside else {"max_staleness_versions": 1}
    return {"name": "custom", "target": f"{__name__}:{sampler.__name__}", **windows}


def named(sampler: type) -> str:
    """Return a pattern for what a refusal says of a class."""
    return f"sampler '{__name__}:{sampler.__name__}'"


async def kept(store: ReplayStore) -> None:
    """Keep a checkpoint of one ready group and go on from it."""
    await commit_ready(store, 0, group_id="g")
    await store.checkpoints.create("kept")
    await store.publish_trainer_version(1)


@pytest.mark.parametrize("sampler", [Undeclared, Aside])
async def test_no_groups_are_restored_under_a_sampler_that_does_not_say_so(
    runs: Runs, sampler: type
) -> None:
    async with runs.open() as store:
        await kept(store)
        create_sampler(store.buffer, custom(sampler))
        for mode in ("all", "prompts_only"):
            async with nothing_changed(runs):
                with pytest.raises(ConfigurationError, match=named(sampler)):
                    await store.checkpoints.restore("kept", mode=mode)
        for dry_run in (True, False):
            async with nothing_changed(runs):
                with pytest.raises(ConfigurationError, match="supports_buffer_checkpoint = True"):
                    await store.resume(model_step=0, dry_run=dry_run)
        report = await store.resume(model_step=0, mode="none")
        assert ("restore", 0) == (report.action, (await store.stats()).occupancy)


@pytest.mark.parametrize(
    ("sampler", "lacking"),
    [(Undeclared, "supports_buffer_checkpoint"), (HalfDeclared, "supports_training_claims")],
)
async def test_no_checkpoints_are_kept_under_a_sampler_that_lacks_a_capability(
    runs: Runs, sampler: type, lacking: str
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_ready(store, 0, group_id="g")
        async with nothing_changed(runs):
            with pytest.raises(ConfigurationError, match=f"{lacking} = True"):
                store.checkpoints.require_sampler(custom(sampler))
        await trainer.buffer.claim_for_training(["g"])
        async with nothing_changed(runs):
            for keeping in (
                store.checkpoints.create("kept"),
                trainer.commit_step(0, checkpoint="kept"),
                trainer.skip_step(0, checkpoint="kept"),
            ):
                with pytest.raises(ConfigurationError, match=f"{lacking} = True"):
                    await keeping
        assert ("g",) == (await trainer.commit_step(0)).trained


async def test_a_sampler_that_declares_both_is_kept_and_restored(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        store.checkpoints.require_sampler(custom(Declared))
        sampler = create_sampler(trainer.buffer, custom(Declared))
        await commit_ready(store, 0, group_id="g")
        await trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)
        await trainer.commit_step(0, checkpoint="kept")
        assert 1 == (await store.checkpoints.restore("kept")).checkpoint.step


async def test_a_restart_names_the_custom_sampler_of_a_run_before_it_restores(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = create_sampler(store.buffer, custom(Declared))
        await sampler.flush()  # type: ignore[attr-defined]
        await kept(store)
    async with runs.open() as store:
        async with nothing_changed(runs):
            with pytest.raises(ConfigurationError, match=r"is not known here.*require_sampler"):
                await store.resume(model_step=0)
        store.checkpoints.require_sampler(custom(Declared))
        report = await store.resume(model_step=0)
        assert ("restore", 1) == (report.action, (await store.stats()).ready)


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        ("pkg.mod.Cls", ValueError, "must be 'module:ClassName', got 'pkg.mod.Cls'"),
        (f"{__name__}:kept", TypeError, "not a class"),
        ("fractions:Fraction", TypeError, "missing: admit, .*evict"),
    ],
)
async def test_a_target_that_is_no_sampler_is_refused_before_anything_is_written(
    runs: Runs, target: str, error: type[Exception], says: str
) -> None:
    async with runs.open() as store, nothing_changed(runs):
        cfg = {"name": "custom", "target": target}
        with pytest.raises(error, match=says):
            store.checkpoints.require_sampler(cfg)
        with pytest.raises(error, match=says):
            create_sampler(store.buffer, cfg)


async def test_built_in_policies_are_trusted(runs: Runs) -> None:
    async with runs.open() as store:
        for name in ("windowed", "ready_first", "weight_fifo", "in_order"):
            store.checkpoints.require_sampler({"name": name})
        await kept(store)
        assert 1 == (await store.checkpoints.restore("kept")).ready
