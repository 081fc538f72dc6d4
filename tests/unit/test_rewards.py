"""What counts as one reward, and what is refused with its type and place."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_replay.rewards import reward_as_float, rewards_as_floats, sum_of_rewards


class Tensor:
    """What a Torch tensor shows of itself: a shape that is a tuple subclass, and ``item()``."""

    class Size(tuple[int, ...]):
        __slots__ = ()

    def __init__(self, value: object, *shape: int) -> None:
        self.value = value
        self.shape = self.Size(shape)

    def item(self) -> object:
        return self.value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1.0),
        (False, 0.0),
        (0, 0.0),
        (-3, -3.0),
        (2**53, 2.0**53),
        (0.1, 0.1),
        (-0.0, -0.0),
        (5e-324, 5e-324),
        (1e308, 1e308),
        (np.float32(0.1), 0.10000000149011612),
        (np.float16(0.3), 0.300048828125),
        (np.float64(0.5), 0.5),
        (np.int64(2), 2.0),
        (np.uint8(255), 255.0),
        (np.bool_(True), 1.0),
        (np.array(0.5), 0.5),
        (np.array(3, dtype=np.int32), 3.0),
        (Tensor(0.30078125), 0.30078125),
        (Tensor(True), 1.0),
        (Tensor(2), 2.0),
    ],
)
def test_a_scalar_of_any_library_becomes_the_plain_float_it_stands_for(
    value: object, expected: float
) -> None:
    actual = reward_as_float(value, where="reward")

    assert float is type(actual)
    assert expected.hex() == actual.hex()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, "NoneType|None"),
        ("1.0", "str"),
        (b"1", "bytes"),
        ({"acc": 1}, "dict"),
        ([1.0], "list"),
        ((1.0,), "tuple"),
        ({1.0}, "set"),
        (1j, "complex"),
        (object(), "object"),
        (Decimal("0.5"), "decimal.Decimal"),
        (Fraction(1, 2), "fractions.Fraction"),
        (np.str_("1"), "numpy.str_"),
        (np.complex64(1), "numpy.complex64"),
        (np.timedelta64(5, "ns"), "numpy.timedelta64"),
        (np.datetime64(0, "ns"), "numpy.datetime64"),
        (np.array("1"), "numpy.ndarray"),
        (np.array([1.0]), r"numpy.ndarray of shape \(1,\)"),
        (np.ones((4, 1)), r"numpy.ndarray of shape \(4, 1\)"),
        (Tensor(1.0, 1), r"Tensor of shape \(1,\)"),
        (Tensor("1.0"), "Tensor"),
    ],
)
def test_what_is_not_one_number_is_refused_by_its_type(value: object, named: str) -> None:
    with pytest.raises(TypeError, match=rf"^row 2 must be one number .*got .*{named}"):
        reward_as_float(value, where="row 2")


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ([1.0], "got list: give each sample its own number"),
        (np.ones(1), "got numpy.ndarray of shape (1,): give each sample its own number"),
        ({"acc": 1}, "got dict: choose the one entry to train on"),
        ("1.0", "got str: parse it into a number first"),
        (None, "got None: the reward was never set"),
        (1j, "got complex"),
    ],
)
def test_a_usual_mistake_is_answered_with_what_to_do(value: object, hint: str) -> None:
    with pytest.raises(TypeError) as refused:
        reward_as_float(value, where="row 2")
    assert str(refused.value).endswith(f" {hint}")


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        np.float32("nan"),
        np.float64("inf"),
        np.array(-np.inf),
        Tensor(math.nan),
    ],
)
def test_a_reward_that_is_not_finite_is_refused_where_it_stands(value: object) -> None:
    with pytest.raises(ValueError, match=r"^row 2 is -?(nan|inf), but it must be finite$"):
        reward_as_float(value, where="row 2")


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 10**400, np.uint64(2**64 - 1)])
def test_an_integer_that_a_float_would_round_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^row 2 is .*float64"):
        reward_as_float(value, where="row 2")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_finite_float_passes_bit_for_bit(value: float) -> None:
    assert value.hex() == reward_as_float(value, where="reward").hex()


@pytest.mark.parametrize(
    "rewards", [{0: 1.0, 1: 0.0}, {0.0, 1.0}, frozenset({1.0}), "10", b"10", bytearray(b"10")]
)
def test_rewards_without_an_order_or_in_text_are_refused_whole(rewards: Any) -> None:
    with pytest.raises(TypeError, match="rewards must be a sequence of numbers"):
        rewards_as_floats(rewards)


@pytest.mark.parametrize(
    "rewards",
    [[1, 0], (1.0, False), np.array([1.0, 0.0]), iter([1, 0]), [Tensor(1.0), Tensor(0)]],
)
def test_rewards_come_from_any_ordered_iterable(rewards: Any) -> None:
    assert [1.0, 0.0] == rewards_as_floats(rewards)


def test_floats_of_a_class_of_their_own_become_plain() -> None:
    class Score(float):
        pass

    assert [float, float] == [type(r) for r in rewards_as_floats([Score(0.5), 1.0])]


def test_a_reward_among_floats_that_is_not_finite_is_named() -> None:
    with pytest.raises(ValueError, match=r"^reward 2 is nan, but it must be finite$"):
        rewards_as_floats([0.5, 1.0, math.nan])


def test_a_column_of_one_value_rows_is_never_squeezed() -> None:
    with pytest.raises(TypeError, match=r"reward 0 .*shape \(1,\)"):
        rewards_as_floats(np.ones((4, 1)))


def test_the_sum_of_rewards_does_not_depend_on_their_order() -> None:
    rewards = [0.1] * 10 + [1e16, -1e16, 0.3]

    assert {sum_of_rewards(rewards)} == {
        sum_of_rewards(order) for order in (sorted(rewards), rewards[::-1])
    }
    assert 1.0 == sum_of_rewards([0.1] * 10)
