"""Payload over the server's limits, and many groups at once: chunked, bounded, never in part."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest
import redis.asyncio

from redis_replay import ReplayStore
from redis_replay._redis.gateway import TransferWay
from redis_replay.errors import StoreError
from redis_replay.session import COMMITS_AT_ONCE
from tests.contract.keyspace import nothing_changed
from tests.harness import Runs, rows, until

pytestmark = pytest.mark.anyio

MIB = 1024 * 1024
LIMIT_BYTES = MIB
REAL = pytest.mark.parametrize("client", ["real"], indirect=True)
BOTH_WAYS: tuple[TransferWay, ...] = ("plain", "channel")


@pytest.fixture
async def low_limit(real_client: redis.asyncio.Redis) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of the real server, which accepts strings of 1 MiB at most until the test ends."""
    [(name, before)] = (await real_client.config_get("proto-max-bulk-len")).items()
    await real_client.config_set(name, LIMIT_BYTES)
    yield real_client
    await real_client.config_set(name, before)


def large_rows(seed: int) -> list[dict[str, Any]]:
    """Return two rows with a field of 3 MiB beside small ones."""
    return [
        {
            "small": seed,
            "pixels": np.random.default_rng(seed + row).random(786_432, dtype=np.float32),
            "reward": float(row),
        }
        for row in range(2)
    ]


async def commit(store: ReplayStore, group_id: str, group: Any) -> None:
    """Commit a group that is reserved with version 0."""
    await store.buffer.commit(group_id, group, start_weight_version=0, end_weight_version=0)


@REAL
@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("way", BOTH_WAYS)
async def test_a_field_over_the_servers_limit_is_chunked_and_freed_whole(
    runs: Runs, way: TransferWay
) -> None:
    async with runs.open(transfer=way) as store:
        await store.buffer.reserve(0, group_id="g")
        written = large_rows(1)
        await commit(store, "g", written)
        keys = await runs.payload_keys()
        assert 7 == len(keys)
        assert LIMIT_BYTES == max([await runs.client.strlen(key) for key in keys])
        for ids in (["g_g0", "g_g1"], ["g_g1"]):
            read = await store.samples.get_samples(ids)
            for expected, actual in zip(written[-len(ids) :], read, strict=True):
                assert list(expected) == list(actual)
                np.testing.assert_array_equal(expected["pixels"], actual["pixels"])
        out = np.zeros((2, 786_432), np.float32)
        await store.samples.get_samples(
            ["g_g0", "g_g1"], select_fields=["pixels"], out={"pixels": out}
        )
        np.testing.assert_array_equal(np.stack([row["pixels"] for row in written]), out)
        await store.buffer.remove_group("g")
    assert [] == await runs.payload_keys()


@REAL
@pytest.mark.parametrize("way", BOTH_WAYS)
async def test_a_limit_lowered_behind_its_back_leaves_the_group_reserved(
    runs: Runs, low_limit: redis.asyncio.Redis, way: TransferWay
) -> None:
    await low_limit.config_set("proto-max-bulk-len", 64 * MIB)
    async with runs.open(transfer=way, deadline_seconds=0.3) as store:
        await store.buffer.reserve(0, group_id="g")
        await low_limit.config_set("proto-max-bulk-len", LIMIT_BYTES)
        async with nothing_changed(runs):
            with pytest.raises(StoreError):
                await commit(store, "g", large_rows(1))
        assert 0 == (await store.stats()).ready
        await low_limit.config_set("proto-max-bulk-len", 64 * MIB)
        await commit(store, "g", large_rows(1))
        assert 1 == (await store.stats()).ready


@REAL
@pytest.mark.usefixtures("low_limit")
async def test_a_written_value_over_the_servers_limit_is_refused_with_both_sizes(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await store.buffer.reserve(0, group_id="g")
        await commit(store, "g", rows())
        await trainer.buffer.claim_for_training(["g"])
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=r"'g_g1'.*'x'.*1048582 bytes.*1048576"):
                await trainer.samples.put_samples(
                    ["g_g0", "g_g1"], fields={"x": [b"", bytes(MIB + 1)]}
                )


@REAL
@pytest.mark.parametrize("way", BOTH_WAYS)
async def test_small_commits_pass_while_large_groups_travel(runs: Runs, way: TransferWay) -> None:
    async with runs.open(transfer=way) as store, runs.open() as other:
        names = [f"large {at}" for at in range(6)]
        for name in names:
            await store.buffer.reserve(0, group_id=name)
        passed = 0
        is_over = False

        async def commit_small() -> None:
            nonlocal passed
            while not is_over:
                made = await other.buffer.reserve(0)
                await commit(other, made.group_id, rows())
                await other.buffer.remove_group(made.group_id)
                passed += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit_small)
            for name in names:
                await commit(store, name, large_rows(1))
                await store.samples.get_samples([f"{name}_g0", f"{name}_g1"])
            is_over = True
        assert passed > 0


async def test_many_commits_at_once_hold_few_groups_in_memory(runs: Runs) -> None:
    groups = 4 * COMMITS_AT_ONCE
    async with runs.open(transfer="channel") as store:
        group = [{"x": np.zeros(64 * 1024, np.float64)} for _ in range(2)]
        names = [f"g{at}" for at in range(groups)]
        for name in names:
            await store.buffer.reserve(0, group_id=name)
        transfer = store.buffer.session.link.gateway._transfer
        run, held, most = transfer.run, 0, 0

        async def counted(commands: Any) -> Any:
            nonlocal held, most
            held += 1
            most = max(most, held)
            await anyio.lowlevel.checkpoint()
            reply = await run(commands)
            held -= 1
            return reply

        store.buffer.session.link.gateway._transfer = Another(transfer, counted)
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(commit, store, name, group)
        assert COMMITS_AT_ONCE == most
        assert groups == (await store.stats()).ready


class Another:
    """A transfer whose `run` is another one."""

    def __init__(self, transfer: Any, run: Any) -> None:
        self.read = transfer.read
        self.close = transfer.close
        self.run = run


@REAL
async def test_many_large_commits_at_once_need_the_memory_of_a_few(runs: Runs) -> None:
    group = [{"x": np.zeros(128 * 1024, np.float64)} for _ in range(2)]
    async with runs.open() as store:
        names = [f"g{at}" for at in range(5 * COMMITS_AT_ONCE)]
        for name in names:
            await store.buffer.reserve(0, group_id=name)
        tracemalloc.start()
        try:
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(commit, store, name, group)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < (COMMITS_AT_ONCE + 2) * 2 * MIB * 1.125 + 4 * MIB


async def test_a_commit_cancelled_before_its_turn_has_written_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        link = store.buffer.session.link
        link.commit_room = anyio.Semaphore(1)
        for name in ("first", "second", "third"):
            await store.buffer.reserve(0, group_id=name)
        gateway: Any = link.gateway
        send, may_go, arrived = gateway.call, anyio.Event(), anyio.Event()

        async def held(call: Any, *arguments: Any, **options: Any) -> Any:
            if call.SCRIPT == "commit":
                arrived.set()
                await may_go.wait()
            return await send(call, *arguments, **options)

        gateway.call = held
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(commit, store, "first", rows())
            await arrived.wait()
            async with anyio.create_task_group() as second:
                second.start_soon(commit, store, "second", rows())
                await until_waiting(link.commit_room)
                second.cancel_scope.cancel()
            may_go.set()
        await commit(store, "third", rows())
        states = {slot.group_id: slot.state.value for slot in await store.buffer.slots()}
        assert {"first": "ready", "second": "reserved", "third": "ready"} == states
        assert 2 == len(await runs.payload_keys())
        await commit(store, "second", rows())


async def until_waiting(room: anyio.Semaphore) -> None:
    """Wait until somebody waits for the room."""

    async def is_waited_for() -> bool:
        return room.statistics().tasks_waiting > 0

    await until(is_waited_for, what="a commit waited for its turn")


async def test_commits_that_wait_for_their_turn_are_finished_before_the_session_ends(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        async with store.rollout(owner="host") as host:
            names = [f"g{at}" for at in range(3 * COMMITS_AT_ONCE)]
            for name in names:
                await host.buffer.reserve(0, group_id=name)
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(commit_of, host, name)
                await anyio.lowlevel.checkpoint()
                tasks.start_soon(host.__aexit__, None, None, None)
        assert len(names) == (await other.stats()).ready


async def commit_of(host: Any, name: str) -> None:
    """Commit a group under a session."""
    await host.buffer.commit(name, rows(), start_weight_version=0, end_weight_version=0)
