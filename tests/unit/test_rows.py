"""What is no group is refused by its name and row; lengths and rewards are read from the rows."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from redis_replay.codec import encode_value
from redis_replay.directory import MAX_ROWS
from redis_replay.payloads import decode_group, encode_group
from redis_replay.rows import cells_of_rows, row_lengths


def round_trip(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    group = encode_group("g", rows)
    return decode_group("g", group.directory, group.payload)


BAD_ROWS: dict[str, tuple[Any, type[Exception], str]] = {
    "no rows": ([], ValueError, "'g7': 0 rows"),
    "too many rows": ([{"a": 1}] * (MAX_ROWS + 1), ValueError, "'g7': 65537 rows"),
    "no fields": ([{}], ValueError, "'g7': the rows have no fields"),
    "a bad name further down": ([{"a": 1}, {"": 1}], ValueError, "'' has 0 bytes"),
    "rewards for some": (
        [{"a": 1, "reward": 0.5}, {"reward": 0.5}, {"a": 1}],
        ValueError,
        "'g7', row 2: reward is missing",
    ),
    "empty name": ([{"": 1}], ValueError, "'' has 0 bytes"),
    "long name": ([{"π" * 129: 1}], ValueError, "has 258 bytes"),
    "broken name": ([{"\ud800": 1}], ValueError, "not valid text"),
    "name that is no text": ([{1: 1}], TypeError, "field name 1 is not text"),
    "row that is no mapping": ([{"a": 1}, [1]], TypeError, "row 1: a mapping .* list"),
    "columns instead of rows": ({"a": [1, 2]}, TypeError, "row 0: a mapping .* str"),
    "unstorable": ([{"a": 1}, {"a": [0, {3}]}], TypeError, r"'g7', row 1: a\[1\]: .*set"),
    "objects": ([{"a": np.array([None])}], TypeError, "'g7', row 0: a: arrays of dtype object"),
    "negative length": ([{"length": 1}, {"length": -1}], ValueError, "row 1: length -1"),
    "length beyond 64 bits": (
        [{"length": 2**64 - 1}, {"length": 2**64}],
        ValueError,
        "'g7', row 1: length 18446744073709551616 is more than 18446744073709551615",
    ),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_that_are_no_group_are_refused(case: str) -> None:
    rows, error, message = BAD_ROWS[case]
    with pytest.raises(error, match=message):
        encode_group("g7", rows)


def test_the_largest_group_is_accepted() -> None:
    rows = [{"x": row} for row in range(MAX_ROWS)]
    assert rows == round_trip(rows)


def test_the_longest_name_is_accepted() -> None:
    assert [{"π" * 128: 1}] == round_trip([{"π" * 128: 1}])


def test_a_name_is_refused_as_often_as_it_is_given() -> None:
    for group_id in ("g7", "g8"):
        with pytest.raises(ValueError, match=f"group '{group_id}': the field name '' has 0 bytes"):
            encode_group(group_id, [{"a": 1, "": 2}])


def test_rows_of_as_many_fields_keep_their_own() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3, "c": 4}]
    assert rows == round_trip(rows)


def test_no_row_is_asked_for_a_field_that_it_lacks() -> None:
    rows = [{"a": 1, "b": 2}, defaultdict(int, a=3, c=4)]
    assert [{"a": 1, "b": 2}, {"a": 3, "c": 4}] == round_trip(rows)
    assert ["a", "c"] == list(rows[1])


def test_rows_may_be_any_mappings() -> None:
    row = {"a": 1, "b": np.arange(3)}
    for rows in ([row, MappingProxyType(row)], [OrderedDict(row)] * 2):
        assert encode_group("g", [row, row]) == encode_group("g", rows)


class _Length(IntEnum):
    SHORT = 2


LENGTHS: dict[str, tuple[dict[str, Any], int]] = {
    "given": ({"length": 5, "input_ids": np.zeros(9)}, 5),
    "given by numpy": ({"length": np.int64(5)}, 5),
    "given as an array": ({"length": np.array(5)}, 5),
    "zero": ({"length": 0, "input_ids": np.zeros(9)}, 0),
    "no integer": ({"length": 5.0, "input_ids": np.zeros(9)}, 9),
    "a truth value": ({"length": True, "input_ids": np.zeros(9)}, 9),
    "of a class of its own": ({"length": _Length.SHORT, "input_ids": np.zeros(9)}, 2),
    "from an array": ({"input_ids": np.zeros((9, 2))}, 9),
    "from a list": ({"input_ids": [1, 2]}, 2),
    "from an empty array": ({"input_ids": np.zeros(0)}, 0),
    "from a scalar": ({"input_ids": np.array(3)}, 0),
    "from text": ({"input_ids": "abc"}, 0),
    "unknown": ({"a": 1}, 0),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_the_length_of_a_row(case: str) -> None:
    row, length = LENGTHS[case]
    assert (length, length) == lengths_of([row, row])


def test_rows_give_their_lengths_each_in_its_own_way() -> None:
    rows = [row for row, _ in LENGTHS.values()]
    assert tuple(length for _, length in LENGTHS.values()) == lengths_of(rows)


def test_a_row_without_the_field_that_gives_lengths_to_others_has_its_own() -> None:
    assert (5, 2) == lengths_of([{"length": 5}, {"input_ids": [1, 2]}])
    assert (1, 0) == lengths_of([{"input_ids": [1]}, {"a": 1}])


def lengths_of(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    return row_lengths(rows, cells=cells_of_rows("g", rows=rows))


def test_lengths_of_rows_that_ended_at_once_are_zero() -> None:
    rows = [{"input_ids": np.zeros(length, "i4")} for length in (5, 0, 9, 1)]
    assert (5, 0, 9, 1) == encode_group("g", rows).lengths


def test_rewards_are_plain_floats_and_their_cells_stay_as_given() -> None:
    given_rewards: list[Any] = [
        True,
        0,
        1,
        np.float32(0.5),
        np.float64(0.5),
        np.int64(2),
        np.array(0.25),
    ]
    group = encode_group("g", [{"reward": reward} for reward in given_rewards])
    assert (1.0, 0.0, 1.0, 0.5, 0.5, 2.0, 0.25) == group.rewards
    assert {float} == {type(reward) for reward in group.rewards or ()}
    stored = [row["reward"] for row in decode_group("g", group.directory, group.payload)]
    assert encode_value(given_rewards, "x") == encode_value(stored, "x")


@pytest.mark.parametrize("kind", [np.float64, np.float32, bool, int])
def test_rewards_of_one_kind_are_plain_floats(kind: Any) -> None:
    rewards = encode_group("g", [{"reward": kind(row)} for row in (0, 1)]).rewards or ()
    assert [(0.0, float), (1.0, float)] == [(reward, type(reward)) for reward in rewards]


def test_a_bfloat16_reward_is_the_value_it_had() -> None:
    assert (0.30078125,) == encode_group("g", [{"reward": ml_dtypes.bfloat16(0.3)}]).rewards


def test_a_group_without_rewards_has_none() -> None:
    assert encode_group("g", [{"a": 1}]).rewards is None


BAD_REWARDS: dict[str, tuple[Any, type[Exception]]] = {
    "nan": (math.nan, ValueError),
    "infinity": (-math.inf, ValueError),
    "numpy nan": (np.float32(math.nan), ValueError),
    "mapping": ({"acc": 1}, TypeError),
    "text": ("1.0", TypeError),
    "nothing": (None, TypeError),
    "list": ([1.0], TypeError),
    "shape (1,)": (np.ones(1), TypeError),
    "shape (4, 1)": (np.ones((4, 1)), TypeError),
    "complex": (np.complex64(1), TypeError),
}


@pytest.mark.parametrize("case", BAD_REWARDS)
def test_a_reward_that_is_not_one_finite_number_is_refused_by_group_and_row(case: str) -> None:
    reward, error = BAD_REWARDS[case]
    with pytest.raises(error, match="group 'g7', row 1: reward"):
        encode_group("g7", [{"reward": 0.5}, {"reward": reward}])
