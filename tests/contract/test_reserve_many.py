"""A batch of reservations in one script: all of them or none."""

from __future__ import annotations

import anyio
import pytest

from redis_replay._redis.keys import Key
from redis_replay.errors import BufferFull, DuplicateGroup
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, rows, until

pytestmark = pytest.mark.anyio


async def test_a_batch_is_reserved_in_order_by_one_mutation(runs: Runs) -> None:
    async with runs.open(capacity=64) as store, store.rollout(owner="host") as host:
        await host.buffer.admission.refresh()
        before = int(await runs.client.hget(control_key(runs, Key.META), "seq"))
        made = await host.buffer.reserve_many(
            3, count=3, target_step=5, group_ids=["c", "a", "b"], prompt_refs=[b"x", None, b"z"]
        )
        assert before + 1 == int(await runs.client.hget(control_key(runs, Key.META), "seq"))
        assert ["c", "a", "b"] == [one.group_id for one in made]
        assert [b"x", None, b"z"] == [one.prompt_ref for one in made]
        assert {(3, 5, 1)} == {(m.weight_version, m.target_step, m.attempt) for m in made}
        slots = await store.buffer.slots()
        assert [(m.group_id, m.fence) for m in made] == [(s.group_id, s.fence) for s in slots]
        for one in made:
            await host.buffer.commit(
                one.group_id, rows(), start_weight_version=3, end_weight_version=3
            )
        assert 3 == (await store.stats()).ready


async def test_generated_ids_differ(runs: Runs) -> None:
    async with runs.open(capacity=64) as store:
        made = await store.buffer.reserve_many(0, count=64)
    assert 64 == len({one.group_id for one in made})


async def test_a_batch_that_does_not_fit_reserves_nothing(runs: Runs) -> None:
    async with runs.open(capacity=4) as store:
        await store.buffer.reserve(0, group_id="g")
        async with nothing_changed(runs):
            with pytest.raises(BufferFull, match="4"):
                await store.buffer.reserve_many(0, count=4)
            with pytest.raises(DuplicateGroup, match="'g'"):
                await store.buffer.reserve_many(0, count=2, group_ids=["h", "g"])
        assert 3 == len(await store.buffer.reserve_many(0, count=3))


async def test_what_is_no_batch_is_refused_before_anything_is_sent(runs: Runs) -> None:
    async with runs.open() as store, nothing_changed(runs):
        for count in (0, 1025):
            with pytest.raises(ValueError, match=f"1 to 1024, got {count}"):
                await store.buffer.reserve_many(0, count=count)
        with pytest.raises(ValueError, match="group_ids has 1 entries for 2 groups"):
            await store.buffer.reserve_many(0, count=2, group_ids=["a"])
        with pytest.raises(ValueError, match="prompt_refs has 3 entries for 2 groups"):
            await store.buffer.reserve_many(0, count=2, prompt_refs=[b"", b"", b""])
        with pytest.raises(ValueError, match="'a' is named 2 times"):
            await store.buffer.reserve_many(0, count=2, group_ids=["a", "a"])
        with pytest.raises(ValueError, match="must not be empty"):
            await store.buffer.reserve_many(0, count=2, group_ids=["a", ""])


async def test_a_cancelled_batch_is_given_back(runs: Runs) -> None:
    async with runs.open(capacity=64) as store, store.rollout(owner="host") as host:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await host.buffer.reserve_many(0, count=5)

        async def is_empty() -> bool:
            stats = await store.stats()
            return (stats.reserved, stats.aborted) == (0, 5)

        await until(is_empty, what="the five places were given back")
