"""The data plane: reading rows and columns of committed groups, and writing columns back."""

from __future__ import annotations

from typing import Any

import fakeredis
import numpy as np
import pytest
import redis.asyncio

import redis_replay
from redis_replay._redis.keys import Key
from redis_replay.errors import (
    ClaimMismatch,
    PayloadCorrupted,
    PayloadMissing,
    StaleOwner,
    UnknownGroup,
    WrongState,
)
from tests.contract.keyspace import attached, control_key, nothing_changed
from tests.harness import CAPACITY, GROUP_SIZE, Runs, commit_ready

pytestmark = pytest.mark.anyio


def mixed_rows(seed: int) -> list[dict[str, Any]]:
    """Return two rows with ragged arrays, bytes of every value, nesting and nothing."""
    draw = np.random.default_rng(seed)
    return [
        {
            "input_ids": draw.integers(0, 9, 3 + row, dtype=np.int64),
            "logprobs": draw.random(3 + row, dtype=np.float32),
            "blob": bytes(range(256)),
            "note": {"turns": [1, 2.5, None, "x"]},
            "none": None,
        }
        for row in range(GROUP_SIZE)
    ]


async def commit_mixed(store: Any, group_id: str, seed: int) -> list[dict[str, Any]]:
    """Commit a group of mixed rows and return them."""
    written = mixed_rows(seed)
    await store.buffer.reserve(0, group_id=group_id)
    await store.buffer.commit(group_id, written, start_weight_version=0, end_weight_version=0)
    return written


def assert_same_row(expected: dict[str, Any], actual: dict[str, Any]) -> None:
    """Compare two rows cell by cell, arrays with dtype and shape."""
    assert list(expected) == list(actual)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == actual[name].dtype
            np.testing.assert_array_equal(value, actual[name])
        else:
            assert value == actual[name]


async def test_rows_come_back_exactly_in_the_order_asked(runs: Runs) -> None:
    async with runs.open() as store:
        a, b = await commit_mixed(store, "a", 1), await commit_mixed(store, "b", 2)
        read = await store.samples.get_samples(["b_g1", "a_g0", "b_g0", "a_g1"])
        for expected, actual in zip((b[1], a[0], b[0], a[1]), read, strict=True):
            assert_same_row(expected, actual)


async def test_one_row_or_one_column_is_read_alone(runs: Runs) -> None:
    async with runs.open() as store:
        a = await commit_mixed(store, "a", 1)
        [row] = await store.samples.get_samples(["a_g1"])
        assert_same_row(a[1], row)
        for names in (["logprobs"], ["blob", "input_ids"], ["note"], []):
            read = await store.samples.get_samples(["a_g0", "a_g1"], select_fields=names)
            for expected, actual in zip(a, read, strict=True):
                assert_same_row({name: expected[name] for name in names}, actual)


async def test_a_sample_asked_for_twice_is_given_twice(runs: Runs) -> None:
    async with runs.open() as store:
        a = await commit_mixed(store, "a", 1)
        read = await store.samples.get_samples(["a_g0", "a_g0"])
        assert [a[0]["note"]] * 2 == [row["note"] for row in read]
        assert [] == await store.samples.get_samples([])


async def test_the_meta_of_a_batch_reads_its_rows(runs: Runs) -> None:
    async with runs.open(capacity=2, group_size=16) as store:
        for group in range(2):
            made = await store.buffer.reserve(0)
            await store.buffer.commit(
                made.group_id,
                [{"x": np.int32(16 * group + row)} for row in range(16)],
                start_weight_version=0,
                end_weight_version=0,
            )
        assert 2 == await store.buffer.size()
        with pytest.raises(redis_replay.errors.BufferFull):
            await store.buffer.reserve(0)
        ids = [slot.group_id for slot in await store.buffer.slots()]
        meta = await store.buffer.claim_for_training(ids)
        read = await store.samples.get_samples(meta)
        assert list(range(32)) == [row["x"] for row in read]


async def test_an_array_that_was_read_cannot_be_written_to(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_mixed(store, "a", 1)
        [row] = await store.samples.get_samples(["a_g0"])
        with pytest.raises(ValueError, match="read-only"):
            row["input_ids"][0] = 1  # type: ignore[index,call-overload]


@pytest.mark.parametrize("state", ["absent", "reserved", "ended"])
async def test_a_group_without_rows_is_an_unknown_group(runs: Runs, state: str) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="good")
        if state != "absent":
            await store.buffer.reserve(0, group_id="bad")
        if state == "ended":
            await store.buffer.abort("bad")
        async with nothing_changed(runs):
            with pytest.raises(UnknownGroup, match="'bad'") as refused:
                await store.samples.get_samples(["good_g0", "bad_g0"])
        assert "bad" == refused.value.group_id


@pytest.mark.parametrize("sample_id", ["", "a", "a_g", "_g0", "a_gx", "a_g-1", "a_g\u0663"])
async def test_a_malformed_sample_id_is_refused(runs: Runs, sample_id: str) -> None:
    async with runs.open() as store:
        await commit_mixed(store, "a", 1)
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match="sample id"):
                await store.samples.get_samples([sample_id])
            with pytest.raises(ValueError, match="sample id"):
                await store.samples.put_samples([sample_id], fields={"x": [1]})
            with pytest.raises(ValueError, match="sample id"):
                await store.samples.clear_samples([sample_id])


async def test_an_unknown_row_or_field_is_refused_by_name(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_mixed(store, "a", 1)
        with pytest.raises(ValueError, match="2"):
            await store.samples.get_samples(["a_g2"])
        with pytest.raises(ValueError, match=r"ghost.*logprobs"):
            await store.samples.get_samples(["a_g0"], select_fields=["ghost"])


@pytest.mark.parametrize("damage", ["gone", "short", "flipped", "record"])
async def test_a_damaged_payload_is_reported_and_never_returned(runs: Runs, damage: str) -> None:
    async with runs.open() as store:
        await commit_mixed(store, "good", 1)
        await commit_mixed(store, "bad", 2)
        [key] = [key for key in await runs.payload_keys() if ":bad:" in key]
        whole = await runs.client.get(key)
        if damage == "gone":
            await runs.client.delete(key)
        elif damage == "short":
            await runs.client.set(key, whole[:-5])
        elif damage == "flipped":
            await runs.client.set(key, bytes([whole[0] ^ 1]) + whole[1:])
        else:
            slot = (await store.buffer.slots())[1]
            await runs.client.hdel(control_key(runs, Key.GROUPS), f"{slot.payload_fence}:bad")
        expected = PayloadCorrupted if damage == "flipped" else PayloadMissing
        with pytest.raises(expected) as refused:
            await store.samples.get_samples(["bad_g0", "bad_g1"])
        assert "bad" == refused.value.group_id
        assert 2 == len(await store.samples.get_samples(["good_g0", "good_g1"]))
    runs.audited = damage == "flipped"


async def test_written_columns_are_visible_and_win_over_committed_ones(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        a = await commit_mixed(store, "a", 1)
        await trainer.buffer.claim_for_training(["a"])
        await trainer.samples.put_samples(
            ["a_g1", "a_g0"],
            fields={"advantage": [0.5, -0.5], "logprobs": [np.zeros(4), np.ones(3)]},
            tags=[{"k": 1}, {"k": 0}],
        )
        for samples in (trainer.samples, store.samples):
            first, second = await samples.get_samples(["a_g0", "a_g1"])
            assert (-0.5, 0.5) == (first["advantage"], second["advantage"])
            assert ({"k": 0}, {"k": 1}) == (first["tags"], second["tags"])
            np.testing.assert_array_equal(np.ones(3), first["logprobs"])
            np.testing.assert_array_equal(a[0]["input_ids"], first["input_ids"])
            [only] = await samples.get_samples(["a_g1"], select_fields=["advantage", "blob"])
            assert {"advantage": 0.5, "blob": a[1]["blob"]} == only
        await trainer.commit_step(0)
    assert [] == await runs.payload_keys()


async def test_writing_again_replaces_and_writing_one_row_leaves_the_others(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_mixed(store, "a", 1)
        await trainer.buffer.claim_for_training(["a"])
        put = trainer.samples.put_samples
        await put(["a_g0"], fields={"x": [1]})
        await put(["a_g0"], fields={"x": [2], "y": [3]})
        first, second = await store.samples.get_samples(["a_g0", "a_g1"])
        assert (2, 3) == (first["x"], first["y"])
        assert "x" not in second
        [row] = await store.samples.get_samples(["a_g0"], select_fields=["x"])
        assert {"x": 2} == row


async def test_a_column_written_for_one_row_is_the_committed_one_in_the_others(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        a = await commit_mixed(store, "a", 1)
        await trainer.buffer.claim_for_training(["a"])
        await trainer.samples.put_samples(["a_g0"], fields={"logprobs": [np.zeros(2)]})
        first, second = await store.samples.get_samples(
            ["a_g0", "a_g1"], select_fields=["logprobs"]
        )
        np.testing.assert_array_equal(np.zeros(2), first["logprobs"])
        np.testing.assert_array_equal(a[1]["logprobs"], second["logprobs"])


async def test_written_columns_survive_a_transfer_and_vanish_at_a_requeue(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        second.trainer(owner="b") as other,
        store.trainer(owner="a") as trainer,
    ):
        await commit_mixed(store, "g", 1)
        await trainer.buffer.claim_for_training(["g"])
        await trainer.samples.put_samples(["g_g0"], fields={"x": [1]})
        assert 1 == await trainer.transfer_claims(to="b")
        await other.adopt_claims()
        [row] = await other.samples.get_samples(["g_g0"], select_fields=["x"])
        assert {"x": 1} == row
        await other.samples.put_samples(["g_g1"], fields={"x": [2]})
        read = await store.samples.get_samples(["g_g0", "g_g1"], select_fields=["x"])
        assert [{"x": 1}, {"x": 2}] == read
        await other.requeue()
        with pytest.raises(ValueError, match="x"):
            await store.samples.get_samples(["g_g0"], select_fields=["x"])
        await other.buffer.claim_for_training(["g"])
        [row] = await store.samples.get_samples(["g_g0"])
        assert "x" not in row


async def test_written_columns_end_with_a_writer_that_died(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="job") as older:
        await commit_mixed(store, "a", 1)
        await older.buffer.claim_for_training(["a"])
        await older.samples.put_samples(["a_g0"], fields={"x": [1]})
        async with other.trainer(owner="job"):
            await other.collect_garbage()
            assert 1 == len(await runs.payload_keys())
            [row] = await other.samples.get_samples(["a_g0"])
            assert "x" not in row


@pytest.mark.parametrize("state", ["absent", "reserved", "ready", "foreign"])
async def test_only_rows_that_are_held_claimed_are_written(runs: Runs, state: str) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        store.trainer(owner="a") as trainer,
        second.trainer(owner="b") as other,
    ):
        await commit_ready(store, 0, group_id="good")
        await trainer.buffer.claim_for_training(["good"])
        if state == "reserved":
            await trainer.buffer.reserve(0, group_id="bad")
        elif state != "absent":
            await commit_ready(store, 0, group_id="bad")
        if state == "foreign":
            await other.buffer.claim_for_training(["bad"])
        errors = {"absent": UnknownGroup, "foreign": ClaimMismatch}
        async with nothing_changed(runs):
            with pytest.raises(errors.get(state, WrongState)):
                await trainer.samples.put_samples(["good_g0", "bad_g0"], fields={"x": [1, 2]})


async def test_values_that_cannot_be_written_leave_nothing(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_mixed(store, "a", 1)
        await trainer.buffer.claim_for_training(["a"])
        put = trainer.samples.put_samples
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=r"'x' has 1 values for 2 samples"):
                await put(["a_g0", "a_g1"], fields={"x": [1]})
            with pytest.raises(ValueError, match=r"'tags' has 1 values for 2 samples"):
                await put(["a_g0", "a_g1"], fields={}, tags=[{}])
            with pytest.raises(TypeError, match=r"a_g1\.x"):
                await put(["a_g0", "a_g1"], fields={"x": [1, object()]})  # type: ignore[list-item]
            await put([], fields={})


async def test_a_replaced_trainer_writes_nowhere(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="job") as older:
        await commit_mixed(store, "a", 1)
        await older.buffer.claim_for_training(["a"])
        async with other.trainer(owner="job") as newer:
            await newer.buffer.claim_for_training(["a"])
            async with nothing_changed(runs):
                with pytest.raises(StaleOwner):
                    await older.samples.put_samples(["a_g0"], fields={"x": [1]})


async def test_samples_are_listed_in_buffer_order_once_they_have_rows(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="in flight")
        await commit_mixed(store, "b", 1)
        await commit_mixed(store, "a", 2)
        await store.buffer.claim_for_training(["b"])
        assert ["b_g0", "b_g1", "a_g0", "a_g1"] == await store.samples.list_sample_ids()


async def test_samples_are_cleared_by_whole_groups_only(runs: Runs) -> None:
    async with runs.open() as store:
        for name in ("a", "b", "claimed"):
            await commit_mixed(store, name, 1)
        await store.buffer.claim_for_training(["claimed"])
        clear = store.samples.clear_samples
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=r"'a' has rows 0 to 1, and rows \[1\]"):
                await clear(["b_g0", "b_g1", "a_g1"])
            with pytest.raises(ValueError, match="rows 0 to 1"):
                await clear(["a_g0", "a_g1", "a_g2"])
            with pytest.raises(WrongState):
                await clear(["a_g0", "a_g1", "claimed_g0", "claimed_g1"])
            with pytest.raises(UnknownGroup):
                await clear(["a_g0", "a_g1", "ghost_g0", "ghost_g1"])
        assert 2 == await clear(["a_g0", "b_g1", "a_g1", "b_g0"])
        assert {"removed:cleared": 2} == (await store.stats()).ends
        assert 1 == len(await runs.payload_keys())


@pytest.mark.parametrize("options", [{"decode_responses": True}, {"encoding": "latin-1"}])
async def test_a_clients_text_settings_never_touch_binary_rows(
    runs: Runs, options: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if isinstance(runs.client, fakeredis.FakeAsyncRedis):
        server = runs.client.connection_pool.connection_kwargs["server"]
        theirs: Any = fakeredis.FakeAsyncRedis(server=server, **options)
    else:
        theirs = redis.asyncio.Redis.from_url(request.getfixturevalue("real_server"), **options)
    opened = redis_replay.open_store(
        client=theirs, run=runs.name, capacity=CAPACITY, group_size=GROUP_SIZE
    )
    async with opened as store:
        written = await commit_mixed(store, "\N{GREEK SMALL LETTER PI}", 1)
        meta = await store.buffer.claim_for_training(["\N{GREEK SMALL LETTER PI}"])
        for expected, actual in zip(written, await store.samples.get_samples(meta), strict=True):
            assert_same_row(expected, actual)
    await theirs.aclose()


async def test_an_empty_list_of_samples_clears_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        await commit_mixed(store, "a", 1)
        await attached(store)
        async with nothing_changed(runs):
            assert 0 == await store.samples.clear_samples([])
