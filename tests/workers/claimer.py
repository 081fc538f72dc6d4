"""One trainer or rollout host as a process of its own: obeys JSON lines, answers each with one.

``python -m tests.workers.claimer URL RUN OWNER``. It answers ``"ready"`` when it is attached, so
that a test can let all its processes begin at one instant.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

import redis_replay
from redis_replay import ReplayStore, TrainerSession, WindowedSampler
from redis_replay.errors import AdmissionConflict
from redis_replay.selection import Eviction
from tests.harness import rows

BATCH = 16
WINDOW = 1


class Worker:
    """The verbs, by name."""

    def __init__(self, store: ReplayStore, trainer: TrainerSession) -> None:
        self.store = store
        self.trainer = trainer
        self.sampler = WindowedSampler(trainer.buffer, max_staleness_versions=WINDOW)

    async def write(self, prefix: str, first: int, count: int) -> list[str]:
        """Reserve and commit groups whose rows hold their number; return those acknowledged."""
        written: list[str] = []
        for number in range(first, first + count):
            name = f"{prefix}-{number}"
            await self.trainer.buffer.reserve(0, group_id=name)
            await self.trainer.buffer.commit(
                name, rows(number, length=64), start_weight_version=0, end_weight_version=0
            )
            written.append(name)
        return written

    async def damaged(self) -> list[str]:
        """Read all groups that this session has claimed; return those with other rows."""
        metas = await self.trainer.buffer.training_owned_replay_groups()
        found: list[str] = []
        for meta in metas:
            [name] = meta.extra_info["group_ids"]
            expected = rows(int(name.rpartition("-")[2]), length=64)
            stored = await self.trainer.samples.get_samples(meta)
            same = [
                np.array_equal(np.asarray(row["input_ids"]), wanted["input_ids"])
                and row["reward"] == wanted["reward"]
                for row, wanted in zip(stored, expected, strict=True)
            ]
            found += [] if all(same) else [name]
        return found

    async def train_intact(self) -> list[str]:
        """`train_all`, where a group with other rows than were written is an error."""
        trained: list[str] = []
        while True:
            meta, _ = await self.sampler.select(
                current_train_weight=0, min_prompt_groups=1, max_prompt_groups=BATCH
            )
            if meta is None:
                return trained
            if damaged := await self.damaged():
                raise ValueError(f"groups came back with other rows: {damaged}")
            ids = list(meta.extra_info["group_ids"])
            await self.trainer.buffer.release_training_claims(ids)
            trained += ids

    async def train_all(self) -> list[str]:
        """Claim and consume until nothing is ready; return the groups in the order claimed."""
        trained: list[str] = []
        while True:
            meta, _ = await self.sampler.select(
                current_train_weight=0, min_prompt_groups=1, max_prompt_groups=BATCH
            )
            if meta is None:
                return trained
            ids = list(meta.extra_info["group_ids"])
            await self.trainer.buffer.release_training_claims(ids)
            trained += ids

    async def dispatch(self, last: int, groups_per_step: int) -> list[int]:
        """Admit and reserve through cuts until the cursor is at the last index; return mine."""
        mine: list[int] = []
        while True:
            try:
                async with self.trainer.mutation() as cut:
                    if cut.dispatch_index >= last:
                        return mine
                    first = int(cut.loader_state or b"0")
                    index = cut.record_admission(seen_version=0)
                    for prompt in range(first, first + groups_per_step):
                        cut.reserve(0, target_step=index, prompt_ref=b"%d" % prompt)
                    cut.set_loader_state(b"%d" % (first + groups_per_step))
            except AdmissionConflict:
                continue
            mine.append(index)

    async def select(self, weight: int, groups: int) -> list[str]:
        """Wait for a batch of exactly so many groups and claim it."""
        meta, _ = await self.trainer.select(
            self.sampler,
            min_prompt_groups=groups,
            max_prompt_groups=groups,
            current_train_weight=weight,
        )
        return list(meta.extra_info["group_ids"])

    async def release(self, group_ids: list[str]) -> None:
        """Consume the claims."""
        await self.trainer.buffer.release_training_claims(group_ids)

    async def evict(self, below: int, wanted: int) -> int:
        """Evict again and again until so many groups were dropped."""
        dropped = 0
        while dropped < wanted:
            dropped += await self.trainer.buffer.evict(Eviction(below=below))
        return dropped


async def serve(url: str, run: str, owner: str) -> None:
    """Attach, then answer every line until the input ends."""
    async with (
        redis_replay.open_store(url, run=run, create=False) as store,
        store.trainer(owner=owner) as trainer,
    ):
        await obey(Worker(store, trainer), hello="ready")


async def obey(worker: object, *, hello: Any) -> None:
    """Say hello, then do what each line names and answer with what it returned."""
    reply = hello
    while True:
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
        line = await anyio.to_thread.run_sync(sys.stdin.readline)
        if not line:
            return
        verb, arguments = json.loads(line)
        method: Callable[..., Awaitable[Any]] = getattr(worker, verb)
        reply = await method(*arguments)


if __name__ == "__main__":
    address, run_name, owner_name = sys.argv[1:]
    anyio.run(serve, address, run_name, owner_name)
