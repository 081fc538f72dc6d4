"""Turn whatever a reward function returned into plain floats, or say what is wrong with it.

The one place that decides what a reward is: the pure functions of `dynamic_sampling`, the row
check at the commit and the reward tally all go through it, so they cannot disagree.

Accepted are ``bool``, ``int``, ``float`` and zero-dimensional NumPy, Torch or JAX scalars. The last
are known by a ``shape`` of ``()`` and an ``item()``, so none of those libraries is imported. Never
accepted: text, mappings, sequences, arrays of shape ``(1,)`` (one value must not be broadcast or
squeezed by accident), NaN, infinities, and integers that no float64 holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, Protocol, cast


class ScalarArray(Protocol):
    """A zero-dimensional array of another library, for annotations only."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes; ``()`` for a scalar."""
        ...

    def item(self) -> object:
        """Return the value as a plain Python number."""
        ...


RewardScalar = float | ScalarArray
"""What a reward may be; ``bool`` and ``int`` are floats to a type checker."""

_TIME_KINDS: Final = ("m", "M")  # NumPy spans and dates: item() gives an int for some units of them


def reward_as_float(value: object, *, where: str) -> float:
    """Return one reward as the float64 it stands for, bit for bit.

    Args:
        value: A number of one of the accepted kinds.
        where: What to call it in an error, for example ``"group g7, row 2: reward"``.

    Raises:
        TypeError: Not one number; the message names the type.
        ValueError: NaN, infinite, or an integer that a float64 would round.
    """
    number = _plain_number(value)
    if number is None:
        raise TypeError(
            f"{where} must be one number (bool, int, float, or a zero-dimensional NumPy or Torch "
            f"scalar), got {_described(value)}"
        )
    try:
        result = float(number)
    except OverflowError:
        raise ValueError(f"{where} is an integer beyond the range of a float64") from None
    if not math.isfinite(result):
        raise ValueError(f"{where} is {result!r}, but it must be finite")
    if result != number:
        raise ValueError(f"{where} is {number!r}, which a float64 would round to {result!r}")
    return result


def rewards_as_floats(rewards: Iterable[object], *, where: str = "reward") -> list[float]:
    """Return the rewards of one group as floats, in their order.

    Args:
        rewards: One number per sample; any ordered iterable, one-dimensional arrays included.
        where: What to call them in an error; the position is added to it.

    Raises:
        TypeError: ``rewards`` has no order or is text, or an element is not one number.
        ValueError: An element is NaN, infinite or not exact; the message names its position.
    """
    if isinstance(rewards, (Mapping, Set, str, bytes, bytearray)):
        given = _described(cast(object, rewards))
        raise TypeError(f"{where}s must be a sequence of numbers, got {given}")
    values: list[Any] = list(rewards)
    if are_finite_floats(values):
        return values
    return [
        reward_as_float(value, where=f"{where} {position}") for position, value in enumerate(values)
    ]


def are_finite_floats(values: Sequence[Any]) -> bool:
    """Return whether `reward_as_float` returns every one of some values as it is, at once.

    That is, whether all are finite and of type ``float`` itself.
    """
    return set(map(type, values)) == {float} and all(map(math.isfinite, values))


def sum_of_rewards(rewards: Iterable[float]) -> float:
    """Return the correctly rounded sum of finite rewards, whatever their order.

    The built-in ``sum`` rounds differently from one Python version to the next.

    Raises:
        ValueError: The rewards are too large to be summed in float64.
    """
    try:
        return math.fsum(rewards)
    except OverflowError:
        raise ValueError("the rewards are too large to be summed in float64") from None


def _plain_number(value: object) -> float | None:
    """Return ``value`` as a Python number, or ``None`` when it is not one number."""
    if isinstance(value, (float, int)):
        return value
    shape = getattr(value, "shape", None)
    item = getattr(value, "item", None)
    if not isinstance(shape, tuple) or shape != () or not callable(item):
        return None
    if getattr(getattr(value, "dtype", None), "kind", None) in _TIME_KINDS:
        return None
    number = item()
    return number if isinstance(number, (float, int)) else None


def _described(value: object) -> str:
    """Name the type, with a hint where the usual mistake is known."""
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    name = f"{module}{kind.__qualname__}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape != ():
        return f"{name} of shape {shape}: give each sample its own number"
    if isinstance(value, (list, tuple)):
        return f"{name}: give each sample its own number"
    if value is None:
        return "None: the reward was never set"
    if isinstance(value, Mapping):
        return f"{name}: choose the one entry to train on"
    if isinstance(value, (str, bytes, bytearray)):
        return f"{name}: parse it into a number first"
    return name
