"""Opening a run: what is stored once, what may differ later, and servers not fit for it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import redis_replay
from redis_replay._redis.keys import Key
from redis_replay.errors import (
    ConfigurationError,
    RunMismatch,
    SchemaMismatch,
    StoreCorrupted,
    StoreMissing,
    UnsafeServer,
    UnsupportedUrl,
)
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

SETTINGS: dict[str, Any] = {
    "capacity": 8,
    "group_size": 2,
    "groups_per_step": 2,
    "max_payload_bytes": 10_000,
    "max_attempts": 3,
    "max_requeues": 4,
    "journal_events": 50,
}


async def test_a_new_run_is_created_with_its_settings_and_nothing_admitted(runs: Runs) -> None:
    async with runs.open(**SETTINGS) as store:
        assert store.run.created
        for name, value in SETTINGS.items():
            assert value == getattr(store.run.settings, name)
        stats = await store.stats()
        assert (8, 0, -1, 0, None) == (
            *(stats.capacity, stats.occupancy, stats.dispatch_index),
            *(stats.trainer_version, stats.gate_window),
        )


@pytest.mark.parametrize("missing", ["capacity", "group_size"])
async def test_a_new_run_needs_its_sizes_and_is_not_created_without(
    runs: Runs, missing: str
) -> None:
    runs.audited = False
    with pytest.raises(ConfigurationError, match=f"is new .*{missing} must be given"):
        await runs.open(**{missing: None}).__aenter__()
    assert [] == await runs.keys()


async def test_a_run_that_must_be_there_is_never_created(runs: Runs) -> None:
    runs.audited = False
    with pytest.raises(StoreMissing, match=runs.name):
        await runs.open(create=False).__aenter__()
    assert [] == await runs.keys()


async def test_a_run_is_opened_again_as_it_was_stored(runs: Runs) -> None:
    async with runs.open(**SETTINGS) as store:
        await commit_ready(store, 0, group_id="g")
        lineage = store.run.lineage
    async with runs.open(capacity=None, group_size=None, create=False) as store:
        assert (False, lineage, ()) == (store.run.created, store.run.lineage, store.run.changes)
        for name, value in SETTINGS.items():
            assert value == getattr(store.run.settings, name)
        assert ["g"] == [slot.group_id for slot in await store.buffer.slots()]


async def test_of_hosts_that_open_a_new_run_at_once_one_creates_it(runs: Runs) -> None:
    seen: list[tuple[bool, str]] = []

    async def open_and_note() -> None:
        async with runs.open() as store:
            seen.append((store.run.created, store.run.lineage))

    async with anyio.create_task_group() as tasks:
        for _ in range(6):
            tasks.start_soon(open_and_note)
    assert 1 == sum(created for created, _ in seen)
    assert 1 == len({lineage for _, lineage in seen})


async def test_everything_that_differs_is_named_and_nothing_is_changed(runs: Runs) -> None:
    async with runs.open(**SETTINGS):
        pass
    other = {"group_size": 3, "groups_per_step": 5, "max_attempts": 9, "journal_events": 60}
    async with nothing_changed(runs):
        with pytest.raises(RunMismatch) as refused:
            await runs.open(**{**SETTINGS, **other, "capacity": 99}).__aenter__()
    for name, value in other.items():
        assert f"{name}: stored {SETTINGS[name]}, asked {value}" in str(refused.value)
    assert "max_requeues" not in str(refused.value)


async def test_more_capacity_is_accepted_reported_and_in_force(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs.open(capacity=1) as first:
        await first.buffer.reserve(0)
        async with runs.open(capacity=3, max_payload_bytes=1000) as store:
            expected = (
                "capacity changed from 1 to 3",
                "max_payload_bytes changed from None to 1000",
            )
            assert expected == store.run.changes
            assert expected[0] in caplog.text
            assert (3, 1000) == (
                store.run.settings.capacity,
                store.run.settings.max_payload_bytes,
            )
            await first.buffer.reserve(0)
            await store.buffer.reserve(0)
            assert 3 == (await store.stats()).capacity


async def test_less_capacity_is_accepted_while_everything_fits(runs: Runs) -> None:
    async with runs.open(capacity=5) as store:
        for _ in range(3):
            await store.buffer.reserve(0)
        async with runs.open(capacity=3):
            pass
        async with nothing_changed(runs):
            with pytest.raises(
                RunMismatch, match=r"holds 3 groups, .* capacity of 2 .* capacity=3"
            ):
                await runs.open(capacity=2).__aenter__()
            with pytest.raises(redis_replay.errors.BufferFull):
                await store.buffer.reserve(0)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("capacity", 0, ValueError),
        ("group_size", -1, ValueError),
        ("groups_per_step", 0, ValueError),
        ("max_attempts", 0, ValueError),
        ("journal_events", True, TypeError),
        ("capacity", 2.0, TypeError),
        ("max_payload_bytes", "1", TypeError),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_by_name(
    runs: Runs, name: str, value: object, error: type[Exception]
) -> None:
    runs.audited = False
    with pytest.raises(error, match=name):
        runs.open(**{name: value})


async def test_partitions_of_a_run_share_nothing(runs: Runs) -> None:
    async with runs.open() as train, runs.open(partition="val", capacity=210) as val:
        await train.publish_trainer_version(4)
        ids = [await commit_ready(train, 4, target_step=4) for _ in range(2)]
        before = await train.stats()
        for at in range(20):
            await commit_ready(val, 4, group_id=ids[0] if at == 0 else f"v{at}")
        assert before == await train.stats()
        assert {4} == {slot.start_weight_version for slot in await val.buffer.slots()}
        assert 2 == await train.buffer.count_for_target_step(4)
        assert 0 == await val.buffer.count_for_target_step(4)
        meta = await train.buffer.claim_for_training(ids)
        assert "rollout_data" == meta.partition_id
        kept = await train.samples.get_samples(meta)
        await val.buffer.remove([slot.group_id for slot in await val.buffer.slots()])
        assert len(kept) == len(await train.samples.get_samples(meta))
        await train.buffer.release_training_claims(ids)
        await commit_ready(val, 4, group_id="last")
        assert (2, 1) == ((await train.stats()).trained, (await val.stats()).ready)


async def test_runs_and_partitions_of_any_name_stay_apart(runs: Runs) -> None:
    odd = ("a}:b", "{a", "a:b", "a%3Ab", "\N{GREEK SMALL LETTER PI}\n", "*")
    for at, name in enumerate(odd):
        async with runs.open(run=f"{runs.name}{name}", partition=name) as store:
            await commit_ready(store, at, group_id="g")
    for at, name in enumerate(odd):
        async with runs.open(run=f"{runs.name}{name}", partition=name, create=False) as store:
            assert [at] == [slot.start_weight_version for slot in await store.buffer.slots()]


@pytest.mark.parametrize("options", [{"run": ""}, {"partition": ""}])
async def test_an_empty_name_is_refused(runs: Runs, options: dict[str, str]) -> None:
    runs.audited = False
    with pytest.raises(ValueError, match="non-empty"):
        await runs.open(**options).__aenter__()


async def test_a_run_of_a_newer_schema_is_not_touched(runs: Runs) -> None:
    async with runs.open():
        pass
    meta = control_key(runs, Key.META)
    await runs.client.hset(meta, mapping={"schema": 7, "min_writer": 7})
    async with nothing_changed(runs):
        with pytest.raises(SchemaMismatch, match=r"schema 7 .*schema 2"):
            await runs.open().__aenter__()
    await runs.client.hset(meta, mapping={"schema": 7, "min_writer": 1})
    async with runs.open() as store:
        await store.buffer.reserve(0)


@pytest.mark.parametrize("kind", ["string", "incomplete"])
async def test_a_control_record_that_is_none_is_reported_as_corrupted(
    runs: Runs, kind: str
) -> None:
    runs.audited = False
    meta = control_key(runs, Key.META)
    if kind == "string":
        await runs.client.set(meta, "text")
    else:
        await runs.client.hset(meta, "capacity", "9")
    async with nothing_changed(runs):
        with pytest.raises(StoreCorrupted):
            await runs.open().__aenter__()


@pytest.mark.parametrize(
    "url",
    ["http://host", "127.0.0.1:6379", "redis://host:port", "redis://h:1/0?unknown=1", "nonsense"],
)
async def test_an_address_of_no_server_is_refused_by_name(url: str) -> None:
    with pytest.raises((UnsupportedUrl, ConfigurationError)):
        await redis_replay.open_store(url, run="r", capacity=1, group_size=1).__aenter__()


async def test_without_an_address_the_message_says_how_to_give_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("REDIS_REPLAY_URL", raising=False)
    with pytest.raises(ConfigurationError, match=r"embedded:///folder .*REDIS_REPLAY_URL"):
        await redis_replay.open_store(run="r", capacity=1, group_size=1).__aenter__()


async def test_the_address_may_come_from_the_environment(
    real_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_REPLAY_URL", real_server)
    async with redis_replay.open_store(
        run="test-environment", capacity=1, group_size=2, create=True
    ) as store:
        made = await store.buffer.reserve(0)
        await store.buffer.commit(
            made.group_id, rows(), start_weight_version=0, end_weight_version=0
        )
        await store.buffer.remove([made.group_id])


async def test_a_server_that_may_drop_keys_is_refused_unless_told_to(
    real_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Runs(real_client)
    runs.audited = False
    [policy] = (await real_client.config_get("maxmemory-policy")).values()
    assert "noeviction" == policy
    await real_client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(UnsafeServer, match=r"allkeys-lru.*noeviction.*allow_unsafe_server"):
            await runs.open().__aenter__()
        assert [] == await runs.keys()
        async with runs.open(allow_unsafe_server=True):
            assert "allkeys-lru" in caplog.text
    finally:
        await real_client.config_set("maxmemory-policy", "noeviction")


async def test_a_server_that_keeps_nothing_is_warned_about(
    real_client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Runs(real_client)
    async with runs.open():
        assert "persists nothing" not in caplog.text
    await real_client.config_set("appendonly", "no")
    [save] = (await real_client.config_get("save")).values()
    await real_client.config_set("save", "")
    try:
        async with runs.open():
            assert "persists nothing" in caplog.text
    finally:
        await real_client.config_set("save", save)
        await real_client.config_set("appendonly", "yes")


async def test_a_store_is_opened_once(runs: Runs) -> None:
    async with runs.open() as store:
        with pytest.raises(redis_replay.errors.StoreClosed, match="opened once"):
            await store.__aenter__()
    await store.close()
    with pytest.raises(redis_replay.errors.StoreClosed):
        await store.stats()
    with pytest.raises(redis_replay.errors.StoreClosed):
        store.trainer(owner="job")


async def test_a_store_that_was_never_entered_says_so(runs: Runs) -> None:
    runs.audited = False
    store = runs.open()
    with pytest.raises(redis_replay.errors.StoreClosed, match="async with"):
        await store.stats()
    await store.close()


async def test_an_error_in_the_block_leaves_the_store_as_it_was_raised(runs: Runs) -> None:
    async def fail() -> None:
        async with runs.open() as store:
            await store.buffer.reserve(0)
            _ = 1 // 0

    with pytest.raises(ZeroDivisionError):
        await fail()
    async with runs.open() as store:
        assert [None] == [slot.owner for slot in await store.buffer.slots()]


async def test_the_trainer_version_only_rises(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        await store.publish_trainer_version(5)
        async with nothing_changed(runs):
            await other.publish_trainer_version(5)
            await other.publish_trainer_version(3)
            for bad in (-1, 2**53, True, "1"):
                with pytest.raises((ValueError, TypeError), match="trainer_version"):
                    await store.publish_trainer_version(bad)  # type: ignore[arg-type]
        assert (5, 5) == (store.trainer_version, (await other.stats()).trainer_version)
