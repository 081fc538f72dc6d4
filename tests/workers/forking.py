"""Programs that fork while a store is open: ``python -m tests.workers.forking CASE URL RUN``.

Each prints how the child's uses of its parent's store ended, as one JSON line. Then the parent
works on with it, so that what a child did to what the two share is noticed.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import anyio.to_thread

import redis_replay
from redis_replay import sync
from redis_replay.errors import ForkedStore
from tests.harness import GROUP_SIZE, rows

OPTIONS = {"capacity": 64, "group_size": GROUP_SIZE}
ONE = {"min_prompt_groups": 1, "max_prompt_groups": 1}
PLACE = {"start_weight_version": 0, "end_weight_version": 0}
FORKS = 4
FORK = multiprocessing.get_context("fork")

Fork = Callable[[Callable[[], object]], Any]


def in_fork(work: Callable[[], object]) -> Any:
    """Do the work in a fork, which then ends as programs end; return what it returned."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sending, json.dumps(work()).encode())
        os.close(sending)
        sys.exit(0)  # leaves the blocks that the parent has entered
    os.close(sending)
    return received(receiving, child)


def received(receiving: int, child: int) -> Any:
    """Return what a child has written when it has ended without an error."""
    with os.fdopen(receiving) as pipe:
        answer = pipe.read()
    assert (child, 0) == os.waitpid(child, 0)
    return json.loads(answer)


def in_process(work: Callable[[], object]) -> Any:
    """Do the work in a process of `multiprocessing`, as data loaders start their workers."""
    answers = FORK.SimpleQueue()
    process = FORK.Process(target=lambda: answers.put(work()))
    process.start()
    answer = answers.get()
    process.join()
    assert 0 == process.exitcode
    return answer


def refused(uses: Mapping[str, Callable[[], object]]) -> list[str]:
    """Use things of the parent's and return which uses were refused as they should be."""
    found: list[str] = []
    for name, use in uses.items():
        try:
            use()
        except ForkedStore:
            found.append(name)
    return found


async def refused_async(uses: Mapping[str, Callable[[], Awaitable[object]]]) -> list[str]:
    """The same for what is awaited."""
    found: list[str] = []
    for name, use in uses.items():
        try:
            await use()
        except ForkedStore:
            found.append(name)
    return found


def blocking_uses(store: sync.ReplayStore, trainer: sync.TrainerSession) -> dict[str, Any]:
    """Return ways to use a blocking store."""
    sampler = sync.InOrderSampler(trainer.buffer, max_lookahead_versions=1)
    return {
        "call": store.stats,
        "property": lambda: store.trainer_version,
        "object": lambda: store.buffer,
        "mutation": lambda: trainer.requeue(),
        "wait": lambda: trainer.select(sampler, **ONE),
        "admission": lambda: sampler.admit(trainer_version_fn=lambda: 0),
        "session": lambda: store.trainer(owner="other").__enter__(),
    }


def train(store: sync.ReplayStore, trainer: sync.TrainerSession) -> None:
    """Show that the parent's calls and sessions are as they were."""
    made = trainer.buffer.reserve(0)
    trainer.buffer.commit(made.group_id, rows(), **PLACE)
    trainer.buffer.claim_for_training([made.group_id])
    assert (made.group_id,) == trainer.commit_step(trainer.trainer_version).trained
    assert () == store.audit().violations


def used(url: str, run: str) -> list[str]:
    """Use a blocking store in forks."""
    with (
        sync.open_store(url, run=run, **OPTIONS) as store,
        store.trainer(owner="job") as trainer,
    ):
        uses = blocking_uses(store, trainer)
        for fork in (in_fork, in_process):
            assert list(uses) == fork(lambda: refused(uses))
            train(store, trainer)
        return list(uses)


def collected(url: str, run: str, fork: Fork) -> bool:
    """Let a fork collect what it inherited, and open a store of its own besides."""
    kept: dict[str, Any] = {"store": sync.open_store(url, run=run, **OPTIONS)}
    kept["trainer"] = kept["store"].__enter__().trainer(owner="job").__enter__()

    def drop() -> bool:
        kept.clear()
        gc.collect()
        with sync.open_store(url, run=run, create=False) as own:
            own.buffer.reserve(0, group_id="child")
            gc.collect()
        return True

    answer = fork(drop)
    train(kept["store"], kept["trainer"])
    assert ["child"] == [slot.group_id for slot in kept["store"].buffer.slots()]
    kept["trainer"].__exit__(None, None, None)
    kept["store"].close()
    return bool(answer)


def busy(url: str, run: str) -> int:
    """Fork again and again while other threads are in the middle of calls."""
    with sync.open_store(url, run=run, **OPTIONS) as store, store.trainer(owner="job") as trainer:
        over = threading.Event()

        def call() -> None:
            while not over.is_set():
                store.stats()

        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        uses = {"call": lambda: store.stats()}
        found = sum(len(in_fork(lambda: refused(uses))) for _ in range(FORKS))
        over.set()
        for thread in threads:
            thread.join()
        train(store, trainer)
        return found


def asynchronous_uses(store: redis_replay.ReplayStore, trainer: Any) -> dict[str, Any]:
    """Return ways to use an asynchronous store."""
    sampler = redis_replay.InOrderSampler(trainer.buffer, max_lookahead_versions=1)
    return {
        "call": store.stats,
        "audit": store.audit,
        "mutation": trainer.requeue,
        "reserve": lambda: trainer.buffer.reserve(0),
        "place": lambda: trainer.buffer.reserve_when_free(0),
        "wait": lambda: trainer.select(sampler, **ONE),
        "admission": lambda: sampler.admit(trainer_version_fn=lambda: 0),
        "cut": lambda: store.mutation().__aenter__(),
    }


async def asynchronous(url: str, run: str) -> list[str]:
    """Use an asynchronous store in forks: in a loop of its own, and in the running one's copy."""
    async with (
        redis_replay.open_store(url, run=run, **OPTIONS) as store,
        store.trainer(owner="job") as trainer,
    ):
        uses = asynchronous_uses(store, trainer)
        assert list(uses) == in_process(lambda: anyio.run(refused_async, uses))
        receiving, sending = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(sending, json.dumps(await refused_async(uses)).encode())
            await trainer.__aexit__(None, None, None)
            await store.close()
            os._exit(0)
        os.close(sending)
        assert list(uses) == await anyio.to_thread.run_sync(received, receiving, child)
        made = await trainer.buffer.reserve(0)
        await trainer.buffer.commit(made.group_id, rows(), **PLACE)
        await trainer.buffer.claim_for_training([made.group_id])
        assert (made.group_id,) == (await trainer.commit_step(0)).trained
        return list(uses)


CASES: Mapping[str, Callable[[str, str], object]] = {
    "used": used,
    "collected": lambda url, run: collected(url, run, in_fork),
    "collected by a worker": lambda url, run: collected(url, run, in_process),
    "busy": busy,
    "asynchronous": lambda url, run: anyio.run(asynchronous, url, run),
}


if __name__ == "__main__":
    case, address, run_name = sys.argv[1:]
    outcome = CASES[case](address, run_name)
    sys.stdout.write(json.dumps(outcome) + "\n")
