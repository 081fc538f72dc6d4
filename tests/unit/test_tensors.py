"""Torch tensors are stored as what they hold, and read back as tensors where that is asked for."""

from __future__ import annotations

import importlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redis_replay.fields import FieldOptions
from redis_replay.payloads import decode_group, encode_group
from redis_replay.rewards import reward_as_float
from redis_replay.tensors import array_of_tensor, tensor_of_array

pytestmark = pytest.mark.torch

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
SHAPES = [(), (0,), (0, 7), (3, 0), (1, 0, 2), (3, 4)]


@pytest.fixture(scope="module")
def torch() -> Any:
    return importlib.import_module("torch")


def tensor_of_bits(torch: Any, name: str, shape: tuple[int, ...], seed: int = 1) -> Any:
    """Return a tensor of a dtype with any bits there are; truth values are zeros and ones."""
    dtype = getattr(torch, name)
    count = int(np.prod(shape))
    bits = np.random.default_rng(seed).bytes(count * dtype.itemsize)
    if name == "bool":
        bits = bytes(byte & 1 for byte in bits)
    return torch.frombuffer(bytearray(bits) or bytearray(16), dtype=dtype)[:count].reshape(shape)


def bits_of(torch: Any, tensor: Any) -> tuple[Any, ...]:
    """Return what tells tensors apart: dtype, shape and the bits of every element."""
    assert isinstance(tensor, torch.Tensor)
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes()


def round_trip(rows: list[dict[str, Any]], arrays: Any = "torch", **options: Any) -> Any:
    group = encode_group("g", rows, **options)
    return decode_group("g", group.directory, group.payload, arrays=arrays)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_dtype_keeps_shape_and_bits(torch: Any, name: str, shape: tuple[int, ...]) -> None:
    tensors = [tensor_of_bits(torch, name, shape, seed) for seed in range(3)]
    rows = [{"x": tensor, "nested": {"a": [tensor, (1,)]}} for tensor in tensors]
    for tensor, row in zip(tensors, round_trip(rows), strict=True):
        assert bits_of(torch, tensor) == bits_of(torch, row["x"])
        assert bits_of(torch, tensor) == bits_of(torch, row["nested"]["a"][0])


@pytest.mark.parametrize("name", DTYPES)
def test_a_tensor_reads_back_as_an_array_unless_asked_otherwise(torch: Any, name: str) -> None:
    tensor = tensor_of_bits(torch, name, (3, 4))
    [row] = round_trip([{"x": tensor}], arrays="read_only")
    assert (np.ndarray, name, (3, 4)) == (type(row["x"]), row["x"].dtype.name, row["x"].shape)
    assert bits_of(torch, tensor)[2] == row["x"].tobytes()


def test_bfloat16_takes_two_bytes_an_element(torch: Any) -> None:
    group = encode_group("g", [{"x": torch.zeros(3, 4, dtype=torch.bfloat16)}])
    assert 24 == group.payload_bytes


VIEWS = {
    "transposed": lambda torch: torch.arange(6).reshape(2, 3).t(),
    "expanded": lambda torch: torch.tensor([5.0]).expand(4, 4),
    "strided": lambda torch: torch.arange(100)[::3],
    "narrow strided": lambda torch: torch.arange(100).to(torch.bfloat16)[::3],
    "transposed bytes": lambda torch: torch.arange(6).to(torch.float8_e5m2).reshape(2, 3).t(),
    "channels last": lambda torch: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "conjugated": lambda torch: torch.tensor([1 + 2j]).conj(),
    "negated": lambda torch: torch.tensor([1 + 2j]).conj().imag,
    "with a gradient": lambda torch: torch.ones(3, requires_grad=True) * 2,
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_stored_by_its_values(torch: Any, view: str) -> None:
    tensor = VIEWS[view](torch)
    [row] = round_trip([{"x": tensor}])
    plain = tensor.detach().resolve_conj().resolve_neg()
    assert bits_of(torch, plain) == bits_of(torch, row["x"])
    assert not row["x"].requires_grad


def test_a_tensor_is_stored_without_a_copy_in_between(torch: Any) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool):
        tensor = torch.ones(4, 4, dtype=dtype)
        array = array_of_tensor(tensor.t())
        tensor.zero_()
        assert not array.astype(np.float32).any()


def test_received_memory_that_can_be_written_to_is_not_copied_again(torch: Any) -> None:
    rows = [{"x": torch.ones(4, dtype=torch.bfloat16), "y": torch.ones(3)} for _ in range(2)]
    group = encode_group("g", rows)
    payload = bytearray(group.payload)
    read = decode_group("g", group.directory, payload, arrays="torch")
    payload[:] = bytes(len(payload))
    assert [0.0] * 4 == [float(row[name].sum()) for row in read for name in ("x", "y")]


def test_tensors_are_the_reader_s_own(torch: Any) -> None:
    image = torch.ones(300, 300)
    rows = [{"x": torch.arange(4), "image": image, "nested": [image, {"a": image}]}] * 2
    group = encode_group("g", rows)
    assert group.payload_bytes < 3 * 300 * 300 * 4
    first = decode_group("g", group.directory, group.payload, arrays="torch")
    second = decode_group("g", group.directory, group.payload, arrays="torch")
    first[0]["x"] += 1
    first[0]["image"] += 1
    first[0]["nested"][0] += 1
    for row in (first[1], *second):
        assert [0, 1, 2, 3] == row["x"].tolist()
        assert {1.0} == set(row["image"].unique().tolist())
        assert {1.0} == set(row["nested"][1]["a"].unique().tolist())


def test_arrays_read_as_tensors_too_where_torch_has_their_dtype(torch: Any) -> None:
    rows: list[dict[str, Any]] = [
        {
            "ids": np.arange(3),
            "big-endian": np.arange(3, dtype=">f4"),
            "bf16": np.ones(2, ml_dtypes.bfloat16),
            "no axes": np.array(5, "i4"),
            "text": np.array(["a"]),
            "time": np.array([1], "M8[s]"),
            "structure": np.zeros(1, "i4,f4"),
            "int4": np.ones(2, ml_dtypes.int4),
            "scalar": np.float32(0.5),
            "bytes": b"x",
            "list": [1, 2],
        }
    ]
    [row] = round_trip(rows)
    tensors = {name: row[name].dtype for name in row if isinstance(row[name], torch.Tensor)}
    expected = {"ids": torch.int64, "big-endian": torch.float32, "bf16": torch.bfloat16}
    assert expected | {"no axes": torch.int32} == tensors
    assert [0.0, 1.0, 2.0] == row["big-endian"].tolist()
    for name in ("text", "time", "structure", "int4"):
        assert (type(rows[0][name]), False) == (type(row[name]), row[name].flags.writeable)
    assert (np.float32, b"x", [1, 2]) == (type(row["scalar"]), row["bytes"], row["list"])


def test_tensors_are_narrowed_and_compressed_like_arrays(torch: Any) -> None:
    rows = [{"ids": torch.arange(1000), "mask": torch.ones(1000, dtype=torch.bool)}] * 2
    options = {
        "ids": FieldOptions(narrow_to="int16", compression="zstd"),
        "mask": FieldOptions(narrow_to="bits"),
    }
    for row, read in zip(rows, round_trip(rows, fields=options), strict=True):
        for name in row:
            assert bits_of(torch, row[name]) == bits_of(torch, read[name])


def test_a_tensor_without_axes_is_a_reward_and_a_length(torch: Any) -> None:
    rows = [{"reward": torch.tensor(0.5), "input_ids": torch.arange(n)} for n in (3, 0)]
    group = encode_group("g", rows)
    assert ((0.5, 0.5), (3, 0)) == (group.rewards, group.lengths)
    assert 0.30078125 == reward_as_float(torch.tensor(0.3, dtype=torch.bfloat16), where="x")
    assert (7,) == encode_group("g", [{"length": torch.tensor(7)}]).lengths


UNSTORABLE = {
    "sparse": (lambda torch: torch.eye(2).to_sparse(), "sparse"),
    "without data": (lambda torch: torch.ones(2, device="meta"), "without data"),
    "four bits": (lambda torch: torch.empty(2, dtype=torch.uint4), "torch.uint4"),
    "raw bits": (lambda torch: torch.empty(2, dtype=torch.bits8), "torch.bits8"),
    "parameter": (lambda torch: torch.nn.Parameter(torch.ones(2)), "Parameter"),
}


@pytest.mark.parametrize("case", UNSTORABLE)
def test_a_tensor_that_cannot_be_stored_is_refused_by_its_path(torch: Any, case: str) -> None:
    make, message = UNSTORABLE[case]
    with pytest.raises(TypeError, match=rf"'g7', row 1: x\.a\[0\]: .*{message}"):
        encode_group("g7", [{"x": {"a": []}}, {"x": {"a": [make(torch)]}}])
    with pytest.raises(TypeError, match=rf"'g7', row 0: x: .*{message}"):
        encode_group("g7", [{"x": make(torch)}])


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_any_tensor_is_an_array_and_the_array_that_tensor(
    name: str, shape: tuple[int, ...], seed: int, flipped: bool
) -> None:
    torch = importlib.import_module("torch")
    tensor = tensor_of_bits(torch, name, shape, seed)
    tensor = tensor.mT if flipped and tensor.ndim > 1 else tensor
    assert bits_of(torch, tensor) == bits_of(torch, tensor_of_array(array_of_tensor(tensor)))
