"""Worker processes as the supervisor has them: started, listened to, killed, waited for."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.settings import WorkerOrders
from redis_replay.demo.witness import Line
from redis_replay.store_options import URL_VARIABLE

_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_LONGEST_LINE_BYTES: Final = 1 << 20
_LAST_WORDS: Final = 12
_LEAVE: Final = b"."


@dataclass
class Worker:
    """One running worker process."""

    orders: WorkerOrders
    process: Process
    killed: bool = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def kill(self) -> None:
        """Kill it with SIGKILL; it cannot do anything about it."""
        self.killed = True
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)

    async def listen(self, on_line: Callable[[Line], None]) -> None:
        """Hand over each line of its log as it appears, until it ends."""
        assert self.process.stdout is not None
        stream = BufferedByteReceiveStream(self.process.stdout)
        while True:
            try:
                text = await stream.receive_until(b"\n", _LONGEST_LINE_BYTES)
            except (anyio.EndOfStream, anyio.IncompleteRead):
                break
            on_line(Line.from_json(text.decode()))
            if self.orders.in_lockstep and not self.killed:
                await self._let_go_on()
        await self.process.wait()

    async def _let_go_on(self) -> None:
        assert self.process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.process.stdin.send(_LEAVE)

    def raise_for_status(self) -> None:
        """Return if it did its work to the end.

        Raises:
            DemoFailed: it ended in another way.
        """
        if self.process.returncode != 0:
            words = error_path(self.orders).read_text(encoding="utf-8", errors="replace")
            last = "\n  ".join(words.splitlines()[-_LAST_WORDS:])
            raise DemoFailed(
                f"{self.orders.owner} ended with status {self.process.returncode}:\n  {last}"
            )


@asynccontextmanager
async def start_worker(orders: WorkerOrders) -> AsyncGenerator[Worker]:
    """Start a worker process; leaving the block kills it if it still runs, and waits for it."""
    with error_path(orders).open("wb") as errors:
        process = await anyio.open_process(
            [sys.executable, "-m", orders.module, orders.to_json()],
            stdin=PIPE,
            stdout=PIPE,
            stderr=errors,
            env={**os.environ, **_ONE_THREAD, URL_VARIABLE: orders.url},
            start_new_session=True,
        )
    worker = Worker(orders, process)
    try:
        yield worker
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


def error_path(orders: WorkerOrders) -> Path:
    """Where the process writes warnings and its last words."""
    return orders.log_path.with_suffix(".err")
