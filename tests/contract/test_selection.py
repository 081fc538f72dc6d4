"""Every policy against a plain statement of its rule, over small buffers of every kind."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from tests.contract.policies import finish, sampler_of, select
from tests.harness import Runs

pytestmark = pytest.mark.anyio

LARGEST_WEIGHT = 3
LARGEST_WINDOW = 2
STATES = ("reserved", "ready", "claimed")
BOUNDS = ((1, 1), (1, 2), (2, 2), (2, 4), (3, 3), (1, 4), (4, 4))
BUFFERS_OF_THE_FAKE = 60
EVICTIONS = {"fake": 20, "real": 60}


@dataclass(frozen=True)
class Group:
    """A group as the rules see it; its place in the tuple is its place in buffer order."""

    state: str
    start: int
    target: int | None = None


Buffer = tuple[Group, ...]


def eligible(policy: str, buffer: Buffer, weight: int, window: int) -> list[int]:
    """Return the places of the groups that a policy may select, in its order."""
    ready = [at for at, group in enumerate(buffer) if group.state == "ready"]
    lowest = max(0, weight - window)
    in_window = [at for at in ready if lowest <= buffer[at].start <= weight]
    if policy == "windowed":
        return in_window
    if policy == "freshest":
        return sorted(in_window, key=lambda at: (weight - buffer[at].start, at))
    if policy == "ready_first":
        return [at for at in ready if buffer[at].start <= weight]
    if policy == "weight_fifo":
        live = [g.start for g in buffer if g.state != "claimed" and lowest <= g.start <= weight]
        return [at for at in ready if live and buffer[at].start == min(live)]
    return [at for at in ready if buffer[at].target == weight]


def expected(
    policy: str, buffer: Buffer, weight: int, window: int, least: int, most: int
) -> list[int]:
    """Return the places of the groups that one selection claims."""
    found = eligible(policy, buffer, weight, window)
    return found[:most] if len(found) >= least else []


def evicted(policy: str, buffer: Buffer, weight: int, window: int) -> list[int]:
    """Return the places of the groups that one eviction drops."""
    ready = [at for at, group in enumerate(buffer) if group.state == "ready"]
    if policy == "ready_first":
        return []
    if policy == "in_order":
        return [at for at in ready if (target := buffer[at].target) is not None and target < weight]
    return [at for at in ready if buffer[at].start < max(0, weight - window)]


def all_small_buffers() -> Iterator[Buffer]:
    """Yield every buffer of two groups by state and weight, then larger ones with target steps."""
    weights = range(LARGEST_WEIGHT + 1)
    kinds = [Group(state, start) for state, start in product(STATES, weights)]
    yield from product(kinds, repeat=2)
    draw = random.Random(33)
    for _ in range(100):
        yield tuple(
            Group(
                draw.choices(STATES, (1, 4, 1))[0],
                draw.choice(weights),
                draw.choice([None, *range(3)]),
            )
            for _ in range(draw.randint(3, 4))
        )


def backend_of(request: pytest.FixtureRequest) -> str:
    """Return the backend of a test; the fake interprets Lua slowly, so it is asked less."""
    return "fake" if "[fake" in request.node.name else "real"


def small_buffers(backend: str) -> list[Buffer]:
    """Return the buffers to try on a backend."""
    buffers = list(all_small_buffers())
    return buffers if backend == "real" else random.Random(3).sample(buffers, BUFFERS_OF_THE_FAKE)


async def samplers_of(place: Any) -> dict[tuple[str, int], Any]:
    """Return a sampler of every policy and window, all bound while the buffer is empty."""
    made: dict[tuple[str, int], Any] = {}
    for policy in ("windowed", "freshest", "ready_first", "weight_fifo", "in_order"):
        for window in range(LARGEST_WINDOW + 1):
            name = "windowed" if policy == "freshest" else policy
            freshest = {"sample_freshest_first": True} if policy == "freshest" else {}
            made[policy, window] = sampler_of(place, name, window, **freshest)
            await made[policy, window].flush()
    return made


async def fill(store: Any, holder: Any, buffer: Buffer) -> list[str]:
    """Bring the buffer's groups into their states, and return their ids in buffer order."""
    ids: list[str] = []
    for group in buffer:
        slot = await store.buffer.reserve(group.start, target_step=group.target)
        ids.append(slot.group_id)
        if group.state != "reserved":
            await finish(store, slot.group_id, group.start)
    claimed = [group_id for group_id, g in zip(ids, buffer, strict=True) if g.state == "claimed"]
    if claimed:
        await holder.buffer.claim_for_training(claimed)
    return ids


async def empty(store: Any, holder: Any) -> None:
    """End every live group."""
    if owned := await holder.buffer.training_owned_group_ids():
        await holder.buffer.requeue(owned)
    if live := [slot.group_id for slot in await store.buffer.slots()]:
        await store.buffer.remove(live)


def questions(
    buffer: Buffer, draw: random.Random
) -> Iterator[tuple[tuple[str, int], int, int, int]]:
    """Yield selections: every policy and weight, with windows and bounds dealt out evenly."""
    policies = ("windowed", "freshest", "ready_first", "weight_fifo", "in_order")
    for policy, weight in product(policies, range(LARGEST_WEIGHT + 1)):
        window = draw.randint(0, LARGEST_WINDOW)
        least, most = draw.choice([b for b in BOUNDS if b[0] <= len(buffer)])
        yield (policy, window), weight, least, most


async def test_every_selection_is_what_the_rule_says(
    runs: Runs, request: pytest.FixtureRequest
) -> None:
    draw = random.Random(7)
    asked = answered = 0
    async with runs.open(switch_policy=True) as store, runs.open() as holder:
        samplers = await samplers_of(store)
        for buffer in small_buffers(backend_of(request)):
            ids = await fill(store, holder, buffer)
            for (policy, window), weight, least, most in questions(buffer, draw):
                places = expected(policy, buffer, weight, window, least, most)
                meta, groups = await select(samplers[policy, window], weight, least, most)
                chosen = list(meta.extra_info["group_ids"]) if meta is not None else []
                question = (policy, window, weight, least, most, buffer)
                assert (question, [ids[at] for at in places]) == (question, chosen)
                assert (len(places), bool(places)) == (groups, meta is not None)
                if chosen:
                    await store.buffer.requeue(chosen)
                    answered += 1
                asked += 1
            await empty(store, holder)
    assert asked // 10 < answered < asked


async def test_every_eviction_is_what_the_rule_says(
    runs: Runs, request: pytest.FixtureRequest
) -> None:
    draw = random.Random(5)
    buffers = draw.sample(list(all_small_buffers()), EVICTIONS[backend_of(request)])
    async with runs.open(switch_policy=True) as store, runs.open() as holder:
        samplers = await samplers_of(store)
        for buffer in buffers:
            for policy in ("windowed", "ready_first", "weight_fifo", "in_order"):
                ids = await fill(store, holder, buffer)
                weight, window = draw.randint(0, LARGEST_WEIGHT), draw.randint(0, LARGEST_WINDOW)
                places = evicted(policy, buffer, weight, window)
                dropped = await samplers[policy, window].evict(current_train_weight=weight)
                question = (policy, window, weight, buffer)
                kept = [group_id for at, group_id in enumerate(ids) if at not in places]
                live = [slot.group_id for slot in await store.buffer.slots()]
                assert (question, len(places), kept) == (question, dropped, live)
                await empty(store, holder)
