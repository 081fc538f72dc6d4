"""TorchRL: a replay buffer over a memory map, inside this process; no claims, no other hosts.

A group is one item whose fields are tensors of 16 rows; each is added by itself, as rollouts end.
The map's pages are used again from the second round on. It lies in the system's temporary folder,
which is the default, or in a folder that is given.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement

from benchmarks.peers.obeying import obey
from benchmarks.rows import Rows, group_rows, stacked


class TorchRl:
    """A buffer for each group size, since a map holds items of one size."""

    def __init__(self, place: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rr-torchrl-", dir=place)
        self._buffers: dict[tuple[int, int], TensorDictReplayBuffer] = {}

    def _buffer(self, tokens: int, groups: int) -> TensorDictReplayBuffer:
        if (tokens, groups) not in self._buffers:
            self._buffers[tokens, groups] = TensorDictReplayBuffer(
                storage=LazyMemmapStorage(
                    groups, scratch_dir=f"{self._folder.name}/{tokens}-{groups}"
                ),
                sampler=SamplerWithoutReplacement(),
                batch_size=groups,
            )
        return self._buffers[tokens, groups]

    def lifecycle(self, rows: Rows, groups: int) -> None:
        buffer = self._buffer(len(rows[0]["input_ids"]), groups)
        for _ in range(groups):
            buffer.add(_item(rows))
        read = buffer.sample(groups)
        if len(read) != groups:
            raise RuntimeError(f"{len(read)} groups came back instead of {groups}")
        buffer.empty()

    def choose(self, groups: int, times: int) -> list[float]:
        """Fill a buffer with tiny groups; return the seconds of sampling 64 of them."""
        buffer = self._buffer(1, groups)
        buffer.extend(TensorDict.maybe_dense_stack([_item(group_rows(1))] * groups))
        spent: list[float] = []
        for _ in range(times):
            start = time.perf_counter()
            buffer.sample(64)
            spent.append(time.perf_counter() - start)
        return spent

    def close(self) -> None:
        self._folder.cleanup()


def _item(rows: Rows) -> TensorDict:
    return TensorDict({name: torch.from_numpy(field) for name, field in stacked(rows).items()}, [])


if __name__ == "__main__":
    obey(partial(TorchRl, *sys.argv[1:]))
