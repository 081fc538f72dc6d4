"""The workload: groups (`rows`) in three sizes, buffers full of them, calls as programs make."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks.rows import BYTES_PER_TOKEN, GROUP_SIZE, Rows
from redis_replay import ReplayStore, Reservation, Rule, Selection, open_store

BATCH: Final = 64
VERSIONS: Final = 4
"""Start weights of a filled buffer: 1 to this many, so that nothing is below 1."""

_FILL_SLICE: Final = 500
_COMMITS_IN_FLIGHT: Final = 8


@dataclass(frozen=True)
class Profile:
    """A group size: tokens in each of its 16 rows, and groups in one round."""

    name: str
    tokens: int
    groups: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of one group's arrays."""
        return GROUP_SIZE * self.tokens * BYTES_PER_TOKEN


SMALL: Final = Profile("small", 512, 64)
STANDARD: Final = Profile("standard", 4096, 64)
LONG: Final = Profile("long", 32768, 16)
PROFILES: Final = (SMALL, STANDARD, LONG)


def same_rows(rows: Rows, _: int) -> Rows:
    """Return the same rows for every position; with `functools.partial`."""
    return rows


def bare_rows(seed: int = 0) -> Rows:
    """Return 16 rows without arrays, for what concerns the control plane alone."""
    return [{"reward": float(seed), "length": row} for row in range(GROUP_SIZE)]


@asynccontextmanager
async def opened(
    socket: Path, run: str, capacity: int | None = None, **options: Any
) -> AsyncIterator[Any]:
    """Open a run for groups of 16 rows; without a capacity it must be there."""
    if capacity is None:
        options["create"] = False
    else:
        options.update(capacity=capacity, group_size=GROUP_SIZE, journal_events=1000)
    async with open_store(f"unix://{socket}", run=run, **options) as store:
        yield store


async def reserve(
    store: Any, weights: Sequence[int], *, target_steps: bool = True
) -> list[Reservation]:
    """Reserve a group for each weight, together.

    Groups of one weight are reserved by one call, others in a cut. A target step of the same number
    goes along, or none, as under all policies but ``in_order``.
    """
    if len(set(weights)) == 1:
        weight, count = weights[0], len(weights)
        step = weight if target_steps else None
        many = await store.buffer.reserve_many(weight, count=count, target_step=step)
        return list(many)
    async with store.mutation() as cut:
        for weight in weights:
            cut.reserve(weight, target_step=weight if target_steps else None)
    return list(cut.reservations)


async def commit(store: Any, slot: Reservation, rows: Rows) -> None:
    """Commit one reserved group."""
    weight = slot.weight_version
    await store.buffer.commit(
        slot.group_id, rows, start_weight_version=weight, end_weight_version=weight
    )


async def commit_all(
    store: Any,
    slots: Sequence[Reservation],
    rows_of: Callable[[int], Rows],
    *,
    in_flight: int = _COMMITS_IN_FLIGHT,
) -> None:
    """Commit reserved groups, a few at a time; ``rows_of`` gives the rows of a position."""
    waiting = iter(enumerate(slots))

    async def commit_in_turn() -> None:
        for at, slot in waiting:
            await commit(store, slot, rows_of(at))

    async with anyio.create_task_group() as tasks:
        for _ in range(in_flight):
            tasks.start_soon(commit_in_turn)


async def fill(
    store: ReplayStore, groups: int, rows_of: Callable[[int], Rows], *, target_steps: bool = True
) -> None:
    """Make groups ready, spread over versions."""
    for first in range(0, groups, _FILL_SLICE):
        positions = range(first, min(first + _FILL_SLICE, groups))
        weights = [1 + at % VERSIONS for at in positions]
        slots = await reserve(store, weights, target_steps=target_steps)
        rows = [rows_of(at) for at in positions]
        await commit_all(store, slots, rows.__getitem__)


def any_ready(groups: int = BATCH, *, rule: Rule = Rule.BUFFER) -> Selection:
    """Return a selection of exactly so many groups of any weight."""
    lowest, highest = (1, 1) if rule is Rule.STEP else (0, VERSIONS)
    return Selection(rule, lowest, highest, groups, groups)


async def claim(store: Any, groups: int = BATCH, *, rule: Rule = Rule.BUFFER) -> Any:
    """Claim exactly so many groups and return their meta.

    Raises:
        RuntimeError: there are fewer.
    """
    meta, count = await store.buffer.claim(any_ready(groups, rule=rule))
    if meta is None or count != groups:
        raise RuntimeError(f"{count} groups were claimed instead of {groups}")
    return meta


async def settle(store: Any, meta: Any) -> None:
    """Consume a claimed batch."""
    await store.buffer.release_training_claims(meta.extra_info["group_ids"])


async def settled_down(store: Any) -> None:
    """Wait until what the store does in the background is done."""
    await store.buffer.session.link.tasks.idle()
