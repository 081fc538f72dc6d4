"""What the rows of a group must be, before any of them becomes bytes.

The rows of a group are one mapping of fields per sample. A field is stored as a column; a row may
lack a field that others have, and reads back without it, which is not the same as ``None``. Two
fields mean something to the store and are read here: how long a row is, and what it earned.

Most groups are dictionaries of the same fields with cells of one type each. What can be said of
such a column at once is not asked of its cells one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np

from redis_replay.codec import Value
from redis_replay.directory import MAX_FIELD_NAME_BYTES, MAX_ROWS
from redis_replay.layout import absent_rows
from redis_replay.rewards import are_finite_floats, reward_as_float

_MEASURED_BY_LEN: Final = frozenset({list, tuple, np.ndarray})

Rows = Sequence[Mapping[str, Value]]


@dataclass(slots=True)
class FieldCells:
    """The cells of one field, and what to call them in errors.

    Attributes:
        cells: One per row that has the field.
        present: Numbers of those rows, upwards.
        row_count: Rows of the group.
        types: Of the cells.
    """

    group_id: str
    name: str
    cells: list[Any]
    present: Sequence[int]
    row_count: int
    types: Set[type]

    @property
    def is_complete(self) -> bool:
        """Whether all rows have the field."""
        return len(self.present) == self.row_count

    def path(self, at: int) -> str:
        """Return what to call a cell."""
        return f"group {self.group_id!r}, row {self.present[at]}: {self.name}"


def cells_by_field(group_id: str, *, rows: Rows) -> dict[str, FieldCells]:
    """Return the cells of all fields, in the order in which the rows first name them.

    Raises:
        ValueError: No rows or too many, no fields, or a name that is empty, too long or no valid
            text.
        TypeError: A row is no mapping, or a name no text.
    """
    row_count = len(rows)
    if not 1 <= row_count <= MAX_ROWS:
        raise ValueError(f"group {group_id!r}: {row_count} rows, but 1 to {MAX_ROWS} can be stored")
    columns = _complete_columns(rows)
    if columns is None:
        return _ragged_columns(group_id, rows)
    _check_field_names(group_id, tuple(columns))
    everybody = range(row_count)
    return {
        name: FieldCells(group_id, name, cells, everybody, row_count, set(map(type, cells)))
        for name, cells in columns.items()
    }


def _complete_columns(rows: Rows) -> dict[str, list[Value]] | None:
    """Return the cells of dictionaries that all have the same fields, ``None`` for other rows."""
    if set(map(type, rows)) != {dict} or len(set(map(len, rows))) > 1:
        return None
    try:
        return {name: list(map(operator.itemgetter(name), rows)) for name in rows[0]}
    except KeyError:  # as many fields, but other ones
        return None


def _ragged_columns(group_id: str, rows: Rows) -> dict[str, FieldCells]:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"group {group_id!r}, row {index}: a mapping of fields was expected, got "
                f"{type(row).__qualname__}"
            )
    names = tuple(dict.fromkeys(chain.from_iterable(rows)))
    _check_field_names(group_id, names)
    columns: dict[str, FieldCells] = {}
    for name in names:
        present = [at for at, row in enumerate(rows) if name in row]
        cells = [rows[at][name] for at in present]
        types = set(map(type, cells))
        columns[name] = FieldCells(group_id, name, cells, present, len(rows), types)
    return columns


def row_lengths(group_id: str, *, rows: Rows, cells: Mapping[str, FieldCells]) -> tuple[int, ...]:
    """Return the sequence length of each row.

    That is ``length`` if it is an integer (Python, NumPy, or a zero-dimensional array), else the
    length of ``input_ids`` along its first axis, else 0.

    Raises:
        ValueError: A length is negative; names group and row.
    """
    return _lengths_at_once(cells, row_count=len(rows)) or tuple(
        _row_length(group_id, index, row) for index, row in enumerate(rows)
    )


def _lengths_at_once(cells: Mapping[str, FieldCells], *, row_count: int) -> tuple[int, ...] | None:
    """Return the lengths where all rows give theirs in the same usual way."""
    given, input_ids = cells.get("length"), cells.get("input_ids")
    if given is not None:
        is_usual = given.is_complete and given.types == {int} and min(given.cells) >= 0
        return tuple(given.cells) if is_usual else None
    if input_ids is None:
        return (0,) * row_count
    if not (input_ids.is_complete and input_ids.types <= _MEASURED_BY_LEN):
        return None
    try:
        return tuple(map(len, input_ids.cells))
    except TypeError:  # an array without axes
        return None


def row_rewards(cells: Mapping[str, FieldCells]) -> tuple[float, ...] | None:
    """Return the reward of each row as a plain float, ``None`` if the rows have no ``reward``.

    Raises:
        ValueError: NaN, infinite, or not exact as a float64, or only some rows have one; names
            group and row.
        TypeError: Not one number. Shapes ``(1,)`` and ``(n, 1)`` are refused like any other array:
            one value must never be spread over rows, nor rows folded into one value.
    """
    rewards = cells.get("reward")
    if rewards is None:
        return None
    if not rewards.is_complete:
        without = min(absent_rows(rewards.present, rewards.row_count))
        raise ValueError(
            f"group {rewards.group_id!r}, row {without}: reward is missing, and other rows have "
            "one; reward all rows of a group or none"
        )
    if are_finite_floats(rewards.cells):
        return tuple(rewards.cells)
    return tuple(
        reward_as_float(cell, where=rewards.path(at)) for at, cell in enumerate(rewards.cells)
    )


def _check_field_names(group_id: str, names: tuple[Any, ...]) -> None:
    if not names:
        raise ValueError(f"group {group_id!r}: the rows have no fields")
    try:
        _require_names(names)
    except (TypeError, ValueError) as fault:
        raise type(fault)(f"group {group_id!r}: {fault}") from None


@lru_cache(maxsize=64)
def _require_names(names: tuple[Any, ...]) -> None:
    """Refuse names that fields cannot have. Only names that were accepted are remembered."""
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"the field name {name!r} is not text")
        try:
            name_bytes = len(name.encode())
        except UnicodeEncodeError:
            raise ValueError(f"the field name {name!r} is not valid text") from None
        if not 1 <= name_bytes <= MAX_FIELD_NAME_BYTES:
            raise ValueError(
                f"the field name {name!r} has {name_bytes} bytes, but 1 to "
                f"{MAX_FIELD_NAME_BYTES} are possible"
            )


def _row_length(group_id: str, index: int, row: Mapping[str, Value]) -> int:
    length = _as_integer(row.get("length"))
    if length is not None:
        if length < 0:
            raise ValueError(f"group {group_id!r}, row {index}: length {length} is negative")
        return length
    input_ids = row.get("input_ids")
    if isinstance(input_ids, (list, tuple)):
        return len(input_ids)
    shape = getattr(input_ids, "shape", ())
    return int(shape[0]) if shape else 0


def _as_integer(value: Any) -> int | None:
    """Return an integer or a zero-dimensional array of one, ``None`` for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
