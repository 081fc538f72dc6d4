"""A Ray actor that holds a plain list of groups, as replay buffers of post-training systems do.

Groups are pushed one by one and awaited together; an actor call chooses by version and marks, one
returns the rows, one removes them. Rows are torch tensors, as those systems hold them; with
``arrays`` they are NumPy arrays, which Ray need not copy.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray

from benchmarks.peers.obeying import obey
from benchmarks.rows import Rows, group_rows


class Buffer:
    """The list: entries of id, version, whether claimed, rows."""

    def __init__(self) -> None:
        self._entries: list[list[Any]] = []
        self._next = 0

    def push(self, rows: Rows, version: int) -> int:
        self._next += 1
        self._entries.append([self._next, version, False, rows])
        return self._next

    def choose(self, count: int, lowest: int) -> list[int]:
        chosen = [one for one in self._entries if not one[2] and one[1] >= lowest][:count]
        for one in chosen:
            one[2] = True
        return [one[0] for one in chosen]

    def give_back(self) -> None:
        for one in self._entries:
            one[2] = False

    def read(self, ids: list[int]) -> list[Rows]:
        wanted = set(ids)
        return [one[3] for one in self._entries if one[0] in wanted]

    def release(self, ids: list[int]) -> None:
        gone = set(ids)
        self._entries = [one for one in self._entries if one[0] not in gone]


class Actor:
    """The actor, in a process of its own."""

    def __init__(self, form: str = "tensors") -> None:
        self._takes_tensors = form == "tensors"
        ray.init(include_dashboard=False, logging_level="ERROR", log_to_driver=False)
        self._make = ray.remote(Buffer)
        self._buffer = self._make.remote()

    def lifecycle(self, rows: Rows, groups: int) -> None:
        buffer = self._buffer
        if self._takes_tensors:
            rows = as_tensors(rows)
        ray.get([buffer.push.remote(rows, 0) for _ in range(groups)])
        ids = ray.get(buffer.choose.remote(groups, 0))
        read = ray.get(buffer.read.remote(ids))
        ray.get(buffer.release.remote(ids))
        if len(read) != groups:
            raise RuntimeError(f"{len(read)} groups came back instead of {groups}")

    def choose(self, groups: int, times: int) -> list[float]:
        """Fill a buffer with tiny groups; return the seconds of choosing 64 of them."""
        buffer, rows = self._make.remote(), group_rows(1)
        ray.get([buffer.push.remote(rows, 0) for _ in range(groups)])
        spent: list[float] = []
        for _ in range(times):
            start = time.perf_counter()
            ray.get(buffer.choose.remote(64, 0))
            spent.append(time.perf_counter() - start)
            ray.get(buffer.give_back.remote())
        return spent

    def close(self) -> None:
        ray.shutdown()


def as_tensors(rows: Rows) -> Rows:
    """Return rows whose arrays are torch tensors over the same memory."""
    import torch

    return [
        {name: torch.from_numpy(v) if hasattr(v, "dtype") else v for name, v in row.items()}
        for row in rows
    ]


if __name__ == "__main__":
    obey(partial(Actor, *sys.argv[1:]))
