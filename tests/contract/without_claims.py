"""Samplers without training claims, and trainers that use them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import ModuleType
from typing import Any, ClassVar

import anyio

from redis_replay import (
    BaseSampler,
    KVBatchMeta,
    ReplayStore,
    TrainerSession,
    WindowedSampler,
    create_sampler,
)
from tests.harness import Runs, commit_ready


class FirstReady(BaseSampler):
    """A stranger's policy that says nothing about claims: the first groups of the buffer."""

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        return None

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        ready = [s.group_id for s in await self._buffer.slots() if s.state == "ready"]
        return await self._finalize_selection(ready, min_prompt_groups, max_prompt_groups)


class Window(WindowedSampler):
    """A built-in policy extended by a stranger, who says nothing about claims."""


class Claiming(Window):
    """The same, and it says that it keeps claims."""

    supports_training_claims: ClassVar[bool] = True


_MODULE = ModuleType("policies_without_claims")
vars(_MODULE).update(FirstReady=FirstReady, Window=Window, Claiming=Claiming)
sys.modules[_MODULE.__name__] = _MODULE


def sampler_on(buffer: Any, name: str = "FirstReady") -> Any:
    """Return a sampler of a class above, built as a configuration names it."""
    extra = {} if name == "FirstReady" else {"max_staleness_versions": 9}
    return create_sampler(
        buffer, {"name": "custom", "target": f"{_MODULE.__name__}:{name}", **extra}
    )


async def select(sampler: Any, least: int, most: int) -> list[str]:
    """Return the ids that a sampler selects."""
    meta, groups = await sampler.select(
        current_train_weight=1, min_prompt_groups=least, max_prompt_groups=most
    )
    ids = meta.extra_info["group_ids"] if meta is not None else []
    assert groups == len(ids)
    return list(ids)


async def cancelled_select(trainer: TrainerSession, sampler: Any) -> None:
    """Cancel a selection of one group when the store has made it."""
    session, scope = trainer.buffer.session, anyio.CancelScope()
    call_now = session.call_now

    async def answer(call: Any) -> Any:
        reply = await call_now(call)
        scope.cancel()
        return reply

    session.call_now = answer  # type: ignore[method-assign]
    with scope:
        await select(sampler, 1, 1)
    assert scope.cancelled_caught
    session.call_now = call_now  # type: ignore[method-assign]
    await session.link.tasks.idle()


@asynccontextmanager
async def trainer_with(
    runs: Runs, *names: str, **options: Any
) -> AsyncIterator[tuple[ReplayStore, TrainerSession]]:
    """Open a run with ready groups of these names, and a trainer."""
    async with runs.open(**options) as store, store.trainer(owner="job") as trainer:
        for name in names:
            await commit_ready(store, 1, group_id=name, target_step=0)
        yield store, trainer
