"""TransferQueue: its controller and two storage units in Ray actors, its own client here.

Rows are its unit: a group is put as 16 keys, a batch is fetched for a task as rows, in order, and
cleared by its metadata.
"""

from __future__ import annotations

import os
import time

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["TQ_NUM_THREADS"] = str(os.cpu_count() or 1)  # more, and it logs so at each call

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict

from benchmarks.peers.obeying import obey
from benchmarks.rows import GROUP_SIZE, Rows, group_rows, stacked

_ACTORS = 8
"""Places for actors, whatever the number of cores: too few, and it waits for one for ever."""

_FIELDS = ["input_ids", "generation_logprobs", "token_mask", "reward", "length"]


class TransferQueue:
    """The system with its default settings; a partition for each use."""

    def __init__(self) -> None:
        ray.init(
            num_cpus=_ACTORS, include_dashboard=False, logging_level="ERROR", log_to_driver=False
        )
        tq.init()
        self._client = tq.get_client()
        self._keys = 0

    def _put(self, rows: Rows, partition: str) -> None:
        fields = {name: torch.from_numpy(field) for name, field in stacked(rows).items()}
        keys = [f"k{self._keys + row}" for row in range(GROUP_SIZE)]
        self._keys += GROUP_SIZE
        tq.kv_batch_put(keys=keys, partition_id=partition, fields=TensorDict(fields, [GROUP_SIZE]))

    def lifecycle(self, rows: Rows, groups: int) -> None:
        for _ in range(groups):
            self._put(rows, "lifecycle")
        meta = self._choose("lifecycle", groups, "train")
        read = self._client.get_data(meta)
        self._client.clear_samples(meta)
        if len(read) != groups * GROUP_SIZE:
            raise RuntimeError(f"{len(read)} rows came back instead of {groups * GROUP_SIZE}")

    def _choose(self, partition: str, groups: int, task: str) -> tq.BatchMeta:
        return self._client.get_meta(
            data_fields=_FIELDS,
            batch_size=groups * GROUP_SIZE,
            partition_id=partition,
            mode="fetch",
            task_name=task,
        )

    def choose(self, groups: int, times: int) -> list[float]:
        """Fill a partition with tiny groups; return the seconds of choosing 64 of them."""
        rows, partition = group_rows(1), f"choose{groups}"
        for _ in range(groups):
            self._put(rows, partition)
        spent: list[float] = []
        for at in range(times):
            start = time.perf_counter()
            self._choose(partition, 64, f"task{at}")
            spent.append(time.perf_counter() - start)
        return spent

    def close(self) -> None:
        tq.close()
        ray.shutdown()


if __name__ == "__main__":
    obey(TransferQueue)
