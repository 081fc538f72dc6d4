"""Runs the command line in a test: in this process, or as a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import anyio
import pytest
import redis

import redis_replay
from redis_replay import InOrderSamplerConfig, create_sampler
from redis_replay.cli import main
from tests.harness import commit_ready

CAPACITY = 16
GROUP_SIZE = 2
PROGRAM = (sys.executable, "-m", "redis_replay.cli")


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON object on stdout; anything beside it fails."""
        [line] = self.out.splitlines()
        found: dict[str, Any] = json.loads(line)
        return found


class CommandLine:
    """Runs commands in this process, on one server."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *, url: str | None) -> None:
        self.url = url
        self._capsys = capsys

    async def __call__(self, command: str, *arguments: str) -> Finished:
        """Run a command of one or two words with ``--url`` and these arguments, in a thread."""
        place = [] if self.url is None else ["--url", self.url]
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("FORCE_COLOR", raising=False)
            status = await anyio.to_thread.run_sync(main, [*command.split(), *place, *arguments])
        captured = self._capsys.readouterr()
        return Finished(status, captured.out, captured.err)


async def run_program(*arguments: str, **environment: str) -> Finished:
    """Run a command as a program without a terminal."""
    work = partial(
        subprocess.run,
        [*PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )
    ended: subprocess.CompletedProcess[str] = await anyio.to_thread.run_sync(work)
    return Finished(ended.returncode, ended.stdout, ended.stderr)


@contextmanager
def server_at(url: str) -> Generator[Any]:
    """Open a client of a server, for tests that look behind the store or damage it."""
    client = cast("Any", redis.Redis).from_url(url)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def busy_run(url: str, run: str, *, odd_id: str = "d") -> AsyncGenerator[None]:
    """Hold a run with one trained and four live groups.

    ``b`` is claimed by the session ``learner``, ``c`` is ready, ``d`` (or an odd id instead) is
    reserved by the session ``writer`` and ``e`` is a ticket without an owner.
    """
    policy = InOrderSamplerConfig(max_lookahead_versions=1)
    settings: dict[str, Any] = {"capacity": CAPACITY, "group_size": GROUP_SIZE}
    async with (
        redis_replay.open_store(url, run=run, groups_per_step=2, **settings) as store,
        store.trainer(owner="learner") as trainer,
        store.rollout(owner="writer") as rollout,
    ):
        sampler = create_sampler(trainer.buffer, policy)
        step = partial(sampler.select, min_prompt_groups=1, max_prompt_groups=1)
        for target in (0, 1):
            await sampler.admit(trainer_version_fn=lambda: 0)
            await commit_ready(store, 0, group_id="ab"[target], target_step=target)
            await step(current_train_weight=target)
            if target == 0:
                await trainer.commit_step(0)
        await commit_ready(store, 1, group_id="c", target_step=1)
        await rollout.buffer.reserve(1, group_id=odd_id, target_step=1)
        async with store.rollout(owner="leaver") as leaver:
            await leaver.buffer.reserve(1, group_id="e", target_step=1)
        yield
