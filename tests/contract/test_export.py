"""Exporting a checkpoint: what is written, what is not written again, what a failure leaves."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from redis_replay import ReplayStore
from redis_replay._redis.keys import Key, group_field
from redis_replay.checkpoint_files import MANIFEST, locked
from redis_replay.checkpoint_info import TransferProgress
from redis_replay.errors import (
    CheckpointDamaged,
    CheckpointMissing,
    ConfigurationError,
    SchemaMismatch,
)
from redis_replay.packs import check_export
from tests.contract.exports import HOSTILE_IDS, essence, files_in, fill, names_in, pack_in
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def commit_groups(
    store: ReplayStore, count: int, *, first: int = 1, length: int = 2000
) -> list[str]:
    """Commit groups of some size, filled with numbers from the first on."""
    reservations = [await store.buffer.reserve(0) for _ in range(count)]
    for number, reservation in enumerate(reservations):
        await store.buffer.commit(
            reservation.group_id,
            rows(first + number, length=length),
            start_weight_version=0,
            end_weight_version=0,
        )
    return [reservation.group_id for reservation in reservations]


async def test_an_export_is_a_manifest_and_packs_whatever_the_ids(
    runs: Runs, tmp_path: Path
) -> None:
    folder = tmp_path / "a" / "b"
    async with runs.open() as store:
        await fill(store)
        info = await store.checkpoints.create("one", extra={"model": "a"})
        report = await store.checkpoints.export("one", folder)
        assert (info, len(HOSTILE_IDS)) == (report.checkpoint, report.groups)
    assert ["a", "a/b", "a/b/gro", "a/b/man"] == names_in(tmp_path)
    assert report.written_bytes == report.total_bytes
    assert report.total_bytes == sum(map(len, files_in(folder).values()))


async def test_a_second_export_writes_the_new_groups_only(runs: Runs, tmp_path: Path) -> None:
    async with runs.open() as store:
        first_groups = await commit_groups(store, 40)
        await store.checkpoints.create("one")
        first = await store.checkpoints.export("one", tmp_path)
        await store.buffer.remove(first_groups[:4])
        await commit_groups(store, 4, first=41)
        await store.checkpoints.create("two")
        second = await store.checkpoints.export("two", tmp_path)
        assert (40, 40, 40, 4) == (
            *(first.groups, first.groups_written, second.groups, second.groups_written),
        )
        assert second.written_bytes <= 0.15 * first.written_bytes
        third = await store.checkpoints.export("two", tmp_path)
        assert 0 == third.groups_written
        await store.checkpoints.import_(tmp_path, name="back")
        assert (await store.checkpoints.verify("back", deep=True)).is_whole


async def test_packs_that_are_mostly_unused_are_written_anew_and_removed(
    runs: Runs, tmp_path: Path
) -> None:
    async with runs.open() as store:
        groups = await commit_groups(store, 10)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
        older = pack_in(tmp_path)
        await store.buffer.remove(groups[:6])
        await store.checkpoints.create("two")
        report = await store.checkpoints.export("two", tmp_path)
        assert (4, 4) == (report.groups, report.groups_written)
        newer = pack_in(tmp_path)
        assert older != newer
        assert report.total_bytes == newer.stat().st_size + (tmp_path / MANIFEST).stat().st_size


async def test_an_altered_size_of_a_pack_has_it_written_anew(runs: Runs, tmp_path: Path) -> None:
    async with runs.open() as store:
        await commit_groups(store, 3)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
        pack = pack_in(tmp_path)
        pack.write_bytes(pack.read_bytes()[:-1])
        assert 3 == (await store.checkpoints.export("one", tmp_path)).groups_written
        await check_export(tmp_path)


async def test_a_run_goes_on_while_it_is_exported(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        groups = await commit_groups(store, 6, length=700_000)
        await store.checkpoints.create("step-0")
        before = await essence(store)
        progress: list[TransferProgress] = []
        trained = anyio.Event()
        gateway = store.buffer.session.link.gateway
        read = gateway.read

        async def held_after_the_first(ranges: Any) -> list[int]:
            if progress:
                await trained.wait()
            return await read(ranges)

        monkeypatch.setattr(gateway, "read", held_after_the_first)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                partial(store.checkpoints.export, "step-0", tmp_path, on_progress=progress.append)
            )
            while not progress:
                await anyio.lowlevel.checkpoint()
            await trainer.buffer.claim_for_training(groups)
            await trainer.commit_step(0, checkpoint="step-1", keep=1)
            assert progress[-1].done_bytes < progress[-1].total_bytes
            trained.set()
        assert progress[-1].done_bytes == progress[-1].total_bytes > 0
        assert not (await store.checkpoints.show("step-0")).pinned
        await store.checkpoints.drop("step-0")
        await store.checkpoints.import_(tmp_path)
        await store.checkpoints.restore("step-0")
        assert before == await essence(store)


async def test_an_export_that_fails_leaves_the_former_one(runs: Runs, tmp_path: Path) -> None:
    async with runs.open() as store:
        await commit_groups(store, 3)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
        kept = files_in(tmp_path)
        [lost, *_] = await commit_groups(store, 3, first=4)
        await store.checkpoints.create("two")

        def stop(_: TransferProgress) -> None:
            raise KeyError("the disk is full")

        with pytest.raises(KeyError):
            await store.checkpoints.export("two", tmp_path, on_progress=stop)
        assert kept == files_in(tmp_path)
        [slot] = [slot for slot in await store.buffer.slots() if slot.group_id == lost]
        keyspace = store.buffer.session.link.gateway.keyspace
        await runs.client.setrange(keyspace.payload(lost, slot.payload_fence or 0), 9, b"altered")
        runs.audited = False
        with pytest.raises(CheckpointDamaged, match=rf"'two' .* group '{lost}', field 'input_ids'"):
            await store.checkpoints.export("two", tmp_path)
        assert kept == files_in(tmp_path)
        assert not (await store.checkpoints.show("two")).pinned


async def test_a_cancelled_export_leaves_no_file_of_its_own(runs: Runs, tmp_path: Path) -> None:
    async with runs.open() as store:
        await commit_groups(store, 6, length=700_000)
        await store.checkpoints.create("one")
        with anyio.CancelScope() as scope:
            await store.checkpoints.export("one", tmp_path, on_progress=lambda _: scope.cancel())
        assert scope.cancelled_caught
        assert {} == files_in(tmp_path)
        assert not (await store.checkpoints.show("one")).pinned


async def test_what_a_killed_export_left_is_removed_by_the_next(runs: Runs, tmp_path: Path) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0)
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
        for name in (".writing-manifest", ".writing-groups-00", "groups-0123456789abcdef"):
            (tmp_path / name).write_bytes(b"half")
        await check_export(tmp_path)
        await store.checkpoints.export("one", tmp_path)
        assert ["groups-", "manifes"] == names_in(tmp_path)


@pytest.mark.parametrize("damage", ["record", "payload", "copies"])
async def test_what_is_damaged_is_not_exported(runs: Runs, tmp_path: Path, damage: str) -> None:
    runs.audited = False
    async with runs.open() as store:
        group_id = await commit_ready(store, 0)
        await store.checkpoints.create("one")
        [slot] = await store.buffer.slots()
        keyspace, fence = store.buffer.session.link.gateway.keyspace, slot.payload_fence or 0
        if damage == "record":
            await runs.client.hdel(keyspace.control(Key.GROUPS), group_field(group_id, fence))
        elif damage == "payload":
            await runs.client.delete(keyspace.payload(group_id, fence))
        else:
            record = await store.checkpoints.record("one")
            await runs.client.hset(keyspace.saved(record.saved_id, Key.TALLY), "7", "x")
        words = {"record": "record of group", "payload": "has 0 of", "copies": "its digest is"}
        with pytest.raises(
            CheckpointDamaged, match=rf"'one' cannot be exported: .*{words[damage]}"
        ):
            await store.checkpoints.export("one", tmp_path)
        assert {} == files_in(tmp_path)


@pytest.mark.parametrize("name", ["model.bin", "groups-XYZ", "groups-0123456789abcdef0"])
async def test_a_folder_with_something_else_is_refused(
    runs: Runs, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text("mine")
    async with runs.open() as store:
        await store.checkpoints.create("one")
        with pytest.raises(ConfigurationError, match=f"{name}.* which no export wrote"):
            await store.checkpoints.export("one", tmp_path)
        with pytest.raises(ConfigurationError, match="is a file"):
            await store.checkpoints.export("one", tmp_path / name)
    assert {name: b"mine"} == files_in(tmp_path)


async def test_a_folder_in_use_is_refused_and_no_other_checkpoint_is_exported(
    runs: Runs, tmp_path: Path
) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("one")
        with pytest.raises(CheckpointMissing, match="no checkpoint 'two'"):
            await store.checkpoints.export("two", tmp_path)
        used = pytest.raises(ConfigurationError, match="another process is exporting")
        with locked(tmp_path, exclusive=False), used:
            await store.checkpoints.export("one", tmp_path)
        with locked(tmp_path, exclusive=True), used:
            await store.checkpoints.import_(tmp_path)
        assert {} == files_in(tmp_path)


async def test_an_export_of_a_newer_or_unreadable_format_is_not_replaced(
    runs: Runs, tmp_path: Path
) -> None:
    async with runs.open() as store:
        await store.checkpoints.create("one")
        await store.checkpoints.export("one", tmp_path)
        manifest = tmp_path / MANIFEST
        written = bytearray(manifest.read_bytes())
        for at, error in ((16, SchemaMismatch), (40, CheckpointDamaged)):
            altered = written.copy()
            altered[at] ^= 2
            manifest.write_bytes(altered)
            with pytest.raises(error):
                await store.checkpoints.export("one", tmp_path)
            assert altered == manifest.read_bytes()
