"""The test's side of `tests.workers.claimer`: starts such processes and talks to them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

ROOT = Path(__file__).parents[2]
ANSWER_SECONDS = 60.0
LINE_BYTES = 1 << 20


class Peer:
    """A process of `tests.workers.claimer` or `tests.workers.session_holder`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._answers = BufferedByteReceiveStream(process.stdout)

    async def answer(self, *, within_seconds: float = ANSWER_SECONDS) -> Any:
        """Return the next answer."""
        with anyio.fail_after(within_seconds):
            return json.loads(await self._answers.receive_until(b"\n", LINE_BYTES))

    async def tell(self, verb: str, *arguments: object) -> None:
        """Send one line."""
        await self._stdin.send(json.dumps([verb, arguments]).encode() + b"\n")

    async def ask(self, verb: str, *arguments: object) -> Any:
        """Send one line and return its answer."""
        await self.tell(verb, *arguments)
        return await self.answer()

    async def leave(self) -> None:
        """End its input and wait until it has gone without an error."""
        await self._stdin.aclose()
        with anyio.fail_after(ANSWER_SECONDS):
            assert 0 == await self.process.wait()


@asynccontextmanager
async def started(module: str, *arguments: str) -> AsyncIterator[Peer]:
    """Start a process of `tests.workers`; at the end it is killed, if it has not left by then."""
    command = [sys.executable, "-m", f"tests.workers.{module}", *arguments]
    async with await anyio.open_process(
        command, stdin=PIPE, stdout=PIPE, stderr=None, cwd=ROOT
    ) as process:
        try:
            yield Peer(process)
        finally:
            if process.returncode is None:
                process.kill()


@asynccontextmanager
async def peers(url: str, run: str, count: int) -> AsyncIterator[list[Peer]]:
    """Start claimers on a run and wait until all are attached."""
    async with AsyncExitStack() as stack:
        claimers = [
            await stack.enter_async_context(started("claimer", url, run, f"owner-{number}"))
            for number in range(count)
        ]
        for peer in claimers:
            assert "ready" == await peer.answer()
        yield claimers
        for peer in claimers:
            await peer.leave()


async def ask_all(asked: Sequence[Peer], verb: str, *arguments: object) -> list[Any]:
    """Ask all processes at once and return their answers in order."""
    answers: list[Any] = [None] * len(asked)

    async def ask(at: int) -> None:
        answers[at] = await asked[at].ask(verb, *arguments)

    async with anyio.create_task_group() as group:
        for at in range(len(asked)):
            group.start_soon(ask, at)
    return answers
