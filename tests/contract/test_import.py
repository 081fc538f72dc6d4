"""Importing a checkpoint: the same groups elsewhere, byte for byte, or nothing at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import fakeredis
import numpy as np
import pytest

from redis_replay import InOrderSamplerConfig, ReplayStore, create_sampler
from redis_replay.checkpoint_info import TransferProgress
from redis_replay.errors import (
    CheckpointDamaged,
    CheckpointExists,
    CheckpointMismatch,
    CheckpointMissing,
    ConfigurationError,
    ReplayError,
    ResumeRefused,
)
from redis_replay.importing import Import, import_checked
from redis_replay.packs import check_export
from tests.contract.exports import HOSTILE_IDS, essence, fill
from tests.contract.keyspace import collected, nothing_changed, snapshot
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


@pytest.fixture
async def elsewhere(client: Any, real_client: Any) -> AsyncIterator[Runs]:
    """Opens stores on a server of the other kind."""
    is_fake = isinstance(client, fakeredis.FakeAsyncRedis)
    other = real_client if is_fake else fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
    opened = Runs(other)
    yield opened
    await opened.check()
    if not is_fake:
        await other.aclose()


async def exported(runs: Runs, folder: Path) -> dict[str, Any]:
    """Export a run with everything in it, and return what its restored state is."""
    async with runs.open(groups_per_step=2) as store:
        await fill(store)
        await store.checkpoints.create("one", extra={"model": "a"}, pin=True)
        await store.checkpoints.export("one", folder)
        await store.checkpoints.restore("one")
        return await essence(store)


async def test_a_run_of_another_name_on_another_server_kind_gets_the_same_groups(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    expected = await exported(runs, tmp_path)
    assert {*HOSTILE_IDS, "unfinished"} == set(expected["groups"])
    async with elsewhere.open(partition="p:%", groups_per_step=2) as store:
        for number in range(5):
            await commit_ready(store, 0, group_id=HOSTILE_IDS[number % 4] + "x" * (number // 4))
        async with live_keys_unchanged(elsewhere):
            info = await store.checkpoints.import_(tmp_path)
        assert ("one", 1, 2, True) == (info.name, info.step, info.dispatch_index, info.is_complete)
        assert {"model": "a"} == info.extra
        assert {"reserved": 1, "ready": 3, "claimed": 1, "quarantined": 0} == dict(info.groups)
        assert (await store.checkpoints.verify("one", deep=True)).is_whole
        assert (await store.audit()).is_clean
        await store.checkpoints.restore("one")
        assert expected == await essence(store)
        assert (await store.audit()).is_clean
        await store.collect_garbage()
        assert 4 == len(await elsewhere.payload_keys())


@asynccontextmanager
async def live_keys_unchanged(runs: Runs) -> AsyncIterator[None]:
    """Fail if a key of live groups is another after the block than before it."""
    before = await live_keys(runs)
    yield
    assert before == await live_keys(runs)


async def live_keys(runs: Runs) -> dict[str, Any]:
    """Return what the run's live groups are kept in."""
    kept = ("slots", "prompts", "ready", "counters", "ends", "tally", "steps", "dead")
    found = await snapshot(runs)
    live = {name: value for name, value in found.items() if name.rpartition(":")[2] in kept}
    return {name: value for name, value in live.items() if ":saved:" not in name}


async def test_training_goes_on_from_an_imported_checkpoint(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    await exported(runs, tmp_path)
    async with elsewhere.open(groups_per_step=2) as store:
        await store.checkpoints.import_(tmp_path, name="from-elsewhere")
        await store.checkpoints.restore("from-elsewhere")
        async with store.rollout(owner="h") as host, store.trainer(owner="t") as trainer:
            [ticket] = await host.take_tickets(weight_version=1, max_tickets=4)
            assert ("unfinished", b"p", 1) == (
                *(ticket.group_id, ticket.prompt_ref, ticket.target_step),
            )
            await host.buffer.commit(
                "unfinished", rows(), start_weight_version=1, end_weight_version=1
            )
            sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=3))
            for step in (1, 2):
                meta, count = await trainer.select(
                    sampler, min_prompt_groups=1, max_prompt_groups=9
                )
                assert (3, 2)[step - 1] == count
                assert 2 * count == len(await trainer.samples.get_samples(meta))
                await trainer.commit_step(step)
            assert 3 == await sampler.admit(trainer_version_fn=lambda: 3)


async def test_the_same_run_may_import_what_it_exported(runs: Runs, tmp_path: Path) -> None:
    async with runs.open() as store:
        await fill(store)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
        with pytest.raises(CheckpointExists, match="'one' already"):
            await store.checkpoints.import_(tmp_path)
        copy = await store.checkpoints.import_(tmp_path, name="two")
        assert ["one", "two"] == [info.name for info in await store.checkpoints.list()]
        await store.checkpoints.drop("one")
        await store.checkpoints.restore("two")
        before = await essence(store)
        await store.checkpoints.restore("two")
        assert before == await essence(store)
        assert copy.lineage == store.run.lineage


@pytest.mark.parametrize("kind", ["empty", "gaps"])
async def test_corner_shapes_survive_and_may_be_saved_again(
    runs: Runs, elsewhere: Runs, tmp_path: Path, kind: str
) -> None:
    async with runs.open() as store:
        if kind == "gaps":
            await commit_ready(store, 3, group_id="a", target_step=7)
            await store.buffer.reserve(0, group_id="b")
            await commit_ready(store, 4, group_id="c", target_step=8)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path / "first")
        await store.checkpoints.restore("one")
        expected = await essence(store)
    async with elsewhere.open() as store:
        await store.checkpoints.import_(tmp_path / "first")
        await store.checkpoints.restore("one")
        await store.checkpoints.create("again")
        await store.checkpoints.export("again", tmp_path / "second")
        await store.checkpoints.drop("again")
        await store.checkpoints.drop("one")
        assert expected == await essence(store)
        await store.checkpoints.import_(tmp_path / "second")
        await store.checkpoints.restore("again")
        assert expected == await essence(store)
    assert (2 if kind == "gaps" else 0) == sum(
        "payload" in group for group in expected["groups"].values()
    )


async def test_a_group_of_many_chunks_keeps_its_bytes(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    array = np.arange(3_000_000, dtype=np.int32)
    async with runs.open() as store:
        store.buffer.session.link.chunk_bytes = 5_000_000
        await store.buffer.reserve(0, group_id="big")
        wide = [{"x": array + row, "reward": float(row)} for row in range(2)]
        await store.buffer.commit("big", wide, start_weight_version=0, end_weight_version=0)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
    async with elsewhere.open() as store:
        await store.checkpoints.import_(tmp_path)
        await store.checkpoints.restore("one")
        meta = await store.buffer.claim_for_training(["big"])
        read = await store.samples.get_samples(meta)
        for row, cells in enumerate(read):
            np.testing.assert_array_equal(array + row, cells["x"])
        assert 5 == len(await elsewhere.payload_keys())


async def test_an_import_into_a_run_of_other_settings_registers_and_restore_refuses(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    await exported(runs, tmp_path)
    async with elsewhere.open(group_size=4, groups_per_step=2) as store:
        await store.checkpoints.import_(tmp_path)
        damaged = (await store.checkpoints.verify("one")).damaged
        assert {"it has 2 rows instead of 4"} == set(damaged.values())
        with pytest.raises(CheckpointDamaged, match="2 rows instead of 4"):
            await store.checkpoints.restore("one")
        with pytest.raises(CheckpointMismatch, match="group_size 2 and the run has 4"):
            await store.checkpoints.restore("one", mode="prompts_only")
        assert [] == await store.buffer.slots()
    small = Runs(elsewhere.client)
    async with small.open(capacity=4, groups_per_step=2) as store:
        await store.checkpoints.import_(tmp_path)
        async with nothing_changed(small):
            with pytest.raises(CheckpointMismatch, match=r"holds 5 groups .* capacity of 4"):
                await store.checkpoints.restore("one")
    await small.check()


async def test_dropping_an_imported_checkpoint_leaves_nothing(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    await exported(runs, tmp_path)
    async with elsewhere.open(groups_per_step=2) as store:
        before = await elsewhere.keys()
        await store.checkpoints.import_(tmp_path)
        assert before != await elsewhere.keys()
        assert 4 == await store.checkpoints.drop("one")
        assert {*before, journal(before)} == set(await elsewhere.keys())


def journal(keys: list[str]) -> str:
    """Return the name of the journal among a run's keys."""
    [meta] = [key for key in keys if key.endswith(":meta")]
    return meta.removesuffix("meta") + "events"


@pytest.mark.parametrize("how", ["raised", "cancelled"])
async def test_an_import_that_fails_is_undone(
    runs: Runs, elsewhere: Runs, tmp_path: Path, how: str
) -> None:
    await exported(runs, tmp_path)
    async with elsewhere.open(groups_per_step=2) as store:
        before = await elsewhere.keys()
        with anyio.CancelScope() as scope:

            def stop(progress: TransferProgress) -> None:
                if progress.stage == "write" and how == "raised":
                    raise KeyError("stopped")
                if progress.stage == "write":
                    scope.cancel()

            work = store.checkpoints.import_(tmp_path, on_progress=stop)
            if how == "raised":
                with pytest.raises(KeyError):
                    await work
            else:
                await work
        assert (how == "cancelled") == scope.cancelled_caught
        assert [] == list(await store.checkpoints.list())
        assert {*before, journal(before)} == set(await elsewhere.keys())


@pytest.mark.parametrize("steps", [1, 2, 3])
async def test_a_killed_import_leaves_what_is_ignored_and_can_be_dropped(
    runs: Runs, elsewhere: Runs, tmp_path: Path, steps: int
) -> None:
    await exported(runs, tmp_path)
    async with elsewhere.open(groups_per_step=2) as store:
        before = await elsewhere.keys()
        work = Import(store.buffer.session.link, await check_export(tmp_path), "one")
        await work._begin()
        if steps > 1:
            await work._write_groups()
        if steps > 2:
            await work._write_copies()
        [info] = await store.checkpoints.list()
        assert ("one", False, "") == (info.name, info.is_complete, info.digest)
        found = await store.checkpoints.verify("one")
        assert ("its import has not ended" in found.problems[0], False) == (True, found.is_whole)
        for refused in (
            store.checkpoints.restore("one"),
            store.checkpoints.export("one", tmp_path / "out"),
        ):
            with pytest.raises(CheckpointDamaged, match="its import has not ended"):
                await refused
        with pytest.raises(CheckpointExists):
            await store.checkpoints.import_(tmp_path)
        assert [] == await store.find_orphans()
        assert [] == await store.find_orphans()
        assert (await store.audit()).is_clean
        payload = await elsewhere.payload_keys()
        await store.checkpoints.create("mine", keep=1)
        assert payload == await elsewhere.payload_keys()
        await store.publish_trainer_version(2)
        with pytest.raises(ResumeRefused, match=r"no checkpoint of step 1 \(there are \[0\]\)"):
            await store.resume(model_step=1)
        await store.checkpoints.drop("mine")
        await store.checkpoints.drop("one")
        await collected(store)
        assert {*before, journal(before)} == set(await elsewhere.keys())
        assert (await store.checkpoints.import_(tmp_path)).is_complete


async def test_an_import_ends_when_its_checkpoint_is_dropped_or_the_run_restored(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    await exported(runs, tmp_path)
    async with (
        elsewhere.open(groups_per_step=2) as store,
        elsewhere.open(groups_per_step=2) as other,
    ):
        for end, error in ((drop, CheckpointMissing), (restore, ReplayError)):
            checked = await check_export(tmp_path)
            work = Import(store.buffer.session.link, checked, "one")
            await work._begin()
            await end(other)
            with pytest.raises(error):
                await work._write_groups()
        assert [] == await elsewhere.payload_keys()
        await other.checkpoints.create("one")
        assert ["before", "one"] == [info.name for info in await other.checkpoints.list()]
        assert [] == [key for key in await elsewhere.keys() if work.saved_id in key]


async def drop(store: ReplayStore) -> None:
    await store.checkpoints.drop("one")


async def restore(store: ReplayStore) -> None:
    await store.checkpoints.create("before")
    await store.checkpoints.restore("before")


async def test_an_open_admission_of_the_file_is_given_to_the_next_dispatcher(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    policy = InOrderSamplerConfig(max_lookahead_versions=2)
    async with runs.open() as store, store.rollout(owner="host") as host:
        sampler = create_sampler(host.buffer, policy)
        assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
    async with elsewhere.open() as store, store.rollout(owner="host") as first:
        await first.buffer.reserve(0)
        await store.checkpoints.import_(tmp_path)
        await store.checkpoints.restore("one")
        async with (
            store.rollout(owner="host") as host,
            store.rollout(owner="import") as namesake,
        ):
            await namesake.buffer.reserve(0)
            sampler = create_sampler(host.buffer, policy)
            assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
            assert 1 == await sampler.admit(trainer_version_fn=lambda: 0)


async def test_where_there_is_no_export_nothing_is_imported(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    async with runs.open() as store:
        await store.checkpoints.create("here")
        async with nothing_changed(runs):
            for name, words in (
                ("absent", "is no folder"),
                ("file", "is no folder"),
                ("folder", "manifest does not exist"),
            ):
                with pytest.raises(CheckpointMissing, match=words):
                    await store.checkpoints.import_(tmp_path / name)
            with pytest.raises(ValueError, match="a checkpoint's name is"):
                await store.checkpoints.import_(tmp_path, name="a/b")
            assert issubclass(CheckpointMissing, ReplayError)
            assert not issubclass(CheckpointMissing, ConfigurationError)


async def test_checked_files_that_change_before_they_are_written_end_the_import(
    runs: Runs, elsewhere: Runs, tmp_path: Path
) -> None:
    await exported(runs, tmp_path)
    async with elsewhere.open(groups_per_step=2) as store:
        before = await elsewhere.keys()
        checked = await check_export(tmp_path)
        [pack] = list(checked.packs)
        path = tmp_path / f"groups-{pack}"
        written = bytearray(path.read_bytes())
        written[-1] ^= 1
        path.write_bytes(written)
        link = store.buffer.session.link
        with pytest.raises(CheckpointDamaged, match="they fail their checksum"):
            await import_checked(link, checked, name=None, on_progress=None)
        assert {*before, journal(before)} == set(await elsewhere.keys())
