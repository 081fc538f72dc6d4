"""Torch tensors through a store: committed, written back, and read as tensors or arrays."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tests.harness import GROUP_SIZE, Runs

pytestmark = [pytest.mark.anyio, pytest.mark.torch]


@pytest.fixture
def torch() -> Any:
    return importlib.import_module("torch")


async def test_tensors_come_back_as_tensors_and_arrays(runs: Runs, torch: Any) -> None:
    image = torch.rand(3, 160, 160).to(torch.bfloat16)
    rows = [
        {
            "input_ids": torch.arange(5) + row,
            "logprobs": torch.full((5 - row,), -0.5, dtype=torch.bfloat16),
            "mask": torch.arange(5) > row,
            "message": {"image": image, "text": "look"},
            "reward": torch.tensor(float(row)),
        }
        for row in range(GROUP_SIZE)
    ]
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await store.buffer.reserve(0, group_id="g")
        await store.buffer.commit("g", rows, start_weight_version=0, end_weight_version=0)
        assert (await store.stats()).payload_bytes < 2 * image.nbytes
        batch = await trainer.buffer.claim_for_training(["g"])
        assert [5, 5] == batch.sequence_lengths
        assert [[0.0, 1.0]] == batch.extra_info["rewards"]
        advantages = [torch.full((5,), 0.25, dtype=torch.float16)] * GROUP_SIZE
        await trainer.samples.put_samples(batch.sample_ids, fields={"advantages": advantages})
        read = await trainer.samples.get_samples(batch, arrays="torch")
        for row, found in zip(rows, read, strict=True):
            for name in ("input_ids", "logprobs", "mask", "reward"):
                assert row[name].dtype == found[name].dtype
                assert torch.equal(row[name], found[name])
            assert torch.equal(image, found["message"]["image"])
            assert torch.equal(advantages[0], found["advantages"])
        read[0]["message"]["image"].zero_()
        assert torch.equal(image, read[1]["message"]["image"])
        arrays = await trainer.samples.get_samples(batch, select_fields=["input_ids", "logprobs"])
        assert [np.ndarray] * 4 == [type(row[name]) for row in arrays for name in row]
        assert ["bfloat16"] * 2 == [row["logprobs"].dtype.name for row in arrays]
        out = torch.zeros(GROUP_SIZE, 5, dtype=torch.int64)
        probabilities = torch.ones(GROUP_SIZE, 5, dtype=torch.bfloat16)
        read = await trainer.samples.get_samples(
            batch,
            select_fields=["input_ids", "logprobs", "mask"],
            out={"input_ids": out, "logprobs": probabilities},
            arrays="torch",
        )
        assert torch.equal(torch.stack([row["input_ids"] for row in rows]), out)
        assert [[-0.5] * 5, [-0.5] * 4 + [1.0]] == probabilities.tolist()
        assert torch.equal(rows[1]["mask"], read[1]["mask"])
        read[1]["input_ids"][0] = 99
        read[1]["logprobs"][0] = 2.0
        assert (99, 2.0) == (int(out[1, 0]), float(probabilities[1, 0]))
        for tensor, wrong in (
            (torch.zeros(GROUP_SIZE, 5, device="meta"), "on the host"),
            (torch.zeros(GROUP_SIZE, 5, requires_grad=True), "no gradient"),
            (torch.zeros(GROUP_SIZE, 5, dtype=torch.cfloat).conj(), "no memory of its own"),
        ):
            with pytest.raises(TypeError, match=rf"out\['input_ids'\].*{wrong}"):
                await trainer.samples.get_samples(batch, out={"input_ids": tensor})
