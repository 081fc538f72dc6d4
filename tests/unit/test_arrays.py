"""Other libraries' arrays have a door of their own; a missing one is named."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from redis_replay import arrays, dtypes
from redis_replay.codec import decode_value, encode_value
from redis_replay.errors import ConfigurationError
from redis_replay.payloads import decode_group, encode_group


@pytest.fixture
def without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    dtypes.dtype_named.cache_clear()
    yield
    dtypes.dtype_named.cache_clear()


@pytest.mark.usefixtures("without_ml_dtypes")
def test_a_missing_package_is_named_and_is_no_corruption() -> None:
    encoded = encode_value(np.zeros(2, ml_dtypes.bfloat16), "x")
    with pytest.raises(ConfigurationError, match="'bfloat16': install ml_dtypes"):
        decode_value(encoded, "x")


class Boxed:
    """An array of another library."""

    def __init__(self, content: Any) -> None:
        self.content = content


def boxed_kind(name: str = "boxed", extension_code: int = 127) -> arrays.ArrayKind:
    return arrays.ArrayKind(name, extension_code, lambda boxed: np.asarray(boxed.content), Boxed)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_kind_by_type", "_kind_by_name", "_kind_by_code"):
        monkeypatch.setattr(arrays, table, dict(getattr(arrays, table)))


@pytest.mark.usefixtures("registry")
def test_arrays_of_another_library_come_back_as_theirs() -> None:
    arrays.register_array_kind(boxed_kind(), types=(Boxed,))
    rows: list[dict[str, Any]] = [
        {"x": Boxed(np.arange(row)), "nested": (Boxed(row),)} for row in (3, 0)
    ]
    group = encode_group("g", rows)
    for row, stored in zip((3, 0), decode_group("g", group.directory, group.payload), strict=True):
        assert (Boxed, Boxed) == (type(stored["x"]), type(stored["nested"][0]))
        assert list(range(row)) == stored["x"].content.tolist()
        assert row == stored["nested"][0].content


@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize(
    ("kind", "types", "message"),
    [
        (boxed_kind(name="array"), (Boxed,), "taken"),
        (boxed_kind(extension_code=16), (Boxed,), "taken"),
        (boxed_kind(extension_code=3), (Boxed,), "between 16 and 127"),
        (boxed_kind(), (np.ndarray,), "ndarray"),
    ],
)
def test_a_kind_does_not_take_another_one_s_place(
    kind: arrays.ArrayKind, types: tuple[type, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        arrays.register_array_kind(kind, types=types)
