"""A real server that restarts, refuses, is full, busy or paused: what callers see, and after it."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import redis.asyncio
from redis.exceptions import RedisError

import redis_replay
from redis_replay import embedded
from redis_replay._redis import connect, faults, gateway
from redis_replay.errors import StoreOutOfMemory, StoreRefused, StoreUnavailable
from redis_replay.selection import Eviction
from tests.contract.stage import Stage, opened_stage
from tests.harness import GROUP_SIZE, rows, until

pytestmark = pytest.mark.anyio

FOREVER = "while true do end"
KILLED_BEFORE = (1, 4, 6, 9)
"""Operations before which the server is killed; its keeper limits how often it restarts it."""


@pytest.fixture(scope="module")
def private_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedLease]:
    """A server of these tests' own, whose settings they change, with every write on disk."""
    directory: Path = tmp_path_factory.mktemp("private")
    (directory / "dump.rdb").mkdir()  # so that a snapshot on request fails
    with embedded.open_embedded(directory, appendfsync="always") as lease:
        yield lease


@pytest.fixture
async def admin(private_server: embedded.EmbeddedLease) -> AsyncIterator[Any]:
    """A client of the private server."""
    async with redis.asyncio.Redis.from_url(private_server.url) as client:
        yield client


@pytest.fixture
def run() -> str:
    return f"test-{secrets.token_hex(6)}"


async def journal_length(stage: Stage) -> int:
    return len((await stage.outcome())["journal"])


async def work_through(stage: Stage, before_each: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Run every kind of operation in turn and return their answers."""
    buffer, trainer, store = stage.rollout.buffer, stage.trainer, stage.store
    answers: list[Any] = []

    async def step(operation: Callable[[], Awaitable[Any]]) -> None:
        await before_each()
        answers.append(await operation())

    async def dispatch() -> Any:
        async with stage.rollout.mutation() as cut:
            target = stage.sampler.commit_admission(cut)
            cut.reserve(0, target_step=target, group_id="e", prompt_ref=b"prompt")
        return cut.reservations

    async def write_back() -> None:
        await trainer.samples.put_samples(["a_g0"], fields={"advantages": [0.5]})

    versions: dict[str, Any] = {"start_weight_version": 0, "end_weight_version": 0}
    await step(dispatch)
    await step(lambda: buffer.reserve(0, target_step=2, group_id="f"))
    await step(lambda: buffer.commit("d", rows(4), **versions))
    await step(lambda: buffer.commit("e", rows(5), **versions))
    await step(stage.select)
    await step(write_back)
    await step(trainer.requeue)
    await step(stage.select)
    await step(lambda: trainer.commit_step(0))
    await step(lambda: trainer.buffer.promote_ready_group(to_target_step=1))
    await step(lambda: buffer.abort("f"))
    await step(lambda: store.publish_trainer_version(2))
    await step(lambda: trainer.buffer.evict(Eviction(below=2, by_target_step=True)))
    await step(lambda: stage.sampler.admit(trainer_version_fn=lambda: 2))
    await step(store.collect_garbage)
    await step(buffer.size)
    return answers


async def test_every_operation_survives_a_script_flush_before_it(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    async with opened_stage(private_server.url, f"{run}-calm") as calm:
        expected = await work_through(calm, admin.ping), await calm.outcome()
    async with opened_stage(private_server.url, run) as stage:
        assert expected == (await work_through(stage, admin.script_flush), await stage.outcome())


async def test_every_operation_survives_a_restart_before_it_on_the_same_store(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    async with opened_stage(private_server.url, f"{run}-calm") as calm:
        expected = await work_through(calm, admin.ping), await calm.outcome()
    operations = 0
    killed: set[int] = set()

    async def kill_sometimes() -> None:
        nonlocal operations
        operations += 1
        if operations in KILLED_BEFORE:
            killed.add(private_server.server_pid)
            os.kill(private_server.server_pid, signal.SIGKILL)

    async with opened_stage(private_server.url, run) as stage:
        assert expected == (await work_through(stage, kill_sometimes), await stage.outcome())
        assert () == (await stage.store.audit()).violations
    assert len(KILLED_BEFORE) == len(killed)


async def test_a_read_only_server_is_waited_for_and_then_serves(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    async with opened_stage(private_server.url, run) as stage:
        await admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        refused = (await admin.info("errorstats")).get("errorstat_READONLY", {"count": 0})

        async def turned_away() -> bool:
            now = (await admin.info("errorstats")).get("errorstat_READONLY", {"count": 0})
            return bool(now["count"] > refused["count"])

        async with anyio.create_task_group() as group:
            group.start_soon(lambda: stage.rollout.buffer.reserve(0, group_id="new"))
            await until(turned_away, what="the read-only server turned the call away")
            await admin.execute_command("REPLICAOF", "NO", "ONE")
        assert 1 == sum(slot.group_id == "new" for slot in await stage.store.buffer.slots())


async def test_a_server_that_stays_read_only_is_unavailable_and_unchanged(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    async with opened_stage(private_server.url, run, deadline_seconds=0.2) as stage:
        before = await stage.outcome()
        await admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            with pytest.raises(StoreUnavailable, match="read only"):
                await stage.rollout.buffer.reserve(0)
            with pytest.raises(StoreUnavailable, match="read only"):
                await stage.select()
            assert before == await stage.outcome()
        finally:
            await admin.execute_command("REPLICAOF", "NO", "ONE")


@pytest.fixture
async def full_server(admin: Any) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Call it to put the server at its memory limit; the limit is lifted after the test."""

    async def fill() -> None:
        await admin.config_set("maxmemory", 1)

    yield fill
    await admin.config_set("maxmemory", 0)


async def test_a_full_server_refuses_new_groups_and_leaves_nothing_behind(
    private_server: embedded.EmbeddedLease,
    admin: Any,
    full_server: Callable[[], Awaitable[None]],
    run: str,
) -> None:
    async with opened_stage(private_server.url, run) as stage:
        before = await stage.outcome()
        await full_server()
        with pytest.raises(StoreOutOfMemory):
            await stage.rollout.buffer.reserve(0)
        with pytest.raises(StoreOutOfMemory):
            await stage.rollout.buffer.commit(
                "d", rows(4), start_weight_version=0, end_weight_version=0
            )
        with pytest.raises(StoreOutOfMemory):
            await stage.sampler.admit(trainer_version_fn=lambda: 0)
        await admin.config_set("maxmemory", 0)
        assert before == await stage.outcome()
        await stage.rollout.buffer.commit(
            "d", rows(4), start_weight_version=0, end_weight_version=0
        )
        assert 4 == (await stage.store.stats()).ready


async def test_a_full_server_still_trains_evicts_and_removes(
    private_server: embedded.EmbeddedLease,
    admin: Any,
    full_server: Callable[[], Awaitable[None]],
    run: str,
) -> None:
    async with opened_stage(private_server.url, run) as stage:
        await full_server()
        meta, _ = await stage.trainer.select(
            stage.sampler, min_prompt_groups=2, max_prompt_groups=2
        )
        assert ["a", "b"] == meta.extra_info["group_ids"]
        assert ("a", "b") == (await stage.trainer.commit_step(0)).trained
        assert 1 == await stage.trainer.buffer.evict(Eviction(below=2, by_target_step=True))
        await stage.rollout.buffer.abort("d")
        await stage.store.collect_garbage()
        await admin.config_set("maxmemory", 0)
        stats = await stage.store.stats()
        assert (0, 0) == (stats.occupancy, stats.payload_bytes)
        assert () == (await stage.store.audit()).violations


async def test_a_server_that_cannot_save_refuses_writes_and_serves_reads(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    async def save_failed() -> bool:
        return bool((await admin.info("persistence"))["rdb_last_bgsave_status"] == "err")

    async with opened_stage(private_server.url, run) as stage:
        await admin.config_set("save", "3600 1")
        try:
            await admin.bgsave()
            await until(save_failed, what="the snapshot failed")
            with pytest.raises(StoreRefused, match="MISCONF"):
                await stage.rollout.buffer.reserve(0)
            [row] = await stage.rollout.samples.get_samples(["a_g0"])
            assert 1.0 == row["reward"]
            assert 4 == len(await stage.store.buffer.slots())
        finally:
            await admin.config_set("save", "")
        await stage.rollout.buffer.reserve(0)


async def test_a_password_that_is_missing_or_wrong_is_refused_at_once(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    async def opened(url: str) -> None:
        async with redis_replay.open_store(url, run=run, capacity=4, group_size=GROUP_SIZE):
            pass

    await admin.config_set("requirepass", "right")
    try:
        with anyio.fail_after(2):
            with pytest.raises(StoreRefused):
                await opened(private_server.url)
            with pytest.raises(StoreRefused) as wrong:
                await opened(f"{private_server.url}&password=wrong-one")
        assert "wrong-one" not in str(wrong.value)
        await opened(f"{private_server.url}&password=right")
    finally:
        await admin.config_set("requirepass", "")


async def test_a_permission_that_is_missing_is_named_and_nothing_is_written(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    await admin.execute_command(
        *("ACL", "SETUSER", "rollout", "on", ">secret", "~rr:*", "+@all", "-hset")
    )
    try:
        async with opened_stage(private_server.url, run) as stage:
            before = await stage.outcome()
            url = f"{private_server.url}&username=rollout&password=secret"
            with pytest.raises(StoreRefused, match=r"hset|can't run"):
                async with redis_replay.open_store(url, run=run) as limited:
                    await limited.buffer.reserve(0)
            assert before == await stage.outcome()
    finally:
        await admin.execute_command("ACL", "DELUSER", "rollout")


async def test_a_call_waits_out_somebody_elses_endless_script(
    private_server: embedded.EmbeddedLease, admin: Any, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[Exception] = []

    def noted(failure: Any) -> bool:
        failures.append(failure)
        return faults.is_transient(failure)

    async def loop_for_ever() -> None:
        async with redis.asyncio.Redis.from_url(private_server.url) as client:
            with pytest.raises(RedisError):
                await client.eval(FOREVER, 0)

    async def is_busy() -> bool:
        try:
            await admin.ping()
        except RedisError:
            return True
        return False

    async def was_turned_away() -> bool:
        return any("BUSY" in str(failure) for failure in failures)

    monkeypatch.setattr(gateway, "is_transient", noted)
    async with opened_stage(private_server.url, run) as stage:
        threshold = (await admin.config_get("busy-reply-threshold"))["busy-reply-threshold"]
        await admin.config_set("busy-reply-threshold", 10)
        async with anyio.create_task_group() as group:
            group.start_soon(loop_for_ever)
            await until(is_busy, what="the server was busy")
            group.start_soon(lambda: stage.rollout.buffer.reserve(0, group_id="new"))
            await until(was_turned_away, what="the busy server turned the call away")
            await admin.script_kill()
        await admin.config_set("busy-reply-threshold", threshold)
        assert 1 == sum(slot.group_id == "new" for slot in await stage.store.buffer.slots())


async def test_a_paused_server_applies_a_repeated_call_once(
    private_server: embedded.EmbeddedLease, admin: Any, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "SILENCE_SECONDS", 0.1)
    async with opened_stage(private_server.url, run) as stage:
        before = await journal_length(stage)
        await admin.execute_command("CLIENT", "PAUSE", "350", "WRITE")
        reservation = await stage.rollout.buffer.reserve(0)
        assert before + 1 == await journal_length(stage)
        fences = {slot.group_id: slot.fence for slot in await stage.store.buffer.slots()}
        assert reservation.fence == fences[reservation.group_id]


async def test_a_server_without_free_connections_is_waited_for(
    private_server: embedded.EmbeddedLease, admin: Any, run: str
) -> None:
    most = (await admin.config_get("maxclients"))["maxclients"]
    await admin.config_set("maxclients", 1)
    try:
        with pytest.raises(StoreUnavailable):
            async with opened_stage(private_server.url, run, deadline_seconds=0.2):
                pass
        async with anyio.create_task_group() as group:
            group.start_soon(admin.config_set, "maxclients", most)
            async with opened_stage(private_server.url, run) as stage:
                assert 4 == len(await stage.store.buffer.slots())
    finally:
        await admin.config_set("maxclients", most)
