"""Reads of whole batches: what is asked for, in how many exchanges, into which memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from redis_replay.errors import PayloadCorrupted
from tests.harness import GROUP_SIZE, Runs

pytestmark = pytest.mark.anyio

WIDTH = 40
KIB = 1024


def wide_rows(seed: int, *, width: int = WIDTH) -> list[dict[str, Any]]:
    """Return two rows of arrays that all groups of a seed share in shape, and a plain reward."""
    draw = np.random.default_rng(seed)
    return [
        {
            "input_ids": draw.integers(0, 9, width, dtype=np.int32),
            "logprobs": draw.random(width, dtype=np.float32),
            "mask": draw.integers(0, 2, width, dtype=np.uint8),
            "reward": float(row),
        }
        for row in range(GROUP_SIZE)
    ]


async def commit_batch(store: Any, groups: int, *, width: int = WIDTH) -> list[dict[str, Any]]:
    """Commit groups and return their rows, in buffer order."""
    written: list[dict[str, Any]] = []
    for seed in range(groups):
        made = await store.buffer.reserve(0)
        rows = wide_rows(seed, width=width)
        await store.buffer.commit(made.group_id, rows, start_weight_version=0, end_weight_version=0)
        written += rows
    return written


class Watched:
    """The payload reads of a store: how many there were, and how many bytes they asked for."""

    def __init__(self, store: Any) -> None:
        self.reads = 0
        self.asked_bytes = 0
        self._transfer = store.buffer.session.link.gateway._transfer
        self._read = self._transfer.read
        object.__setattr__(store.buffer.session.link.gateway, "_transfer", self)

    async def read(self, ranges: Any, progress: Any) -> list[int]:
        self.reads += 1
        self.asked_bytes += sum(len(one.target) for one in ranges)
        return list(await self._read(ranges, progress))

    async def run(self, commands: Any) -> Any:
        return await self._transfer.run(commands)

    async def close(self) -> None:
        await self._transfer.close()


@asynccontextmanager
async def claimed_batch(
    runs: Runs, groups: int, **options: Any
) -> AsyncIterator[tuple[Any, Any, list[dict[str, Any]]]]:
    """Open a store, commit a batch and claim it; yield its trainer, its meta and its rows."""
    async with runs.open(**options) as store, store.trainer(owner="job") as trainer:
        written = await commit_batch(store, groups)
        ids = [slot.group_id for slot in await store.buffer.slots()]
        yield trainer, await trainer.buffer.claim_for_training(ids), written


async def test_a_batch_is_read_in_one_exchange_and_no_byte_too_many(runs: Runs) -> None:
    async with claimed_batch(runs, 20) as (trainer, meta, written):
        watched = Watched(trainer)
        read = await trainer.samples.get_samples(meta, select_fields=["logprobs"])
        assert (1, 20 * GROUP_SIZE * WIDTH * 4) == (watched.reads, watched.asked_bytes)
        for expected, actual in zip(written, read, strict=True):
            assert ["logprobs"] == list(actual)
            np.testing.assert_array_equal(expected["logprobs"], actual["logprobs"])


async def test_neighbouring_columns_are_one_range_and_others_are_left_out(runs: Runs) -> None:
    async with claimed_batch(runs, 1) as (trainer, meta, written):
        watched = Watched(trainer)
        for fields in (["input_ids", "logprobs"], ["mask", "input_ids"], ["reward", "mask"]):
            for ids in (meta.sample_ids, meta.sample_ids[1:], meta.sample_ids[:1]):
                rows = written[-len(ids) :] if ids != meta.sample_ids[:1] else written[:1]
                read = await trainer.samples.get_samples(ids, select_fields=fields)
                for expected, actual in zip(rows, read, strict=True):
                    assert fields == list(actual)
                    for name in fields:
                        np.testing.assert_array_equal(expected[name], actual[name])
        row_bytes = WIDTH * (4 + 4 + 4 + 1 + 1)
        assert watched.asked_bytes < (2 + 1 + 1) * row_bytes + 12 * (16 + 9)


async def test_columns_are_read_into_the_callers_arrays(runs: Runs) -> None:
    async with claimed_batch(runs, 5) as (trainer, meta, written):
        ids = np.full((meta.size, WIDTH), -1, np.int32)
        mask = np.full((meta.size, WIDTH), 9, np.uint8)
        read = await trainer.samples.get_samples(meta, out={"input_ids": ids, "mask": mask})
        for at, (expected, actual) in enumerate(zip(written, read, strict=True)):
            np.testing.assert_array_equal(expected["input_ids"], ids[at])
            np.testing.assert_array_equal(expected["mask"], mask[at])
            np.testing.assert_array_equal(expected["logprobs"], actual["logprobs"])
            assert np.shares_memory(ids[at], actual["input_ids"])
            assert expected["reward"] == actual["reward"]


async def test_samples_in_any_order_and_part_of_a_group_fill_their_entries(runs: Runs) -> None:
    async with claimed_batch(runs, 3) as (trainer, meta, written):
        order = [5, 0, 3, 3, 1]
        ids = np.zeros((len(order), WIDTH), np.int32)
        await trainer.samples.get_samples(
            [meta.sample_ids[at] for at in order],
            select_fields=["input_ids"],
            out={"input_ids": ids},
        )
        for entry, at in zip(ids, order, strict=True):
            np.testing.assert_array_equal(written[at]["input_ids"], entry)


async def test_rows_of_different_lengths_fill_the_beginning_of_their_entries(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
        ragged = [{"x": np.arange(2, dtype="<f4")}, {"x": np.arange(5, dtype="<f4")}]
        await store.buffer.commit("g", ragged, start_weight_version=0, end_weight_version=0)
        out = np.full((2, 6), -1, "<f4")
        read = await store.samples.get_samples(["g_g0", "g_g1"], out={"x": out})
        assert [[0, 1, -1, -1, -1, -1], [0, 1, 2, 3, 4, -1]] == out.tolist()
        assert [2, 5] == [len(row["x"]) for row in read]


async def test_written_columns_are_read_into_the_callers_arrays(runs: Runs) -> None:
    async with claimed_batch(runs, 2) as (trainer, meta, written):
        values = [np.full(WIDTH, at, np.float32) for at in range(meta.size)]
        await trainer.samples.put_samples(meta.sample_ids, fields={"advantages": values})
        await trainer.samples.put_samples(
            meta.sample_ids[:1], fields={"logprobs": [np.full(WIDTH, 7, np.float32)]}
        )
        advantages, logprobs = (np.zeros((meta.size, WIDTH), np.float32) for _ in range(2))
        await trainer.samples.get_samples(
            meta,
            select_fields=["advantages", "logprobs"],
            out={"advantages": advantages, "logprobs": logprobs},
        )
        np.testing.assert_array_equal(np.stack(values), advantages)
        np.testing.assert_array_equal(np.full(WIDTH, 7), logprobs[0])
        for at in range(1, meta.size):
            np.testing.assert_array_equal(written[at]["logprobs"], logprobs[at])


async def test_of_written_columns_only_the_selected_ones_are_asked_for(runs: Runs) -> None:
    async with claimed_batch(runs, 1) as (trainer, meta, _):
        await trainer.samples.put_samples(
            meta.sample_ids, fields={"small": [1, 2], "large": [bytes(50_000), b""]}
        )
        gateway = trainer.buffer.session.link.gateway
        received: list[Any] = []
        pipeline = gateway.pipeline

        async def watched(commands: Any, **options: Any) -> list[Any]:
            received.extend(await pipeline(commands, **options))
            return received[-len(commands) :]

        gateway.pipeline = watched
        read = await trainer.samples.get_samples(meta, select_fields=["small"])
        assert [{"small": 1}, {"small": 2}] == read
        assert len(repr(received)) < 5_000
        assert [] == [
            row for row in await trainer.samples.get_samples(meta, select_fields=[]) if row
        ]


async def test_each_rank_reads_its_slice_into_its_own_array(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=2) as trainer:
        written = await commit_batch(store, 3)
        ids = [slot.group_id for slot in await store.buffer.slots()]
        await trainer.buffer.claim_for_training(ids)
        [batch] = trainer.batches
        for number in range(2):
            rank = store.trainer_rank(owner="job", epoch=trainer.epoch, rank=number)
            meta = await rank.read_slice(batch)
            out = np.zeros((meta.size, WIDTH), np.float32)
            await rank.samples.get_samples(meta, select_fields=["logprobs"], out={"logprobs": out})
            expected = [row["logprobs"] for row in written[number * 3 : number * 3 + 3]]
            np.testing.assert_array_equal(np.stack(expected), out)
            await rank.samples.put_samples(
                meta.sample_ids, fields={"advantages": [out[at] * 2 for at in range(meta.size)]}
            )
            await rank.acknowledge(batch)
        read = await trainer.samples.get_samples(
            [f"{i}_g{row}" for i in ids for row in range(GROUP_SIZE)], select_fields=["advantages"]
        )
        for expected, actual in zip(written, read, strict=True):
            np.testing.assert_array_equal(expected["logprobs"] * 2, actual["advantages"])
        await trainer.commit_step(0)


@pytest.mark.parametrize(
    ("error", "match", "out"),
    [
        (ValueError, "'logprobs'.*<f4.*<f8", {"logprobs": np.zeros((2, WIDTH))}),
        (ValueError, "'mask'.*does not fit", {"mask": np.zeros((2, WIDTH - 1), np.uint8)}),
        (ValueError, "'mask'.*2 samples", {"mask": np.zeros((1, WIDTH), np.uint8)}),
        (TypeError, "'reward'", {"reward": np.zeros(2)}),
        (TypeError, "'ghost'", {"ghost": np.zeros(2)}),
    ],
)
async def test_an_array_that_does_not_fit_is_refused_by_name(
    runs: Runs, error: type[Exception], match: str, out: dict[str, Any]
) -> None:
    async with claimed_batch(runs, 1) as (trainer, meta, _):
        with pytest.raises(error, match=match):
            await trainer.samples.get_samples(meta, out=out)


async def test_a_damaged_column_is_reported_although_it_was_received_in_place(runs: Runs) -> None:
    async with claimed_batch(runs, 1) as (trainer, meta, _):
        [key] = await runs.payload_keys()
        whole = await runs.client.get(key)
        await runs.client.set(key, whole[:-40] + bytes([whole[-40] ^ 1]) + whole[-39:])
        out = {"mask": np.zeros((meta.size, WIDTH), np.uint8)}
        with pytest.raises(PayloadCorrupted, match="checksum"):
            await trainer.samples.get_samples(meta, select_fields=["mask"], out=out)


@pytest.mark.parametrize("client", ["real"], indirect=True)
@pytest.mark.parametrize("transfer", ["plain", "channel"])
async def test_a_batch_needs_no_more_memory_than_its_own_and_a_fixed_amount(
    runs: Runs, transfer: str
) -> None:
    groups, width = 64, 8 * KIB
    async with runs.open(transfer=transfer) as store:
        await commit_batch(store, groups, width=width)
        ids = [slot.group_id for slot in await store.buffer.slots()]
        meta = await store.buffer.claim_for_training(ids)
        own_bytes = (await store.stats()).payload_bytes
        await store.samples.get_samples(meta.sample_ids[:2])
        tracemalloc.start()
        try:
            read = await store.samples.get_samples(meta)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            base, _ = tracemalloc.get_traced_memory()
            out = {"logprobs": np.zeros((meta.size, width), np.float32)}
            await store.samples.get_samples(meta, select_fields=["logprobs"], out=out)
            _, second = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert groups * GROUP_SIZE == len(read)
        assert own_bytes > 8_000 * KIB
        assert peak < 1.15 * own_bytes + 6_000 * KIB
        assert second - base < 1.05 * out["logprobs"].nbytes + 6_000 * KIB
