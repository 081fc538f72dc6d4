"""Samplers, groups and selections as tests of the staleness policies spell them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from redis_replay import create_sampler
from redis_replay.meta import KVBatchMeta
from tests.harness import commit_ready, rows

GATED = ("ready_first", "weight_fifo", "in_order")
WINDOW_KEY = {
    "windowed": "max_staleness_versions",
    "ready_first": "max_staleness_versions",
    "weight_fifo": "max_staleness_versions",
    "in_order": "max_lookahead_versions",
}


def sampler_of(place: Any, policy: str, window: int = 1, **options: Any) -> Any:
    """Return a sampler of a policy with a window on a store or session."""
    return create_sampler(place.buffer, {"name": policy, WINDOW_KEY[policy]: window, **options})


async def ready(place: Any, *weights: int) -> list[str]:
    """Make one ready group of each start weight, in that buffer order, and return their ids."""
    return [await commit_ready(place, weight) for weight in weights]


async def ready_named(place: Any, weights: dict[str, int]) -> None:
    """Make one ready group of each id and start weight, in that buffer order."""
    for group_id, weight in weights.items():
        await commit_ready(place, weight, group_id=group_id)


async def ready_for_step(place: Any, step: int, groups: int, *, weight: int = 0) -> list[str]:
    """Make ready groups that are stamped for a step."""
    return [await commit_ready(place, weight, target_step=step) for _ in range(groups)]


async def finish(place: Any, group_id: str, weight: int) -> None:
    """Commit a reserved group."""
    await place.buffer.commit(
        group_id, rows(weight % 1000), start_weight_version=weight, end_weight_version=weight
    )


async def select(
    sampler: Any, weight: int, least: int, most: int
) -> tuple[KVBatchMeta | None, int]:
    """Select once for a trainer version."""
    selected: tuple[KVBatchMeta | None, int] = await sampler.select(
        current_train_weight=weight, min_prompt_groups=least, max_prompt_groups=most
    )
    return selected


async def chosen(sampler: Any, weight: int, least: int = 1, most: int = 16) -> list[str]:
    """Select once and return the ids in selection order, which the meta and the count must fit."""
    meta, groups = await select(sampler, weight, least, most)
    ids: Sequence[str] = meta.extra_info["group_ids"] if meta is not None else ()
    assert groups == len(ids)
    return list(ids)


async def states(store: Any) -> dict[str, str]:
    """Return the state of every live group."""
    return {slot.group_id: slot.state.value for slot in await store.buffer.slots()}


class Blocked:
    """An admission call at a closed gate: the trainer version it reads, and what became of it.

    A caller that has looked at the version three times in one wait has found the gate closed.
    """

    def __init__(self, version: int) -> None:
        self.version = version
        self.looks = 0
        self.result: Any = None
        self.done = anyio.Event()
        self.settled = anyio.Event()

    def look(self) -> int:
        """Return the trainer version, as the caller's function."""
        self.looks += 1
        if self.looks >= 3:
            self.settled.set()
        return self.version

    async def run(self, call: Any) -> None:
        """Make the call."""
        self.result = await call(trainer_version_fn=self.look)
        self.done.set()
        self.settled.set()

    async def ended(self, *, seconds: float = 10.0) -> Any:
        """Return what the call returned, once it has."""
        with anyio.move_on_after(seconds):
            await self.done.wait()
            return self.result
        raise AssertionError(f"within {seconds} s the blocked call did not return")


@asynccontextmanager
async def blocked(call: Any, version: int) -> AsyncIterator[Blocked]:
    """Start an admission call that must block; at the end it is cancelled if it still does."""
    waiting = Blocked(version)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting.run, call)
        with anyio.fail_after(30):
            await waiting.settled.wait()
        assert not waiting.done.is_set(), f"the call returned {waiting.result} and never blocked"
        yield waiting
        tasks.cancel_scope.cancel()


async def blocks(call: Any, version: int) -> bool:
    """Return whether an admission call finds the gate closed; then it is cancelled."""
    waiting = Blocked(version)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting.run, call)
        with anyio.fail_after(30):
            await waiting.settled.wait()
        tasks.cancel_scope.cancel()
    return not waiting.done.is_set()


async def admit(sampler: Any, version: int) -> int | None:
    """Admit once at an open gate; fail instead of waiting at a closed one."""
    with anyio.fail_after(10):
        stamp: int | None = await sampler.admit(trainer_version_fn=lambda: version)
    return stamp


async def admit_all(sampler: Any, version: int) -> list[int]:
    """Admit until the gate is closed, and return the dispatch index after each admission."""
    indexes: list[int] = []
    while not await blocks(sampler.admit, version):
        indexes.append(sampler.dispatch_index)
    return indexes
