"""A commit that the server has no memory for leaves nothing, and succeeds once there is some."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import numpy as np
import pytest
import redis.asyncio

from redis_replay import InOrderSamplerConfig, Rule, Selection, create_sampler, embedded
from redis_replay.errors import StoreOutOfMemory
from tests.contract.keyspace import nothing_changed
from tests.harness import Runs, until

pytestmark = pytest.mark.anyio

MEBIBYTE = 1 << 20
GROUP_SIZE = 4


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of a server of these tests' own, whose memory limit they set."""
    with embedded.open_embedded(tmp_path_factory.mktemp("small"), appendfsync="no") as lease:
        yield lease.url


@pytest.fixture
async def small_runs(small_server: str) -> AsyncIterator[Runs]:
    """Opens stores there; the limit is lifted and the run audited after the test."""
    async with redis.asyncio.Redis.from_url(small_server) as client:
        runs = Runs(client)
        yield runs
        await client.config_set("maxmemory", 0)
        await runs.check()


async def limit_memory(client: Any, *, room_bytes: int) -> None:
    """Set the memory limit to what is used now and some room."""
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory", used + room_bytes)


def large_rows(value: int) -> list[dict[str, Any]]:
    """Return rows of one mebibyte each."""
    return [
        {"x": np.full(MEBIBYTE, (value + row) % 251, dtype=np.uint8)} for row in range(GROUP_SIZE)
    ]


@pytest.mark.parametrize("chunk_bytes", [MEBIBYTE, 16 * MEBIBYTE])
async def test_a_payload_that_does_not_fit_leaves_no_byte_and_the_group_reserved(
    small_runs: Runs, chunk_bytes: int
) -> None:
    async with small_runs.open(group_size=GROUP_SIZE) as store:
        store.buffer.session.link.chunk_bytes = chunk_bytes
        for group_id in ("kept", "g"):
            await store.buffer.reserve(0, group_id=group_id)
        await store.buffer.commit(
            "kept", large_rows(1), start_weight_version=0, end_weight_version=0
        )
        await limit_memory(small_runs.client, room_bytes=2 * MEBIBYTE + MEBIBYTE // 2)
        async with nothing_changed(small_runs):
            with pytest.raises(StoreOutOfMemory, match="maxmemory"):
                await store.buffer.commit(
                    "g", large_rows(2), start_weight_version=0, end_weight_version=0
                )
        assert {"g": "reserved", "kept": "ready"} == {
            slot.group_id: slot.state for slot in await store.buffer.slots()
        }
        await small_runs.client.config_set("maxmemory", 0)
        await store.buffer.commit("g", large_rows(3), start_weight_version=0, end_weight_version=0)
        meta, groups = await store.buffer.claim(Selection(Rule.BUFFER, 0, 0, 2, 2))
        assert 2 == groups
        assert meta is not None
        read = await store.samples.get_samples(meta)
        assert [1, 2, 3, 4, 3, 4, 5, 6] == [int(row["x"][7]) for row in read]


async def test_a_full_server_refuses_a_reservation_and_takes_what_gives_memory_back(
    small_runs: Runs,
) -> None:
    async with small_runs.open(group_size=GROUP_SIZE) as store, store.trainer(owner="job") as job:
        for group_id in ("a", "b", "c"):
            await store.buffer.reserve(0, group_id=group_id)
            await store.buffer.commit(
                group_id, large_rows(1), start_weight_version=0, end_weight_version=0
            )
        await job.buffer.claim_for_training(["a"])
        # buffers of the connections count as used now and may be gone in a moment
        await limit_memory(small_runs.client, room_bytes=-6 * MEBIBYTE)
        async with nothing_changed(small_runs):
            with pytest.raises(StoreOutOfMemory):
                await store.buffer.reserve(0)
        assert 4 == len(await store.samples.get_samples([f"b_g{row}" for row in range(4)]))
        assert 1 == await store.buffer.remove(["b"])
        await store.collect_garbage()
        assert ("a",) == (await job.commit_step(0)).trained

        async def has_room() -> bool:
            memory = await small_runs.client.info("memory")
            return bool(memory["used_memory"] < memory["maxmemory"])

        await until(has_room, what="the payload of the groups that ended was freed")
        await store.buffer.reserve(0)


async def stored_groups(runs: Runs) -> set[str]:
    """Return the groups that have payload, in one string or several."""
    return {key.split(":")[4] for key in await runs.payload_keys()}


async def test_a_full_server_frees_payload_and_drops_checkpoints(small_runs: Runs) -> None:
    async with small_runs.open(group_size=GROUP_SIZE) as store:
        for group_id in ("a", "b", "c"):
            await store.buffer.reserve(0, group_id=group_id)
            await store.buffer.commit(
                group_id, large_rows(1), start_weight_version=0, end_weight_version=0
            )
        await store.buffer.remove(["c"])
        await store.checkpoints.create("kept")
        await store.buffer.remove(["a"])
        assert {"a", "b"} == await stored_groups(small_runs)
        await limit_memory(small_runs.client, room_bytes=-7 * MEBIBYTE)
        assert 1 == await store.checkpoints.drop("kept")
        assert {"b"} == await stored_groups(small_runs)
        await store.buffer.remove(["b"])
        assert [] == await small_runs.payload_keys()


async def test_a_full_server_is_read_in_one_instant_all_the_same(small_runs: Runs) -> None:
    async with small_runs.open(group_size=GROUP_SIZE, groups_per_step=2) as store:
        sampler = create_sampler(store.buffer, InOrderSamplerConfig(max_lookahead_versions=0))
        assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
        for group_id in ("a", "b"):
            await store.buffer.reserve(0, group_id=group_id, target_step=0)
        await store.buffer.commit("b", large_rows(1), start_weight_version=0, end_weight_version=0)

        async def reads() -> list[Any]:
            async with store.mutation():
                return [
                    *(await store.stats(), await store.audit(), await store.buffer.slots()),
                    *(await store.step_target(0), await store.buffer.count_for_target_step(0)),
                ]

        before = await reads()
        await limit_memory(small_runs.client, room_bytes=-2 * MEBIBYTE)
        with pytest.raises(StoreOutOfMemory):
            await store.buffer.reserve(0)
        assert before == await reads()
        with anyio.move_on_after(0.2) as waited:
            await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
        assert waited.cancelled_caught, "the gate is closed, and nothing was raised"
