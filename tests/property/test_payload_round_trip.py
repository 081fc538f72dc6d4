"""Whatever rows are given, however their fields are stored and read: they come back exactly.

Dtypes of every width, memory in every order, values nested in one another, rows that lack fields,
values that rows share; stored as given, narrowed or compressed; read whole or in parts, as views
or as the reader's own.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from redis_replay.directory import Directory, directory_checksum, read_plan
from redis_replay.errors import ConfigurationError, PayloadCorrupted, SchemaMismatch
from redis_replay.fields import FieldOptions
from redis_replay.forms import hand_out_as
from redis_replay.payloads import (
    ABSENT,
    EncodedGroup,
    decode_columns,
    decode_group,
    encode_group,
)
from redis_replay.sharing import LEAST_SHARED_BYTES
from tests.identity import identity_of

EXTENSIONS = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    *("float8_e8m0fnu", "float8_e3m4", "float6_e2m3fn", "float4_e2m1fn", "int4", "uint4"),
)
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
DTYPES = st.one_of(
    npst.scalar_dtypes(),
    npst.unicode_string_dtypes(max_len=3),
    npst.byte_string_dtypes(max_len=3),
    st.sampled_from([np.dtype(getattr(ml_dtypes, name)) for name in EXTENSIONS]),
    st.sampled_from(
        [np.dtype("V3"), np.dtype("i4,>f4"), np.dtype([("a", "u1"), ("b", "f8", (2,))])]
    ),
)
LAYOUTS = (
    lambda array: array,
    lambda array: array.T,
    lambda array: np.asfortranarray(array) if array.ndim > 1 else array,
    lambda array: array[::-1] if array.ndim else array,
    lambda array: array[..., ::2] if array.ndim else array,
    lambda array: np.broadcast_to(array, (2, *array.shape)),
)
LARGE = (
    np.arange(LEAST_SHARED_BYTES // 8),
    np.full(LEAST_SHARED_BYTES, 7, ml_dtypes.float8_e5m2).reshape(256, -1),
    bytes(range(256)) * (LEAST_SHARED_BYTES // 256),
)


@st.composite
def arrays(draw: st.DrawFn, dtype: np.dtype[Any] | None = None) -> np.ndarray[Any, Any]:
    """Return an array of any bits, in any order of memory."""
    chosen: np.dtype[Any] = draw(DTYPES) if dtype is None else dtype
    shape = draw(SHAPES)
    seed, layout = draw(st.integers(0, 2**32)), draw(st.sampled_from(LAYOUTS))
    count = math.prod(shape) * chosen.itemsize
    bits = np.random.default_rng(seed).integers(0, 256, count, np.uint8)
    if chosen.kind in "bUV":  # truth values, characters and padding are not any bits
        bits &= 1
    return layout(bits.view(chosen).reshape(shape))


SCALARS = (
    arrays()
    .filter(lambda array: array.size > 0 and array.dtype.kind not in "SU")  # text becomes plain
    .map(lambda array: array.reshape(-1)[0])
)
PLAIN = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(-(2**80), 2**80), st.floats()),
    *(st.text(st.characters(codec=None), max_size=4), st.binary(max_size=4)),
)
KEYS = st.text(max_size=3) | PLAIN | st.tuples(PLAIN, PLAIN)
VALUES = st.recursive(
    PLAIN
    | arrays()
    | SCALARS.filter(lambda s: not isinstance(s, np.character))
    | st.sampled_from(LARGE),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=6,
)
OPTIONS = st.builds(
    FieldOptions,
    narrow_to=st.sampled_from([None, "bits", "int8", "int32", "float16", "bool"]),
    compression=st.sampled_from([None, "zstd"]),
    level=st.sampled_from([1, 3]),
)


@st.composite
def columns(draw: st.DrawFn, count: int) -> list[Any]:
    """Return the cells of one field, some of which may be absent."""
    dtype = draw(DTYPES)
    cell = draw(
        st.sampled_from([arrays(dtype), arrays(dtype), VALUES, PLAIN, st.sampled_from(LARGE)])
    )
    cells = draw(st.lists(cell, min_size=count, max_size=count))
    lacking = draw(st.just(frozenset()) | st.frozensets(st.integers(0, count - 1)))
    return [ABSENT if row in lacking else value for row, value in enumerate(cells)]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[dict[str, Any]], dict[str, FieldOptions]]:
    """Return the rows of a group and how some of their fields are stored."""
    count = draw(st.integers(1, 5))
    names = draw(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3, unique=True))
    table = {
        name: draw(columns(count)) for name in names if name not in ("reward", "length", "always")
    }
    table["always"] = list(range(count))
    rows = [{n: c[row] for n, c in table.items() if c[row] is not ABSENT} for row in range(count)]
    return rows, draw(st.dictionaries(st.sampled_from(sorted(table)), OPTIONS))


def encoded(rows: list[dict[str, Any]], options: dict[str, FieldOptions]) -> EncodedGroup:
    """Encode a group; where a value does not fit what its field is narrowed to, as given."""
    try:
        return encode_group("g", rows, fields=options)
    except ValueError as refused:
        if "does not hold exactly" not in str(refused):
            raise
        return encode_group("g", rows)


def identity_by_field(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: identity_of(value) for name, value in row.items()} for row in rows]


def round_trip(group: Any, data: st.DataObject) -> None:
    rows, options = group
    written = encoded(rows, options)
    form = data.draw(st.sampled_from(["read_only", "writable"]))
    received = data.draw(st.sampled_from([bytes, bytearray]))(written.payload)
    checksum = directory_checksum(written.directory)
    read = decode_group("g", written.directory, received, checksum=checksum, arrays=form)
    assert identity_by_field(rows) == identity_by_field(read)
    directory = Directory.from_bytes(written.directory)
    fields = data.draw(st.none() | st.lists(st.sampled_from(directory.fields)))
    wanted = data.draw(st.none() | st.lists(st.integers(0, len(rows) - 1)))
    plan = read_plan(directory, fields=fields, rows=wanted)
    buffers = {part: written.payload[part.offset : part.offset + part.length] for part in plan}
    cells = decode_columns(
        directory, buffers, fields=fields, rows=wanted, hand_out=hand_out_as(form)
    )
    numbers = range(len(rows)) if wanted is None else wanted
    for name in directory.fields if fields is None else dict.fromkeys(fields):
        expected = [rows[row].get(name, ABSENT) for row in numbers]
        assert identity_of(expected) == identity_of(cells[name])


def damage(group: Any, data: st.DataObject) -> None:
    rows, options = group
    written = encoded(rows, options)
    damaged = bytearray(written.directory)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    checksum = directory_checksum(bytes(damaged))
    try:
        read = decode_group("g", bytes(damaged), written.payload, checksum=checksum)
    except (PayloadCorrupted, ConfigurationError, SchemaMismatch):
        return
    assert len(rows) == len(read)


@settings(max_examples=120, deadline=None)
@given(groups(), st.data())
def test_any_group_comes_back_exactly_whole_and_in_parts(group: Any, data: st.DataObject) -> None:
    round_trip(group, data)


@settings(max_examples=120, deadline=None)
@given(groups(), st.data())
def test_a_damaged_directory_is_rows_or_damage_and_nothing_else(
    group: Any, data: st.DataObject
) -> None:
    damage(group, data)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(groups(), st.data())
def test_many_groups_come_back_exactly(group: Any, data: st.DataObject) -> None:
    round_trip(group, data)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(groups(), st.data())
def test_many_damaged_directories_are_rows_or_damage(group: Any, data: st.DataObject) -> None:
    damage(group, data)
