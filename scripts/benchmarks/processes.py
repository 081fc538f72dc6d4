"""Processes that obey JSON lines, from the side of who asks them (`worker`, peers)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

_HEAD_START_SECONDS = 0.05
_LONGEST_LINE = 1 << 20
_END_SECONDS = 10


class ProcessEnded(RuntimeError):
    """A process ended before it answered."""


class Lines:
    """One such process."""

    def __init__(self, process: Process, name: str) -> None:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError(f"{name} has no pipes")
        self._input, self._output = process.stdin, BufferedByteReceiveStream(process.stdout)
        self._name = name

    async def ask(self, verb: str, *arguments: Any) -> Any:
        """Have a verb done and return its answer.

        Raises:
            ProcessEnded: the process has ended.
        """
        try:
            await self._input.send(json.dumps([verb, arguments]).encode() + b"\n")
        except (anyio.BrokenResourceError, OSError):
            raise ProcessEnded(f"{self._name} has ended") from None
        return await self.answer()

    async def answer(self) -> Any:
        """Return the next line.

        Raises:
            ProcessEnded: the process has ended.
        """
        try:
            line = await self._output.receive_until(b"\n", _LONGEST_LINE)
        except (anyio.IncompleteRead, anyio.EndOfStream):
            raise ProcessEnded(f"{self._name} has ended") from None
        return json.loads(line)


@asynccontextmanager
async def process_of_lines(
    command: Sequence[str | Path],
    name: str,
    *,
    env: Mapping[str, str] | None = None,
    log: IO[str] | None = None,
) -> AsyncIterator[Lines]:
    """Run a process that obeys lines, and end it by closing its input, or by force.

    What it says besides goes to ``log``, by default to where this process's messages go.
    """
    words = [str(word) for word in command]
    async with await anyio.open_process(words, stdin=PIPE, stderr=log, env=env) as process:
        try:
            yield Lines(process, name)
            if process.stdin is not None:
                await process.stdin.aclose()
            with anyio.move_on_after(_END_SECONDS):
                await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()  # so that it ends what it has started itself
                with anyio.move_on_after(_END_SECONDS, shield=True):
                    await process.wait()
            if process.returncode is None:
                process.kill()


@asynccontextmanager
async def worker(socket: Path, run: str, owner: str) -> AsyncIterator[Lines]:
    """Run a `worker` on a run and give it when it is attached."""
    command = [sys.executable, "-m", "benchmarks.worker", str(socket), run, owner]
    async with process_of_lines(command, f"worker {owner}") as lines:
        await lines.answer()
        yield lines


async def all_at_once(workers: Sequence[Lines], verb: str, *arguments: Any) -> float:
    """Have all begin a verb at one instant; return the seconds from the first's start to the end.

    The verb's last argument is the instant, and it answers when it began and ended.
    """
    begin = time.monotonic() + _HEAD_START_SECONDS
    times: list[tuple[float, float]] = []

    async def ask(one: Lines) -> None:
        begun, done = await one.ask(verb, *arguments, begin)
        times.append((begun, done))

    async with anyio.create_task_group() as tasks:
        for one in workers:
            tasks.start_soon(ask, one)
    return max(done for _, done in times) - min(begun for begun, _ in times)
