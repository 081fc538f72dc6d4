"""Arrays of the caller: what is received in place, what is copied, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redis_replay.directory import Column, Directory, read_plan
from redis_replay.outputs import Outputs
from redis_replay.payloads import encode_group

ROWS = 4


def column_of(cells: list[Any]) -> tuple[Column, Any]:
    """Return the column that cells are stored as, and the range of bytes that is all of it."""
    encoded = encode_group("g", [{"x": cell} for cell in cells])
    directory = Directory.from_bytes(encoded.directory)
    [part] = read_plan(directory)
    return directory.columns[0], part


def outputs_for(array: Any, *rows: int) -> Outputs:
    """Return outputs for these rows of group ``g``, in this order."""
    return Outputs({"x": array}, places=[("g", row) for row in rows], fields=None)


def cells(*lengths: int) -> list[Any]:
    """Return one row of floats for each length."""
    return [np.arange(length, dtype="<f4") + row for row, length in enumerate(lengths)]


def test_equal_rows_in_order_are_received_in_place() -> None:
    array = np.zeros((ROWS + 2, 3), "<f4")
    places = [("other", 0), *(("g", row) for row in range(ROWS)), ("other", 1)]
    outputs = Outputs({"x": array}, places=places, fields=["x"])
    column, part = column_of(cells(3, 3, 3, 3))
    memory = outputs.memory_for("g", column, part)
    assert memory is not None
    memory[:] = np.ones((ROWS, 3), "<f4").tobytes()
    assert [0, 1, 1, 1, 1, 0] == [row.mean() for row in array]


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [((3, 3, 3, 3), (1, 0, 2, 3)), ((3, 3, 3, 3), (0, 1, 2, 3, 3)), ((3, 2, 3, 3), (0, 1, 2, 3))],
)
def test_rows_that_lie_otherwise_are_copied(
    lengths: tuple[int, ...], rows: tuple[int, ...]
) -> None:
    array = np.full((len(rows), 3), -1, "<f4")
    outputs = outputs_for(array, *rows)
    stored = cells(*lengths)
    column, part = column_of(stored)
    assert None is outputs.memory_for("g", column, part)
    for row in set(rows):
        found = {"x": stored[row]}
        outputs.put("g", row, found)
        np.testing.assert_array_equal(stored[row], found["x"])
        assert np.shares_memory(array, found["x"])
    for entry, row in zip(array, rows, strict=True):
        np.testing.assert_array_equal(stored[row], entry[: lengths[row]])
        assert (entry[lengths[row] :] == -1).all()


def test_scalars_and_rows_of_more_axes_fit_too() -> None:
    array = np.zeros(2, "<f8")
    outputs = outputs_for(array, 1, 0)
    for row, cell in enumerate((np.float64(1.5), np.array(2.5))):
        outputs.put("g", row, {"x": cell})
    assert [2.5, 1.5] == array.tolist()
    column, part = column_of([np.zeros((2, 3), "<i2")] * 2)
    assert None is not outputs_for(np.zeros((2, 2, 3), "<i2"), 0, 1).memory_for("g", column, part)


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (np.zeros((2, 3), "<f8"), "<f4.*<f8"),
        (np.zeros((2, 2), "<f4"), r"\(3,\).*\(2,\)"),
        (np.zeros((2, 3, 1), "<f4"), r"\(3,\).*\(3, 1\)"),
        (np.zeros(2, "<f4"), r"\(3,\).*\(\)"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_by_name(array: Any, match: str) -> None:
    outputs = outputs_for(array, 0, 1)
    stored = cells(3, 3)
    column, part = column_of(stored)
    with pytest.raises(ValueError, match=f"'g'.*'x'.*{match}"):
        outputs.memory_for("g", column, part)
    with pytest.raises(ValueError, match=f"'g', row 0.*'x'.*{match}"):
        outputs.put("g", 0, {"x": stored[0]})


def test_a_field_that_holds_no_arrays_is_refused_by_name() -> None:
    outputs = outputs_for(np.zeros(2), 0, 1)
    column, part = column_of([1.5, 2.5])
    with pytest.raises(TypeError, match=r"'g'.*'x'"):
        outputs.memory_for("g", column, part)
    with pytest.raises(TypeError, match=r"'x'.*float"):
        outputs.put("g", 0, {"x": 1.5})
    with pytest.raises(TypeError, match=r"'x'.*NoneType"):
        outputs.put("g", 0, {})


@pytest.mark.parametrize(
    ("array", "error", "match"),
    [
        ([1.0, 2.0], TypeError, "NumPy array.*list"),
        (np.float32(1), TypeError, "NumPy array.*float32"),
        (np.zeros((2, 4))[:, ::2], ValueError, "C-contiguous"),
        (np.broadcast_to(np.zeros(3), (2, 3)), ValueError, "writable"),
        (np.zeros((3, 3)), ValueError, "2 samples"),
        (np.zeros(()), ValueError, "2 samples"),
    ],
)
def test_an_array_that_cannot_be_filled_is_refused(
    array: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=f"'x'.*{match}"):
        outputs_for(array, 0, 1)


def test_an_array_for_a_field_that_is_not_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'x'.*\['y'\]"):
        Outputs({"x": np.zeros(1)}, places=[("g", 0)], fields=["y"])
