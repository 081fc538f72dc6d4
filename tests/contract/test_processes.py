"""A store stays in its process: forks are told so, pickles are refused, and none hangs."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import secrets
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import redis_replay
from redis_replay import sync
from tests.harness import CAPACITY, GROUP_SIZE, Runs
from tests.workers.forking import CASES, FORKS
from tests.workers.peers import ROOT

END_SECONDS = 60.0


@pytest.mark.parametrize("case", CASES)
def test_a_forked_process_is_told_that_the_store_is_its_parents(
    real_server: str, case: str
) -> None:
    run = f"test-{secrets.token_hex(6)}"
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.workers.forking",
        case,
        real_server,
        run,
    ]
    done = subprocess.run(
        command, cwd=ROOT, timeout=END_SECONDS, text=True, capture_output=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer == FORKS if "busy" in case else answer


@pytest.fixture
def store(real_server: str) -> Iterator[sync.ReplayStore]:
    """A blocking store of a fresh run."""
    name = f"test-{secrets.token_hex(6)}"
    with sync.open_store(real_server, run=name, capacity=CAPACITY, group_size=GROUP_SIZE) as opened:
        yield opened


def test_a_blocking_object_cannot_be_pickled_or_copied(store: sync.ReplayStore) -> None:
    with store.trainer(owner="job") as trainer:
        sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)
        for held in (store, store.buffer, trainer, trainer.samples, sampler, store.mutation()):
            for send in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="call open_store in the worker"):
                    send(held)


def test_a_store_is_not_sent_to_a_spawned_process(store: sync.ReplayStore) -> None:
    process: Any = multiprocessing.get_context("spawn").Process(target=print, args=(store,))
    with pytest.raises(TypeError, match=r"ReplayStore cannot be pickled .* open_store in the work"):
        process.start()


@pytest.mark.anyio
async def test_an_asynchronous_object_cannot_be_pickled_or_copied(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        sampler = redis_replay.InOrderSampler(trainer.buffer, max_lookahead_versions=1)
        filtering = store.filter()
        for held in (store, store.buffer, trainer, trainer.samples, sampler, filtering):
            with pytest.raises(TypeError, match="call open_store in the worker"):
                pickle.dumps(held)
