"""What the rows of a group must be, before any of them becomes bytes.

The rows of a group are one mapping of fields per sample. A field is stored as a column; a row may
lack a field that others have, and reads back without it, which is not the same as ``None``. Two
fields mean something to the store and are read here: how long a row is, and what it earned.

Most groups are dictionaries of the same fields, with lengths and rewards that are plain numbers.
What can be said of such a column at once is not asked of its cells one by one.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final

import numpy as np

from redis_replay.codec import Value
from redis_replay.directory import MAX_FIELD_NAME_BYTES, MAX_ROWS
from redis_replay.layout import absent_rows
from redis_replay.rewards import are_finite_floats, reward_as_float

_LONGEST: Final = 2**64 - 1
_MEASURED_BY_LEN: Final = frozenset({list, tuple, np.ndarray})

Rows = Sequence[Mapping[str, Value]]


@dataclass(slots=True)
class FieldCells:
    """The cells of one field, and what to call them in errors.

    Attributes:
        cells: One per row that has the field.
        present: Numbers of those rows, upwards.
        row_count: Rows of the group.
    """

    group_id: str
    name: str
    cells: list[Any]
    present: Sequence[int]
    row_count: int

    @property
    def is_complete(self) -> bool:
        """Whether all rows have the field."""
        return len(self.present) == self.row_count

    def path(self, at: int) -> str:
        """Return what to call a cell."""
        return f"group {self.group_id!r}, row {self.present[at]}: {self.name}"


@dataclass(slots=True)
class GroupCells:
    """The cells of a group.

    Attributes:
        row_count: Its rows.
        columns: Of each field the cells of the rows that have it, in the order of the fields.
        present: Numbers of the rows that have a field, upwards, where some lack it.
    """

    group_id: str
    row_count: int
    columns: dict[str, list[Any]]
    present: dict[str, list[int]]

    def of(self, name: str) -> FieldCells:
        """Return the cells of a field."""
        present = self.present.get(name, range(self.row_count))
        return FieldCells(self.group_id, name, self.columns[name], present, self.row_count)

    def complete(self, name: str) -> list[Any] | None:
        """Return the cells of a field that all rows have, else ``None``."""
        return None if name in self.present else self.columns.get(name)


def cells_of_rows(group_id: str, *, rows: Rows) -> GroupCells:
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
        return _ragged_cells(group_id, rows)
    _check_field_names(group_id, tuple(columns))
    return GroupCells(group_id, row_count, columns, {})


def _complete_columns(rows: Rows) -> dict[str, list[Value]] | None:
    """Return the cells of dictionaries that all have the same fields, ``None`` for other rows."""
    if set(map(type, rows)) != {dict} or len(set(map(len, rows))) > 1:
        return None
    try:
        return {name: list(map(operator.itemgetter(name), rows)) for name in rows[0]}
    except KeyError:  # as many fields, but other ones
        return None


def _ragged_cells(group_id: str, rows: Rows) -> GroupCells:
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"group {group_id!r}, row {index}: a mapping of fields was expected, got "
                f"{type(row).__qualname__}"
            )
    names = tuple(dict.fromkeys(chain.from_iterable(rows)))
    _check_field_names(group_id, names)
    ragged = GroupCells(group_id, len(rows), {}, {})
    for name in names:
        present = [at for at, row in enumerate(rows) if name in row]
        ragged.columns[name] = [rows[at][name] for at in present]
        if len(present) < len(rows):
            ragged.present[name] = present
    return ragged


def row_lengths(rows: Rows, *, cells: GroupCells) -> tuple[int, ...]:
    """Return the sequence length of each row.

    That is ``length`` if it is an integer (Python, NumPy, or a zero-dimensional array), else the
    length of ``input_ids`` along its first axis, else 0.

    Raises:
        ValueError: A length is negative, or no 64 bits hold it; names group and row.
    """
    return _lengths_at_once(cells) or tuple(
        _row_length(cells.group_id, index, row) for index, row in enumerate(rows)
    )


def _lengths_at_once(cells: GroupCells) -> tuple[int, ...] | None:
    """Return the lengths where all rows give theirs in the same usual way."""
    if "length" in cells.columns:
        lengths = cells.complete("length")
        if lengths is None or set(map(type, lengths)) != {int}:
            return None
        return tuple(lengths) if 0 <= min(lengths) and max(lengths) <= _LONGEST else None
    if "input_ids" not in cells.columns:
        return (0,) * cells.row_count
    input_ids = cells.complete("input_ids")
    if input_ids is None or not _MEASURED_BY_LEN.issuperset(map(type, input_ids)):
        return None
    try:
        return tuple(map(len, input_ids))
    except TypeError:  # an array without axes
        return None


def row_rewards(cells: GroupCells) -> tuple[float, ...] | None:
    """Return the reward of each row as a plain float, ``None`` if the rows have no ``reward``.

    Raises:
        ValueError: NaN, infinite, or not exact as a float64, or only some rows have one; names
            group and row.
        TypeError: Not one number. Shapes ``(1,)`` and ``(n, 1)`` are refused like any other array:
            one value must never be spread over rows, nor rows folded into one value.
    """
    rewards = cells.columns.get("reward")
    if rewards is None:
        return None
    if "reward" in cells.present:
        without = min(absent_rows(cells.present["reward"], cells.row_count))
        raise ValueError(
            f"group {cells.group_id!r}, row {without}: reward is missing, and other rows have "
            "one; reward all rows of a group or none"
        )
    if are_finite_floats(rewards):
        return tuple(rewards)
    return tuple(
        reward_as_float(reward, where=f"group {cells.group_id!r}, row {row}: reward")
        for row, reward in enumerate(rewards)
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
        if length > _LONGEST:
            raise ValueError(
                f"group {group_id!r}, row {index}: length {length} is more than {_LONGEST}, the "
                "most that is stored; give the length of the row's sequence"
            )
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
