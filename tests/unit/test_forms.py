"""Arrays are handed out as views that nobody can write to, or as the reader's own."""

from __future__ import annotations

import itertools
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from redis_replay.errors import ConfigurationError
from redis_replay.fields import FieldOptions
from redis_replay.forms import hand_out_as
from redis_replay.payloads import decode_group, encode_group
from tests.identity import identity_of

IMAGE = np.arange(30_000, dtype=np.int32)
ROWS: list[dict[str, Any]] = [
    {
        "ids": np.arange(6).reshape(2, 3),
        "jagged": np.arange(row + 1, dtype=ml_dtypes.bfloat16),
        "nested": {"a": [np.arange(4.0), np.int8(row)]},
        "image": IMAGE,
        "narrow": np.arange(5),
        "small": np.zeros(2000),
        "scalar": np.float32(row),
        "none": None,
    }
    for row in range(3)
]
GROUP = encode_group(
    "g",
    ROWS,
    fields={
        "narrow": FieldOptions(narrow_to="int8"),
        "small": FieldOptions(compression="zstd"),
    },
)
ARRAYS = ("ids", "jagged", "image", "narrow", "small")


def read(payload: Any = GROUP.payload, **options: Any) -> list[dict[str, Any]]:
    return decode_group("g", GROUP.directory, payload, **options)


def arrays_of(row: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    return [*(row[name] for name in ARRAYS), row["nested"]["a"][0]]


def test_both_forms_hold_the_same_values() -> None:
    assert identity_of(ROWS) == identity_of(read()) == identity_of(read(arrays="writable"))


def test_arrays_are_read_only_unless_asked_otherwise() -> None:
    for row in read(bytearray(GROUP.payload)):
        assert [False] * 6 == [array.flags.writeable for array in arrays_of(row)]


@pytest.mark.parametrize("received", [bytes, bytearray])
def test_writable_arrays_are_the_reader_s_own(received: Any) -> None:
    payload = received(GROUP.payload)
    first, second = read(payload, arrays="writable"), read(GROUP.payload, arrays="writable")
    arrays = [array for row in first + second for array in arrays_of(row)]
    assert {True} == {array.flags.writeable for array in arrays}
    assert [] == [1 for a, b in itertools.combinations(arrays, 2) if np.shares_memory(a, b)]
    for array in arrays_of(first[0]):
        array += 1
    assert identity_of(ROWS) == identity_of(second) == identity_of(read())
    assert identity_of(ROWS[1:]) == identity_of(first[1:])


def test_memory_that_was_received_into_is_not_copied_again() -> None:
    payload = bytearray(GROUP.payload)
    row = read(payload, arrays="writable")[0]
    received = np.frombuffer(payload, np.uint8)
    assert np.shares_memory(row["ids"], received)
    assert not np.shares_memory(row["image"], received), "other rows have it too"


def test_an_unknown_form_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="'read_only', 'writable', 'torch', got 'numpy'"):
        hand_out_as("numpy")  # type: ignore[arg-type]


def test_torch_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigurationError, match=r"install Torch, or redis-replay\[torch\]"):
        read(arrays="torch")


def test_nothing_optional_is_imported_before_it_is_needed() -> None:
    program = (
        "import sys, numpy, redis_replay; from redis_replay.payloads import *; "
        "g = encode_group('g', [{'a': numpy.arange(3), 'b': 'x'}]); "
        "decode_group('g', g.directory, g.payload); "
        "print([name for name in ('torch', 'zstandard', 'ml_dtypes') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "[]" == ran.stdout.strip()
