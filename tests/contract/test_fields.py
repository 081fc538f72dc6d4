"""Fields through a store: lacking, shared, narrowed, compressed, and read in every form."""

from __future__ import annotations

from typing import Any

import anyio
import ml_dtypes
import numpy as np
import pytest

import redis_replay
from redis_replay import FieldOptions, Replacement
from redis_replay.dynamic_sampling import Completion, PromptGroupRecord
from tests.contract.keyspace import nothing_changed, session_of
from tests.harness import Runs
from tests.identity import identity_of

pytestmark = pytest.mark.anyio

SIZE = 4
OPTIONS = {
    "ids": FieldOptions(narrow_to="int32"),
    "mask": FieldOptions(narrow_to="bits"),
    "messages": FieldOptions(compression="zstd"),
    "image": FieldOptions(compression="zstd", level=1),
}
IMAGE = np.arange(3 * 160 * 160, dtype=np.float32).reshape(3, 160, 160)


def tokens(row: int) -> dict[str, Any]:
    """Return a row with a field of every sort; odd rows have an image, even ones a score."""
    return {
        "ids": np.arange(row, row + 50),
        "mask": np.arange(50) % 2 == 0,
        "logprobs": np.full(50 - row, -0.5, ml_dtypes.bfloat16),
        "messages": [{"role": "user", "content": "long " * 300, "picture": IMAGE}],
        **({"image": IMAGE} if row % 2 else {"score": np.float32(row)}),
    }


async def commit(store: Any, group_id: str, rows: Any) -> None:
    await store.buffer.reserve(0, group_id=group_id)
    await store.buffer.commit(group_id, rows, start_weight_version=0, end_weight_version=0)


def samples_of(group_id: str) -> list[str]:
    return [f"{group_id}_g{row}" for row in range(SIZE)]


def by_field(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: identity_of(value) for name, value in row.items()} for row in rows]


@pytest.mark.parametrize("fields", [None, OPTIONS], ids=["as given", "with options"])
@pytest.mark.parametrize("arrays", ["read_only", "writable"])
async def test_rows_read_back_exactly_by_a_store_without_options(
    runs: Runs, fields: Any, arrays: Any
) -> None:
    rows = [tokens(row) for row in range(SIZE)]
    async with (
        runs.open(group_size=SIZE, fields=fields) as store,
        runs.open(group_size=SIZE) as reader,
    ):
        await commit(store, "g", rows)
        read = await reader.samples.get_samples(samples_of("g"), arrays=arrays)
        assert by_field(rows) == by_field(read)
        for wanted in ([2], [3, 0]):
            ids = [f"g_g{row}" for row in wanted]
            part = await reader.samples.get_samples(ids, arrays=arrays)
            assert by_field([rows[row] for row in wanted]) == by_field(part)
        names = ["score", "image", "ids"]
        some = await reader.samples.get_samples(samples_of("g"), select_fields=names)
        expected = [{n: row[n] for n in names if n in row} for row in rows]
        assert by_field(expected) == by_field(some)


async def test_options_make_a_group_smaller_and_shared_images_are_stored_once(runs: Runs) -> None:
    rows = [tokens(row) for row in range(SIZE)]
    sizes: list[int] = []
    for options in ({}, OPTIONS):
        async with runs.open(group_size=SIZE, fields=options) as store:
            await commit(store, f"g{len(sizes)}", rows)
            sizes.append((await store.stats()).payload_bytes - sum(sizes))
    assert sizes[1] < sizes[0] < 2 * IMAGE.nbytes + 20_000


async def test_what_is_shared_is_freed_with_its_group_and_no_other(runs: Runs) -> None:
    async with runs.open(group_size=SIZE) as store:
        for name in ("a", "b"):
            await commit(store, name, [{"image": IMAGE}] * SIZE)
        await store.buffer.remove_group("a")
        await store.collect_garbage()
        assert {"b"} == {key.split(":")[4] for key in await runs.payload_keys()}
        read = await store.samples.get_samples(samples_of("b"))
        assert by_field([{"image": IMAGE}] * SIZE) == by_field(read)


async def test_a_record_of_a_group_shares_the_images_of_its_prompt(runs: Runs) -> None:
    async with runs.open(group_size=SIZE) as store:
        prompt = {"role": "user", "content": "look", "image": IMAGE}
        completions = [
            Completion(
                message_log=[prompt, {"role": "assistant", "content": "x" * row}],
                env_extras=None,
                truncated=False,
                reward=float(row),
            )
            for row in range(SIZE)
        ]
        record = PromptGroupRecord(
            prompt_idx=1,
            prompt=prompt,
            extra_env_info={},
            metadata={},
            completions=completions,
            rollout_metrics={},
        )
        await commit(store, "g", record)
        assert (await store.stats()).payload_bytes < IMAGE.nbytes + 2000
        for row in await store.samples.get_samples(samples_of("g"), select_fields=["message_log"]):
            assert identity_of(IMAGE) == identity_of(row["message_log"][0]["image"])


async def test_a_value_that_does_not_fit_is_refused_with_nothing_written(runs: Runs) -> None:
    rows: list[dict[str, Any]] = [{"ids": np.array([1, 2])} for _ in range(SIZE)]
    rows[2] = {"ids": np.array([1, 2**31])}
    async with runs.open(group_size=SIZE, fields=OPTIONS) as store:
        await store.buffer.reserve(0, group_id="g")
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=r"'g', row 2: ids\[1\] is 2147483648, .* int32"):
                await store.buffer.commit("g", rows, start_weight_version=0, end_weight_version=0)
        rows[2] = {"ids": np.array([1, 2])}
        await store.buffer.commit("g", rows, start_weight_version=0, end_weight_version=0)


async def test_a_filtered_commit_stores_its_fields_with_the_same_options(runs: Runs) -> None:
    options = {"message_log": FieldOptions(compression="zstd")}
    async with (
        runs.open(group_size=2, fields=options) as store,
        store.rollout(owner="host") as host,
    ):
        completions = [
            Completion([{"role": "user", "content": "x" * 50_000}], None, False, float(row))
            for row in range(2)
        ]
        record = PromptGroupRecord(1, {}, {}, {}, completions, {})
        await host.buffer.reserve(0, group_id="g")
        outcome = await host.filter().commit(
            "g",
            record,
            start_weight_version=0,
            end_weight_version=0,
            replacement=Replacement(weight_version=0),
        )
        assert outcome.kept
        assert (await store.stats()).payload_bytes < 1000


@pytest.mark.parametrize("bad", [{"ids": {"narrow_to": "int32"}}, {"ids": None}])
def test_options_that_are_none_are_refused_by_name(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"fields\['ids'\] must be FieldOptions"):
        redis_replay.open_store("redis://nowhere", run="r", fields=bad)


# --- memory that belongs to somebody else ----------------------------------------------------


async def test_a_caller_that_reuses_its_memory_changes_nothing_that_is_stored(runs: Runs) -> None:
    buffer, facts = np.zeros(4), {"step": 0}
    async with runs.open(group_size=1) as store:
        for step in range(3):
            buffer[:] = step
            facts["step"] = step
            await store.buffer.reserve(0, group_id=f"g{step}")
            await store.buffer.commit(
                f"g{step}",
                [{"x": buffer, "facts": facts}],
                start_weight_version=0,
                end_weight_version=0,
                tags=[facts],
                rollout_metrics=facts,
            )
        buffer[:] = 9
        facts["step"] = 9
        rows = await store.samples.get_samples([f"g{step}_g0" for step in range(3)])
        assert [0.0, 1.0, 2.0] == [row["x"][3] for row in rows]
        assert [0, 1, 2] == [row["facts"]["step"] for row in rows]
        meta = await store.buffer.claim_for_training(["g0", "g1", "g2"])
        assert [0, 1, 2] == [tag["step"] for tag in meta.tags or ()]
        assert [0, 1, 2] == [m["step"] for m in meta.extra_info["rollout_metrics"]]


async def test_a_commit_under_way_has_taken_its_rows_before_it_waits_for_the_server(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open(group_size=1) as store:
        await store.buffer.reserve(0, group_id="g")
        gateway, sending, go_on = session_of(store).link.gateway, anyio.Event(), anyio.Event()
        call = gateway.call

        async def held_back(*arguments: Any, **options: Any) -> Any:
            sending.set()
            await go_on.wait()
            return await call(*arguments, **options)

        monkeypatch.setattr(gateway, "call", held_back)
        buffer = np.zeros(4)
        async with anyio.create_task_group() as tasks:
            rows: list[dict[str, Any]] = [{"x": buffer, "facts": {"a": [1]}}]

            async def commit_it() -> None:
                await store.buffer.commit("g", rows, start_weight_version=0, end_weight_version=0)

            tasks.start_soon(commit_it)
            with anyio.fail_after(10):
                await sending.wait()
            buffer[:] = 7
            rows[0]["facts"]["a"].append(2)
            go_on.set()
        [row] = await store.samples.get_samples(["g_g0"])
        assert ([0.0] * 4, {"a": [1]}) == (row["x"].tolist(), row["facts"])


@pytest.mark.parametrize("select", [None, ["ids", "messages", "image"]])
async def test_writable_arrays_are_the_reader_s_own(runs: Runs, select: Any) -> None:
    rows = [tokens(row) for row in range(SIZE)]
    async with runs.open(group_size=SIZE, fields={"mask": OPTIONS["mask"]}) as store:
        await commit(store, "g", rows)
        first, second = [
            await store.samples.get_samples(
                samples_of("g"), select_fields=select, arrays="writable"
            )
            for _ in range(2)
        ]
        first[1]["ids"] += 1
        first[1]["image"] += 1
        first[1]["messages"][0]["picture"] += 1
        for row, found in [(1, second[1]), (3, second[3]), (3, first[3]), (2, first[2])]:
            names = found.keys()
            assert by_field([{n: rows[row][n] for n in names}]) == by_field([found])


async def test_an_unknown_form_is_refused_before_anything_is_read(runs: Runs) -> None:
    async with runs.open() as store:
        with pytest.raises(ValueError, match="'read_only', 'writable', 'torch'"):
            await store.samples.get_samples(["ghost_g0"], arrays="numpy")  # type: ignore[arg-type]


async def test_narrowed_compressed_and_shared_fields_are_read_into_the_caller_s_arrays(
    runs: Runs,
) -> None:
    options = {"ids": OPTIONS["ids"], "x": FieldOptions(compression="zstd")}
    rows = [
        {"ids": np.arange(6) + row, "x": np.full(6, row, "f4"), "image": IMAGE}
        for row in range(SIZE)
    ]
    async with runs.open(group_size=SIZE, fields=options) as store:
        await commit(store, "g", rows)
        out: dict[str, Any] = {
            "ids": np.zeros((SIZE, 6), np.int64),
            "x": np.zeros((SIZE, 6), np.float32),
            "image": np.zeros((SIZE, *IMAGE.shape), np.float32),
        }
        read = await store.samples.get_samples(samples_of("g"), out=out)
        assert by_field(rows) == by_field(read)
        for name, array in out.items():
            np.testing.assert_array_equal(np.stack([row[name] for row in rows]), array)


async def test_a_field_that_some_groups_lack_is_read_of_the_others(runs: Runs) -> None:
    async with runs.open(group_size=SIZE) as store:
        await commit(store, "with", [{"x": np.arange(3), "image": IMAGE} for _ in range(SIZE)])
        await commit(store, "without", [{"x": np.arange(3)} for _ in range(SIZE)])
        ids = samples_of("with") + samples_of("without")
        read = await store.samples.get_samples(ids, select_fields=["image", "x"])
        assert [["image", "x"]] * SIZE + [["x"]] * SIZE == [list(row) for row in read]
        only = await store.samples.get_samples(ids, select_fields=["image"])
        assert [["image"]] * SIZE + [[]] * SIZE == [list(row) for row in only]
        with pytest.raises(
            ValueError, match=r"the 2 groups .* 'y', 'imagee'; there are 'x', 'image'"
        ):
            await store.samples.get_samples(ids, select_fields=["x", "y", "imagee"])
        with pytest.raises(ValueError, match=r"'image'; there are 'x'"):
            await store.samples.get_samples(samples_of("without"), select_fields=["image"])


async def test_a_row_that_lacks_a_field_has_no_entry_to_be_read_into(runs: Runs) -> None:
    async with runs.open(group_size=2) as store:
        await commit(store, "g", [{"x": np.arange(3)}, {"y": 1}])
        out = {"x": np.zeros((2, 3), np.int64)}
        with pytest.raises(TypeError, match=r"'g', row 1, field 'x': .*lacks the field"):
            await store.samples.get_samples(["g_g0", "g_g1"], out=out)


async def test_columns_written_back_may_be_fields_that_some_rows_lacked(runs: Runs) -> None:
    async with runs.open(group_size=2) as store, store.trainer(owner="job") as trainer:
        await commit(store, "g", [{"x": 1}, {"x": 1, "y": 2}])
        await trainer.buffer.claim_for_training(["g"])
        await trainer.samples.put_samples(["g_g0"], fields={"y": [5]})
        for select in (None, ["y"], ["y", "x"]):
            read = await trainer.samples.get_samples(["g_g0", "g_g1"], select_fields=select)
            assert [5, 2] == [row["y"] for row in read]
