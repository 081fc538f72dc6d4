"""Many processes on one real server: nothing is taken twice, skipped or torn."""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import redis_replay
from redis_replay import ReplayStore
from redis_replay._redis.keys import Key
from tests.harness import GROUP_SIZE, commit_ready, rows
from tests.workers.peers import ask_all, peers

pytestmark = pytest.mark.anyio

ROUNDS = 50
READS = 300


@asynccontextmanager
async def opened(url: str, *, capacity: int) -> AsyncIterator[tuple[str, ReplayStore]]:
    """Open a fresh run; it is audited at the end."""
    run = f"test-{secrets.token_hex(6)}"
    async with redis_replay.open_store(
        url, run=run, capacity=capacity, group_size=GROUP_SIZE
    ) as store:
        yield run, store
        assert () == (await store.audit()).violations


async def test_eight_processes_train_two_thousand_groups_each_exactly_once(
    real_server: str,
) -> None:
    async with opened(real_server, capacity=2_000) as (run, store):
        names = [f"g{number:04}" for number in range(2_000)]

        async def fill(share: list[str]) -> None:
            for name in share:
                await commit_ready(store, 0, group_id=name)

        async with anyio.create_task_group() as group:
            for at in range(8):
                group.start_soon(fill, names[at::8])
        async with peers(real_server, run, 8) as trainers:
            taken = await ask_all(trainers, "train_all")
        assert dict.fromkeys(names, 1) == Counter(name for share in taken for name in share)
        assert 2_000 == (await store.stats()).trained
        assert 1 < sum(bool(share) for share in taken)


class TornRead(Exception):
    """A reader saw one part of a cut without another."""


async def read_whole_cuts(store: ReplayStore, reads: list[int], *, per_step: int) -> None:
    """Read cursor, loader state, slots and prompts in one MULTI, for ever; note each cursor."""
    gateway = store.buffer.session.link.gateway
    control = gateway.keyspace.control
    while True:
        meta, slots, prompts = await gateway.pipeline(
            [
                ("HMGET", control(Key.META), "dispatch_index", "loader_state"),
                ("HGETALL", control(Key.SLOTS)),
                ("HGETALL", control(Key.PROMPTS)),
            ],
            atomic=True,
        )
        cursor, position = int(meta[0]), int(meta[1] or b"0")
        steps = Counter(int(record.split(b" ")[5]) for record in slots.values())
        if dict.fromkeys(range(cursor + 1), per_step) != steps:
            raise TornRead(f"the cursor is {cursor}, reserved are {sorted(steps.items())}")
        if set(range(position)) != {int(prompt) for prompt in prompts.values()}:
            raise TornRead(f"the loader is at {position}, prompts are {sorted(prompts.values())}")
        if position != per_step * (cursor + 1):
            raise TornRead(f"the cursor is {cursor}, the loader is at {position}")
        reads.append(cursor)


async def test_processes_that_dispatch_through_cuts_never_share_skip_or_tear_an_index(
    real_server: str,
) -> None:
    per_step, last = 2, -1
    reads: list[int] = []
    taken: list[list[int]] = []
    async with opened(real_server, capacity=10_000) as (run, store):
        await store.buffer.admission.set_gate_window(10_000)
        async with peers(real_server, run, 4) as hosts, anyio.create_task_group() as group:

            async def watch() -> None:
                await read_whole_cuts(store, reads, per_step=per_step)

            group.start_soon(watch)
            while len(reads) < READS:
                last += 50
                taken += await ask_all(hosts, "dispatch", last, per_step)
            group.cancel_scope.cancel()
        assert list(range(last + 1)) == sorted(index for share in taken for index in share)
        assert 1 < sum(bool(share) for share in taken)
        assert 50 < len(set(reads))


async def commit_all(store: ReplayStore, weight: int, group_ids: Sequence[str]) -> None:
    """Commit groups one after the other."""
    versions: dict[str, Any] = {"start_weight_version": weight, "end_weight_version": weight}
    for group_id in group_ids:
        await store.buffer.commit(group_id, rows(1), **versions)


async def test_two_trainers_an_evictor_and_a_committer_never_share_or_lose_a_group(
    real_server: str,
) -> None:
    rng = random.Random(8)
    async with (
        opened(real_server, capacity=8) as (run, store),
        peers(real_server, run, 3) as (first, second, evictor),
    ):
        for weight in range(10, 10 + ROUNDS):
            await store.publish_trainer_version(weight)
            stale = [await commit_ready(store, weight - 5) for _ in range(2)]
            fresh = [(await store.buffer.reserve(weight)).group_id for _ in range(6)]
            async with anyio.create_task_group() as group:
                group.start_soon(evictor.ask, "evict", weight - 1, len(stale))
                group.start_soon(commit_all, store, weight, rng.sample(fresh, 6))
                batches = await ask_all([first, second], "select", weight, 3)
            assert sorted(fresh) == sorted(batches[0] + batches[1])
            for trainer, batch in zip((first, second), batches, strict=True):
                assert sorted(batch, key=fresh.index) == batch
                await trainer.ask("release", batch)
        stats = await store.stats()
        assert (0, 6 * ROUNDS, 2 * ROUNDS) == (stats.occupancy, stats.trained, stats.evicted)
