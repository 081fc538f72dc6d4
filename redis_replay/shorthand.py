"""The layout of a group in few bytes, so that groups of one shape share one layout once it is read.

What groups of one shape have in common stands in ``layout``, packed by itself; numbers that differ
from group to group stand beside it, in ``numbers``, each of them once. ``layout`` is a name and a
form in turn, for each column::

    [name, form, name, form, ...]

A name is text, or a number of `_NAMES`. A form is a number, or a list that says more:

=======================================  =====================================================
``code``                                 from 1: kind and dtype of `_TYPES`. An array has one axis,
                                         as long as the sequence of its row
``-bytes``                               cells of so many bytes each
``[code, sizes]``                        0 is for cells
``[code, sizes, extras]``                says what is special (`extras`)
``[kind, dtype, item bytes, ...]``       in place of a code, for any other
=======================================  =====================================================

``numbers`` holds one number per row, or one for all rows, several times over: a number, a list, or
bytes, which are a list of numbers of two bytes, little-endian. The first are the lengths of the
sequences. ``sizes`` is a position in it: the lengths of the arrays' only axis, or of
the cells in bytes; or it is the shape that all rows have, or one shape per row. ``zstd`` among the
extras is such a position too. Rows that lack the field are in none of the lists.

Columns follow one another, each at a multiple of 16, so no offset is written, and no length.
Nothing in the two tables ever changes its number; what is new is appended.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import msgpack

from redis_replay.arrays import ARRAY, SCALAR, as_shape
from redis_replay.dtypes import dtype_named
from redis_replay.entries import row_bytes
from redis_replay.extras import Shapes, SpecialColumn, dense, extras_of
from redis_replay.fields import BITS
from redis_replay.layout import AS_IS, CELLS, Column, Layout, aligned, check_names, even_bounds

_NAMES: Final = (
    *("input_ids", "generation_logprobs", "token_mask", "reward", "length", "message_log"),
    *("prompt_idx", "env_extras", "truncated", "advantages", "sample_mask", "input_lengths"),
    *("prev_logprobs", "reference_policy_logprobs", "loss_multiplier", "task_name"),
    *("prompts", "responses", "attention_mask", "position_ids", "response_mask", "logprobs"),
    *("old_log_probs", "ref_log_prob", "rollout_log_probs", "prompt_ids", "completion_ids"),
)
"""Fields that training loops have, which need not be spelled in every group."""

_ITEM_BYTES: Final = {
    **{"|b1": 1, "|u1": 1, "|i1": 1, "<u2": 2, "<i2": 2, "<u4": 4, "<i4": 4, "<u8": 8, "<i8": 8},
    **{"<f2": 2, "<f4": 4, "<f8": 8, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1},
}
_TYPES: Final = (
    (CELLS, "", 0),
    *((ARRAY.name, dtype, size) for dtype, size in _ITEM_BYTES.items()),
    *((SCALAR.name, dtype, size) for dtype, size in _ITEM_BYTES.items()),
)
"""Kind, dtype and bytes of an element, by code."""

_NUMBER_OF_NAME: Final = {name: number for number, name in enumerate(_NAMES)}
_CODE_OF_TYPE: Final = {(kind, dtype): code for code, (kind, dtype, _) in enumerate(_TYPES)}

_LONGEST_CELL_IN_FORM: Final = 16
"""Longer cells are of text and the like, whose lengths would make every layout another one."""

_LONGEST_KEPT_BYTES: Final = 2048
_MOST_ROWS_KEPT: Final = 1024
_MOST_KEPT: Final = 256
_MOST_PAYLOAD_BYTES: Final = 2**53

_TWO_BYTES: Final = range(128, 65_536)
"""Where the largest of some numbers lies, two bytes for each are no more than msgpack takes."""

Numbers = list[int | bytes | tuple[int, ...]]


# --- writing ---------------------------------------------------------------------------------


class _Places:
    """Numbers that stand beside a layout, each once."""

    def __init__(self) -> None:
        self._found: dict[int | bytes | tuple[int, ...], int] = {}

    def of_all(self, value: int) -> int:
        """Return the position of a number that all rows have."""
        return self._found.setdefault(value, len(self._found))

    def of_each(self, values: Sequence[int]) -> int:
        """Return the position of numbers that rows have."""
        if values.count(values[0]) == len(values):
            return self.of_all(values[0])
        is_short = max(values) in _TWO_BYTES
        packed = struct.pack(f"<{len(values)}H", *values) if is_short else tuple(values)
        return self._found.setdefault(packed, len(self._found))

    @property
    def numbers(self) -> Numbers:
        """All numbers, in the order of their positions."""
        return list(self._found)


def shorten(columns: Sequence[Column], lengths: Sequence[int]) -> tuple[bytes, Numbers]:
    """Return the packed layout of columns, and the numbers beside it.

    Args:
        columns: Of a group, in the order of their bytes.
        lengths: Sequence length of each row.
    """
    places = _Places()
    places.of_each(lengths)
    flat: list[Any] = []
    for column in columns:
        flat.append(_NUMBER_OF_NAME.get(column.name, column.name))
        flat.append(_form_of(column, places))
    layout: bytes = msgpack.packb(flat)
    return layout, places.numbers


def _form_of(column: Column, places: _Places) -> Any:
    storage, code = column.storage, _CODE_OF_TYPE.get((column.kind, column.dtype))
    if column.kind == CELLS:
        bounds = column.bounds if storage.expanded is None else storage.expanded
        is_even = storage is AS_IS and isinstance(bounds, range)
        if is_even and bounds[1] <= _LONGEST_CELL_IN_FORM:
            return -bounds[1]
        cells = dense(column, [stop - start for start, stop in pairwise(bounds)])
        sizes: Any = places.of_each(cells)
    else:
        sizes = _sizes_of(column, places)
        if code is not None and storage is AS_IS and sizes == _sizes_of_code(column.kind):
            return code
    what = [code] if code is not None else _spelled(column)
    if storage is AS_IS:
        return [*what, sizes]
    extras = extras_of(column)
    if "zstd" in extras:
        extras["zstd"] = places.of_each(extras["zstd"])
    return [*what, sizes, extras]


def _sizes_of_code(kind: str) -> Any:
    """Return the sizes that go without saying where a code stands alone."""
    return () if kind == SCALAR.name else 0


def _sizes_of(column: Column, places: _Places) -> Any:
    [shape, *others] = column.shapes
    if not others:
        return places.of_all(shape[0]) if len(shape) == 1 else shape
    shapes = dense(column, column.shapes)
    if {1}.issuperset(map(len, shapes)):
        return places.of_each([length for (length,) in shapes])
    return shapes


def _spelled(column: Column) -> list[Any]:
    return [column.kind, column.dtype, dtype_named(column.dtype).itemsize]


# --- reading ---------------------------------------------------------------------------------


def read_layout(layout: Any, row_count: int, numbers: Any) -> Layout:
    """Return what `shorten` was given, one and the same for groups of one shape.

    Args:
        layout: As packed.
        row_count: Rows of the group.
        numbers: As written, with tuples for lists.

    Raises:
        ValueError, TypeError, LookupError, OverflowError, struct.error, msgpack.UnpackException:
            It is malformed or contradicts itself.
    """
    if type(numbers) is not tuple:
        raise TypeError("the numbers beside the layout are no list")
    if len(layout) > _LONGEST_KEPT_BYTES or row_count > _MOST_ROWS_KEPT:
        return _built(_read_columns(layout), row_count, numbers)
    if {int}.issuperset(map(type, numbers)):
        return _even_layout(layout, row_count, numbers)
    return _built(_kept_columns(layout), row_count, numbers)


class _Columns(NamedTuple):
    """Names and forms of columns, read but not yet checked against any numbers."""

    fields: tuple[str, ...]
    forms: tuple[Any, ...]


@lru_cache(maxsize=_MOST_KEPT)
def _even_layout(layout: bytes, row_count: int, numbers: tuple[int, ...]) -> Layout:
    """Return the layout of groups whose rows are all of the same lengths."""
    return _built(_kept_columns(layout), row_count, numbers, is_shared=True)


def _read_columns(layout: Any) -> _Columns:
    if type(layout) is not bytes:
        raise TypeError("the layout is not packed")
    flat: Any = msgpack.unpackb(layout, use_list=False)
    if type(flat) is not tuple or len(flat) % 2:
        raise ValueError("the layout is no list of names and forms")
    fields = tuple(map(_named, flat[::2]))
    check_names(fields)
    return _Columns(fields, flat[1::2])


_kept_columns = lru_cache(maxsize=_MOST_KEPT)(_read_columns)


def _named(name: Any) -> str:
    if type(name) is int and name >= 0:
        return _NAMES[name]
    if type(name) is not str:
        raise ValueError(f"a column is called {name!r}")
    return name


def _built(columns: _Columns, row_count: int, numbers: Any, *, is_shared: bool = False) -> Layout:
    reader = _Reader(row_count, numbers)
    built: list[Column] = []
    position = 0
    for name, form in zip(*columns, strict=True):
        column = reader.column(name, form, aligned(position))
        position = column.offset + column.length
        built.append(column)
    if position > _MOST_PAYLOAD_BYTES:
        raise ValueError(f"a payload of {position} bytes")
    return Layout(row_count, position, columns.fields, tuple(built), reader.lengths, is_shared)


class _Reader:
    """Makes columns of forms; what follows from the same sizes is made once."""

    def __init__(self, row_count: int, numbers: Any) -> None:
        self._row_count = row_count
        self._numbers = tuple(map(_checked, numbers))
        self._vectors: dict[tuple[int, int, str, int], tuple[Shapes, Sequence[int]]] = {}
        self.lengths = self._per_row(0, row_count)

    def column(self, name: str, form: Any, offset: int) -> Column:
        """Return the column of a form, which starts at this byte."""
        if type(form) is not int:
            return self._spelled_out(name, form, offset)
        if form < 0:
            bounds = even_bounds(self._row_count, -form)
            return Column(name, CELLS, "", offset, bounds[-1], (), bounds)
        if form == 0:
            raise ValueError(f"column {name!r} has cells of unknown lengths")
        kind, dtype, item_bytes = _TYPES[form]
        shapes, bounds = self._sized(kind, _sizes_of_code(kind), item_bytes, "", self._row_count)
        return Column(name, kind, dtype, offset, bounds[-1], shapes, bounds)

    def _spelled_out(self, name: str, form: Any, offset: int) -> Column:
        (kind, dtype, item_bytes), (sizes, *more) = _spelled_type(form)
        if not more:
            shapes, bounds = self._sized(kind, sizes, item_bytes, "", self._row_count)
            return Column(name, kind, dtype, offset, bounds[-1], shapes, bounds)
        [extras] = more
        if type(extras) is not dict:
            raise ValueError(f"column {name!r} says what no column can")
        special = SpecialColumn(name, kind, extras, row_count=self._row_count)
        narrowed, count = special.narrowed, len(special.present)
        if narrowed and narrowed != BITS:
            item_bytes = _ITEM_BYTES[narrowed]
        shapes, bounds = self._sized(kind, sizes, item_bytes, narrowed, count)
        stored = None
        if "zstd" in extras:
            special.check_expansion(bounds[-1])
            stored = self._per_row(extras["zstd"], count)
        return special.column(dtype, offset, shapes=shapes, bounds=bounds, stored=stored)

    def _sized(
        self, kind: str, sizes: Any, item_bytes: int, narrowed: str, count: int
    ) -> tuple[Shapes, Sequence[int]]:
        """Return shapes and bounds of ``count`` rows."""
        if kind == CELLS:
            return (), _cell_bounds(self._numbers_of(sizes, count), count)
        if type(sizes) is not int:
            return _array_bounds(_shapes_of(sizes, count), item_bytes, narrowed, count)
        key = (sizes, item_bytes, narrowed, count)
        found = self._vectors.get(key)
        if found is None:
            lengths = self._numbers_of(sizes, count)
            found = self._vectors[key] = _vector_bounds(lengths, item_bytes, narrowed, count)
        return found

    def _numbers_of(self, position: Any, count: int) -> Any:
        """Return the number of all rows, or those of so many, which stand at a position."""
        if type(position) is not int or position < 0:
            raise ValueError(f"{position!r} is no position")
        found = self._numbers[position]
        if type(found) is tuple and len(found) != count:
            raise ValueError(f"{len(found)} numbers for {count} rows")
        return found

    def _per_row(self, position: Any, count: int) -> tuple[int, ...]:
        found = self._numbers_of(position, count)
        return found if type(found) is tuple else (found,) * count


def _spelled_type(form: Any) -> tuple[tuple[str, str, int], Sequence[Any]]:
    """Return kind, dtype and bytes of an element that a form names, and the rest of it."""
    if type(form[0]) is int and form[0] >= 0:
        return _TYPES[form[0]], form[1:]
    kind, dtype, item_bytes, *rest = form
    if not type(kind) is type(dtype) is str or type(item_bytes) is not int or item_bytes < 0:
        raise ValueError("a column has a malformed kind or dtype")
    return (kind, dtype, item_bytes), rest


def _checked(number: Any) -> Any:
    """Return the number of all rows, or a tuple with one per row."""
    if type(number) is bytes:
        return struct.unpack(f"<{len(number) // 2}H", number)
    each = number if type(number) is tuple else (number,)
    if not each or not {int}.issuperset(map(type, each)) or min(each) < 0:
        raise ValueError("a number beside the layout is malformed")
    return number


def _cell_bounds(lengths: Any, count: int) -> Sequence[int]:
    shortest = min(lengths) if type(lengths) is tuple else lengths
    if shortest < 1:
        raise ValueError("a cell has a malformed length")
    if type(lengths) is int:
        return even_bounds(count, lengths)
    return tuple(accumulate(lengths, initial=0))


def _shapes_of(sizes: Any, count: int) -> Shapes:
    if not (sizes and type(sizes[0]) is tuple):
        return (as_shape(sizes),)
    shapes = tuple([as_shape(shape) for shape in sizes])
    if len(shapes) != count:
        raise ValueError(f"{len(shapes)} shapes for {count} rows")
    return shapes


def _vector_bounds(
    lengths: int | tuple[int, ...], item_bytes: int, narrowed: str, count: int
) -> tuple[Shapes, Sequence[int]]:
    """Return shapes and bounds of rows with one axis each, of these lengths or all of this."""
    if isinstance(lengths, int):
        return _array_bounds(((lengths,),), item_bytes, narrowed, count)
    shapes = tuple(zip(lengths, strict=True))
    if narrowed == BITS:
        return _array_bounds(shapes, item_bytes, narrowed, count)
    return shapes, tuple(accumulate([length * item_bytes for length in lengths], initial=0))


def _array_bounds(
    shapes: Shapes, item_bytes: int, narrowed: str, count: int
) -> tuple[Shapes, Sequence[int]]:
    lengths = [row_bytes(math.prod(shape), item_bytes, narrowed) for shape in shapes]
    if len(shapes) == 1:
        return shapes, even_bounds(count, lengths[0])
    return shapes, tuple(accumulate(lengths, initial=0))
