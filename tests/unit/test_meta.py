"""A batch's metadata lines up, and no two metas share a list."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from redis_replay.meta import KVBatchMeta


def meta_of(*sample_ids: str, **changes: Any) -> KVBatchMeta:
    content: dict[str, Any] = {
        "partition_id": "rollout_data",
        "task_name": "train",
        "sample_ids": list(sample_ids),
        "fields": ["input_ids", "reward"],
        "sequence_lengths": [len(sample_id) for sample_id in sample_ids],
        "extra_info": {"step": 3, "nested": {"list": [1]}},
        "tags": [{"id": sample_id, "list": [0]} for sample_id in sample_ids],
    }
    return KVBatchMeta(**{**content, **changes})


def bare(*sample_ids: str) -> KVBatchMeta:
    return KVBatchMeta("rollout_data", None, list(sample_ids))


def test_only_partition_task_and_ids_are_required() -> None:
    meta = bare("a")
    assert (1, None, None, {}, None) == (
        meta.size, meta.fields, meta.sequence_lengths, meta.extra_info, meta.tags,
    )  # fmt: skip


MISALIGNED: list[tuple[dict[str, Any], str]] = [
    ({"tags": [{}]}, r"tags \(1\) must align 1:1 with sample_ids \(2\)"),
    ({"tags": []}, r"tags \(0\) must align"),
    ({"sequence_lengths": [1, 2, 3]}, r"sequence_lengths \(3\) must align"),
    ({"sample_ids": ["a", "a"]}, "sample_ids must be unique, but 'a' stands 2 times"),
    ({"fields": ["x", "y", "x"]}, "fields must be unique, but 'x' stands 2 times"),
]


@pytest.mark.parametrize(("changes", "message"), MISALIGNED)
def test_what_does_not_line_up_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        meta_of("a", "bb", **changes)


@pytest.mark.parametrize("name", ["sample_ids", "fields"])
def test_one_string_is_not_several(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is one string"):
        meta_of("a", "bb", **{name: "ab"})


def test_a_meta_is_frozen() -> None:
    meta: Any = meta_of("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        meta.partition_id = "other"


def test_a_subset_follows_its_indices() -> None:
    assert meta_of("ccc", "a") == meta_of("a", "bb", "ccc").subset([2, 0])
    assert meta_of("ccc") == meta_of("a", "bb", "ccc").subset(indices=[-1])
    assert meta_of() == meta_of("a").subset([])


def test_a_subset_of_a_row_that_is_not_there_is_refused() -> None:
    with pytest.raises(IndexError):
        meta_of("a").subset([1])
    with pytest.raises(ValueError, match="unique"):
        meta_of("a").subset([0, 0])


def test_a_slice_is_half_open() -> None:
    meta = meta_of("a", "bb", "ccc")
    assert meta_of("bb", "ccc") == meta.slice(1, 3)
    assert meta_of("a") == meta.slice(start=0, stop=1)
    assert meta_of() == meta.slice(2, 2)


def test_concat_keeps_the_order_of_its_parts() -> None:
    assert meta_of("a", "bb", "ccc") == meta_of("a").concat(meta_of("bb"), meta_of("ccc"))
    assert bare("a", "b") == bare("a").concat(bare("b"))
    assert meta_of("a") == meta_of("a").concat()


def test_concat_keeps_this_meta_s_extra_info_and_order_of_fields() -> None:
    other = meta_of("bb", extra_info={"step": 4}, fields=["reward", "input_ids"])
    assert meta_of("a", "bb") == meta_of("a").concat(other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partition_id": "other"}, "partition_id must match, .*'rollout_data' and 'other'"),
        ({"task_name": None}, "task_name must match, .*'train' and None"),
        ({"fields": ["reward"]}, "fields must match"),
        ({"fields": None}, "fields must match"),
        ({"sequence_lengths": None}, "all metas have sequence_lengths or none, .*the first has"),
        ({"tags": None}, "all metas have tags or none, .*the first has"),
        ({"sample_ids": ["a"]}, "unique, but 'a'"),
    ],
)
def test_concat_refuses_what_does_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        meta_of("a").concat(meta_of("b", **changes))


def test_concat_refuses_lengths_on_a_later_part_only() -> None:
    with pytest.raises(ValueError, match="only a later one has"):
        meta_of("a", sequence_lengths=None).concat(meta_of("b"))


def test_drop_takes_positions_or_sample_ids() -> None:
    meta = meta_of("a", "bb", "ccc")
    assert meta_of("a", "ccc") == meta.drop([1]) == meta.drop(["bb"]) == meta.drop(indices=[-2])
    assert meta == meta.drop([])


def test_drop_of_all_rows_leaves_nothing() -> None:
    assert meta_of("a", "bb").drop(["bb", "a"]) is None


def test_drop_of_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no sample 'z'"):
        meta_of("a").drop(["a", "z"])
    with pytest.raises(IndexError):
        meta_of("a").drop([1])


def test_with_fields_adds_each_once() -> None:
    expected = ["input_ids", "reward", "advantages"]
    assert expected == meta_of("a").with_fields(["reward", "advantages"]).fields
    assert ["x"] == bare("a").with_fields(field_names=("x", "x")).fields
    with pytest.raises(TypeError, match="one string"):
        bare("a").with_fields("advantages")


def test_stamped_tags_are_added_by_column_or_by_row() -> None:
    meta = meta_of("a", "b", tags=[{"x": 1}, {"x": 2}])
    expected = [{"x": 1, "y": 5}, {"x": 2, "y": 6}]
    assert expected == meta.stamp_tags({"y": [5, 6]}).tags
    assert expected == meta.stamp_tags([{"y": 5}, {"y": 6}]).tags
    assert [{"x": 1, "y": 0.5}, {"x": 2, "y": 0.5}] == meta.stamp_tags({"y": np.full(2, 0.5)}).tags
    assert [{"y": 5}] == bare("a").stamp_tags(scalars={"y": [5]}).tags
    assert [{"x": 1}, {"x": 2}] == meta.tags


@pytest.mark.parametrize("scalars", [{"y": [1]}, {"y": [1, 2, 3]}, [{"y": 1}], []])
def test_stamped_tags_must_line_up(scalars: Any) -> None:
    with pytest.raises(ValueError, match="values for 2 samples"):
        meta_of("a", "b").stamp_tags(scalars)


METHODS: dict[str, Callable[[KVBatchMeta], Any]] = {
    "subset": lambda meta: meta.subset([0, 1]),
    "slice": lambda meta: meta.slice(0, 2),
    "concat": lambda meta: meta.concat(),
    "concat as the other": lambda meta: meta_of("x").concat(meta),
    "drop": lambda meta: meta.drop([0]),
    "with_fields": lambda meta: meta.with_fields(["more"]),
    "stamp_tags": lambda meta: meta.stamp_tags({"more": [[1], [2]]}),
}


@pytest.mark.parametrize("method", METHODS)
def test_a_new_meta_shares_nothing_with_the_old(method: str) -> None:
    meta = meta_of("a", "bb")
    before = copy.deepcopy(meta)
    new = METHODS[method](meta)
    new.extra_info["nested"]["list"].append(2)
    new.extra_info["more"] = 1
    for tag in new.tags:
        tag["list"].append(1)
        tag["more"] = 1
    for column in (new.sample_ids, new.fields, new.sequence_lengths, new.tags):
        column.clear()
    assert before == meta


def test_stamped_values_are_not_shared_with_the_caller() -> None:
    shared = [1]
    meta = bare("a").stamp_tags([{"list": shared}])
    shared.append(2)
    assert [{"list": [1]}] == meta.tags
