"""What the rows of a group must be, before any of them becomes bytes.

The rows of a group are one mapping of fields per sample. A field is stored as a column; a row may
lack a field that others have, and reads back without it, which is not the same as ``None``. Two
fields mean something to the store and are read here: how long a row is, and what it earned.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

from redis_replay.codec import Value
from redis_replay.directory import MAX_FIELD_NAME_BYTES, MAX_ROWS
from redis_replay.rewards import reward_as_float


def field_names(group_id: str, *, rows: Sequence[Mapping[str, Value]]) -> tuple[str, ...]:
    """Return the names of all fields, in the order in which the rows first name them.

    Raises:
        ValueError: No rows or too many, no fields, or a name that is empty, too long or no valid
            text.
        TypeError: A row is no mapping, or a name no text.
    """
    if not 1 <= len(rows) <= MAX_ROWS:
        raise ValueError(f"group {group_id!r}: {len(rows)} rows, but 1 to {MAX_ROWS} can be stored")
    is_uniform = True
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"group {group_id!r}, row {index}: a mapping of fields was expected, got "
                f"{type(row).__qualname__}"
            )
        is_uniform = is_uniform and row.keys() == rows[0].keys()
    names = tuple(rows[0] if is_uniform else dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise ValueError(f"group {group_id!r}: the rows have no fields")
    for name in names:
        _check_field_name(group_id, name)
    return names


def row_lengths(group_id: str, *, rows: Sequence[Mapping[str, Value]]) -> tuple[int, ...]:
    """Return the sequence length of each row.

    That is ``length`` if it is an integer (Python, NumPy, or a zero-dimensional array), else the
    length of ``input_ids`` along its first axis, else 0.

    Raises:
        ValueError: A length is negative; names group and row.
    """
    return tuple(_row_length(group_id, index, row) for index, row in enumerate(rows))


def row_rewards(group_id: str, *, rows: Sequence[Mapping[str, Value]]) -> tuple[float, ...] | None:
    """Return the reward of each row as a plain float, ``None`` if the rows have no ``reward``.

    Raises:
        ValueError: NaN, infinite, or not exact as a float64, or only some rows have one; names
            group and row.
        TypeError: Not one number. Shapes ``(1,)`` and ``(n, 1)`` are refused like any other array:
            one value must never be spread over rows, nor rows folded into one value.
    """
    without = [index for index, row in enumerate(rows) if "reward" not in row]
    if len(without) == len(rows):
        return None
    if without:
        raise ValueError(
            f"group {group_id!r}, row {without[0]}: reward is missing, and other rows have one; "
            "reward all rows of a group or none"
        )
    return tuple(
        reward_as_float(row["reward"], where=f"group {group_id!r}, row {index}: reward")
        for index, row in enumerate(rows)
    )


def _check_field_name(group_id: str, name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"group {group_id!r}: the field name {name!r} is not text")
    try:
        name_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"group {group_id!r}: the field name {name!r} is not valid text") from None
    if not 1 <= name_bytes <= MAX_FIELD_NAME_BYTES:
        raise ValueError(
            f"group {group_id!r}: the field name {name!r} has {name_bytes} bytes, but 1 to "
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
