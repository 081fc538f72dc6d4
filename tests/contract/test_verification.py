"""Verifying a checkpoint names what will not come back, and changes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redis_replay import ReplayStore, verification
from redis_replay._redis.keys import Key
from redis_replay.errors import CheckpointDamaged, CheckpointMissing
from redis_replay.group_record import CHUNK_BYTES, pack_record
from redis_replay.payloads import encode_group
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def kept(runs: Runs, **options: Any) -> AsyncIterator[ReplayStore]:
    """Open a run with the checkpoint ``kept`` of the finished groups a, b, c and the unfinished r.

    Of them a was trained since, and each payload has several chunks.
    """
    async with runs.open(**options) as store:
        store.buffer.session.link.chunk_bytes = 16
        for name in "abc":
            await commit_ready(store, 0, group_id=name)
        await store.buffer.reserve(0, group_id="r")
        await store.checkpoints.create("kept")
        await store.buffer.claim_for_training(["a"])
        await store.buffer.release_training_claims(["a"])
        await store.collect_garbage()
        yield store


async def payload_of(runs: Runs, group_id: str) -> list[str]:
    """Return the payload keys of a group, its first chunk first."""
    return sorted(key for key in await runs.payload_keys() if f":{group_id}:" in key)


async def record_field(runs: Runs, group_id: str) -> bytes:
    """Return the field of a group's record."""
    names: list[bytes] = await runs.client.hkeys(control_key(runs, Key.GROUPS))
    [name] = [name for name in names if name.endswith(b":" + group_id.encode())]
    return name


async def test_a_whole_checkpoint_names_its_unfinished_groups(runs: Runs) -> None:
    async with kept(runs) as store, nothing_changed(runs):
        for deep in (False, True):
            found = await store.checkpoints.verify("kept", deep=deep)
            assert (True, ("r",), 3, "kept") == (
                *(found.is_whole, found.unfinished, found.groups_checked, found.name),
            )


@pytest.mark.parametrize("deep", [False, True])
async def test_payload_that_is_gone_short_or_long_is_named(runs: Runs, deep: bool) -> None:
    runs.audited = False
    async with kept(runs) as store:
        first, second, *_ = await payload_of(runs, "a")
        whole = sum([await runs.client.strlen(key) for key in await payload_of(runs, "a")])
        lost = await runs.client.strlen(second)
        await runs.client.delete(second)
        await runs.client.append((await payload_of(runs, "b"))[0], b"x")
        for key in await payload_of(runs, "c"):
            await runs.client.delete(key)
        found = await store.checkpoints.verify("kept", deep=deep)
        assert not found.is_whole
        assert {
            "a": f"its payload has {whole - lost} of {whole} bytes",
            "b": f"its payload has {whole + 1} of {whole} bytes",
            "c": f"its payload has 0 of {whole} bytes",
        } == dict(found.damaged)
        assert await runs.client.exists(first)


async def test_rows_whose_bytes_were_changed_are_found_by_a_deep_look_alone(runs: Runs) -> None:
    async with kept(runs) as store:
        first, *_ = await payload_of(runs, "a")
        bytes_there = await runs.client.get(first)
        await runs.client.set(first, bytes_there[:-1] + bytes([bytes_there[-1] ^ 1]))
        assert (await store.checkpoints.verify("kept")).is_whole
        found = await store.checkpoints.verify("kept", deep=True)
        assert ["a"] == list(found.damaged)
        assert "checksum" in found.damaged["a"]


async def test_records_that_are_gone_or_damaged_are_named(runs: Runs) -> None:
    runs.audited = False
    async with kept(runs) as store:
        groups = control_key(runs, Key.GROUPS)
        await runs.client.hdel(groups, await record_field(runs, "a"))
        await runs.client.hset(groups, await record_field(runs, "b"), b"\xc1")
        found = await store.checkpoints.verify("kept")
        assert ["a", "b"] == list(found.damaged)
        assert "its record is gone" == found.damaged["a"]
        assert "unreadable record" in found.damaged["b"]
        with pytest.raises(CheckpointDamaged, match=r"2 groups .* 'a': its record is gone; group"):
            await store.checkpoints.restore("kept")


async def test_a_group_of_another_size_than_the_runs_is_named(runs: Runs) -> None:
    runs.audited = False
    async with kept(runs) as store:
        await runs.client.hset(control_key(runs, Key.META), "group_size", 5)
        async with runs.open(group_size=5) as other:
            found = await other.checkpoints.verify("kept")
        assert {"a", "b", "c"} == set(found.damaged)
        assert "it has 2 rows instead of 5" == found.damaged["b"]
        assert (await store.checkpoints.verify("kept")).is_whole


@pytest.mark.parametrize("key", [Key.SLOTS, Key.TALLY, Key.ENDS])
async def test_a_copy_that_was_changed_is_a_problem_of_the_whole(runs: Runs, key: Key) -> None:
    async with kept(runs) as store:
        record = await store.checkpoints.record("kept")
        saved = store.buffer.session.link.gateway.keyspace.saved(record.saved_id, key)
        await runs.client.hset(saved, "new", b"reserved 9 1 0 - - - - 1 - 0 - - - 0")
        found = await store.checkpoints.verify("kept")
        problems = [found.problems[0].split(" is ")[0], *found.problems[1:]]
        counted = ["it has 5 groups, written were 4"] if key is Key.SLOTS else []
        assert ["its digest", *counted] == problems
        assert not found.is_whole


async def test_a_slot_that_is_not_readable_is_a_problem_of_the_whole(runs: Runs) -> None:
    async with kept(runs) as store:
        record = await store.checkpoints.record("kept")
        saved = store.buffer.session.link.gateway.keyspace.saved(record.saved_id, Key.SLOTS)
        await runs.client.hset(saved, "r", b"reserved")
        [problem] = (await store.checkpoints.verify("kept")).problems
        assert "slot b'r' has the record b'reserved'" in problem
        async with nothing_changed(runs):
            with pytest.raises(CheckpointDamaged, match="not readable"):
                await store.checkpoints.restore("kept", regenerate_damaged=True)


async def test_rows_do_not_matter_to_a_restore_that_generates_them_again(runs: Runs) -> None:
    async with kept(runs) as store:
        for key in await payload_of(runs, "a"):
            await runs.client.delete(key)
        assert 4 == (await store.checkpoints.restore("kept", mode="prompts_only")).tickets
        assert 4 == len((await store.checkpoints.restore("kept", mode="none")).left_out)


async def test_many_groups_are_verified_a_slice_at_a_time(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_SLICE", 2)
    async with runs.open() as store:
        for at in range(5):
            await commit_ready(store, 0, group_id=f"g{at}")
        await store.checkpoints.create("kept")
        await runs.client.delete(*await payload_of(runs, "g1"), *await payload_of(runs, "g4"))
        runs.audited = False
        found = await store.checkpoints.verify("kept")
        assert (5, ["g1", "g4"]) == (found.groups_checked, list(found.damaged))


async def test_a_group_with_fewer_tags_than_rows_is_named(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
        tags = [{"a": 1}, {"a": 2}]
        await store.buffer.commit(
            "g", rows(), start_weight_version=0, end_weight_version=0, tags=tags
        )
        await store.checkpoints.create("kept")
        field = await record_field(runs, "g")
        record = pack_record(
            encode_group("g", rows()),
            chunk_bytes=CHUNK_BYTES,
            tags=tags[:1],
            rollout_metrics={},
        )
        await runs.client.hset(control_key(runs, Key.GROUPS), field, record)
        found = await store.checkpoints.verify("kept")
        assert {"g": "group 'g': unreadable record: 1 tags for 2 rows"} == dict(found.damaged)


async def test_a_checkpoint_that_is_not_there_cannot_be_verified(runs: Runs) -> None:
    async with runs.open() as store:
        with pytest.raises(CheckpointMissing, match="no checkpoint 'a'"):
            await store.checkpoints.verify("a")
