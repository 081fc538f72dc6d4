"""Groups whose stored bytes are kept as fixtures, in hex, as the formats of their time had them.

``payloads-format-<n>.json`` hold what `encode_group` and `pack_record` made of the groups below
when directories of this format were written: 1 and 2 in records of format 1, 3 in format 2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from redis_replay.fields import FieldOptions

_FIXTURES: Final = Path(__file__).parent / "fixtures"

Groups = dict[str, list[dict[str, Any]]]

OF_FORMAT_1: Final[Groups] = {
    "tokens": [
        {
            "input_ids": np.arange(5 + row, dtype=np.int32),
            "logprobs": np.linspace(-1, 0, 5 + row, dtype=np.float32),
            "token_mask": np.ones(7, np.uint8),
            "reward": float(row),
            "length": 5 + row,
        }
        for row in range(3)
    ],
    "dtypes": [
        {
            "bf16": np.array([[0.1, -0.0], [row, np.inf]], ml_dtypes.bfloat16),
            "fp8": np.array([0.5, row], ml_dtypes.float8_e4m3fn),
            "big-endian": np.array([1, 2**40 + row], ">i8"),
            "scalar": np.float32(row / 3),
            "no axes": np.array(row, "u2"),
            "empty": np.zeros((0, 7), "c8"),
            "time": np.array([row], "M8[ms]"),
            "text": np.array(["a", "bc"]),
        }
        for row in range(2)
    ],
    "cells": [
        {
            "several": [None, True, 7, 7.0, "", b"", [], (), {}][row],
            "nested": {"turns": [{"role": "user", "ids": np.arange(row)}], (1, "k"): 2**70 + row},
            "ragged": [[1], [2, 3], []],
            "\u043f\u043e\u043b\u0435": "\ud800" + "x" * row,
        }
        for row in range(9)
    ],
    "without bytes": [{"x": np.zeros(0, "i4")}] * 2,
}

_LARGE: Final = np.arange(65_536, dtype=np.int32) % 3
_LONG_TEXT: Final = b"a long text " * 8000

OF_FORMAT_2: Final[Groups] = {
    "absent": [
        {"input_ids": np.arange(3), "reward": 0.0, "note": None},
        {"input_ids": np.arange(4), "reward": 1.0, "score": np.float32(0.5)},
        {"input_ids": np.arange(0), "reward": 1.0, "shape": np.zeros((2, 3), "u1")},
        {"reward": 0.5, "late": "x", "score": np.float32(-0.0), "shape": np.ones((2, 3), "u1")},
    ],
    "structures": [
        {
            "pair": np.array([(row, 0.5)], "i4,f4"),
            "raw": np.full(2, row, "u1").view("V2"),
            "plain": np.arange(2),
        }
        for row in range(2)
    ],
    "narrowed": [
        {
            "ids": np.arange(5 + row),
            "mask": np.array([True, False] * 5),
            "weights": np.array([[0.5, row], [1, -0.0]]),
            "reward": np.float32(row),
        }
        for row in range(3)
    ],
    "compressed": [
        {
            "ids": np.arange(300 - row) % 7,
            "mask": np.ones((8, 16 + row), bool),
            "some": np.zeros(0 if row == 1 else 30),
            "text": {"turns": ["a long text " * 20] * (row + 1), "n": row},
            **({"image": _LARGE} if row else {}),
        }
        for row in range(3)
    ],
    "shared": [
        {"image": _LARGE, "turns": [{"text": _LONG_TEXT}, {"seen": (_LARGE, row)}]}
        for row in range(3)
    ],
}

_DTYPES: Final = (
    *("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
_NAMES: Final = (
    *("input_ids", "generation_logprobs", "token_mask", "reward", "length", "message_log"),
    *("prompt_idx", "env_extras", "truncated", "advantages", "sample_mask", "input_lengths"),
    *("prev_logprobs", "reference_policy_logprobs", "loss_multiplier", "task_name"),
    *("prompts", "responses", "attention_mask", "position_ids", "response_mask", "logprobs"),
    *("old_log_probs", "ref_log_prob", "rollout_log_probs", "prompt_ids", "completion_ids"),
)

OF_FORMAT_3: Final[Groups] = {
    "types": [
        {
            **{f"{name} array": np.ones(row + 2, name) for name in _DTYPES},
            **{f"{name} scalar": np.dtype(name).type(row) for name in _DTYPES},
        }
        for row in range(2)
    ],
    "names": [{**dict.fromkeys(_NAMES, row), "reward": row, "length": 7} for row in range(3)],
    "long": [
        {
            "input_ids": np.arange(length, dtype=np.int32),
            "token_mask": np.ones(length, bool),
            "prompt_ids": np.arange(200),
            "text": "word " * length,
            "reward": -float(length),
        }
        for length in (130, 300, 0)
    ],
    **OF_FORMAT_1,
    **OF_FORMAT_2,
}

OPTIONS: Final[dict[str, dict[str, FieldOptions]]] = {
    "narrowed": {
        "ids": FieldOptions(narrow_to="int8"),
        "mask": FieldOptions(narrow_to="bits"),
        "weights": FieldOptions(narrow_to="float16"),
    },
    "compressed": {
        "ids": FieldOptions(narrow_to="int32", compression="zstd"),
        "mask": FieldOptions(narrow_to="bits", compression="zstd"),
        "some": FieldOptions(compression="zstd"),
        "text": FieldOptions(compression="zstd"),
        "image": FieldOptions(compression="zstd"),
    },
    "shared": {
        "image": FieldOptions(compression="zstd"),
        "turns": FieldOptions(compression="zstd"),
    },
}
"""How the fields of some groups were stored."""


def stored(number: int, name: str) -> dict[str, Any]:
    """Return the stored bytes of a group of a format, and before 3 its directory's checksum."""
    text = (_FIXTURES / f"payloads-format-{number}.json").read_text(encoding="utf-8")
    entry = json.loads(text)[name]
    return {key: int(v) if key == "checksum" else bytes.fromhex(v) for key, v in entry.items()}
