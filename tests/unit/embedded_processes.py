"""What tests of the embedded server are written with: users to kill, servers to look for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Self, cast

import redis

from redis_replay.embedded.locks import KEEPER, SERVER, is_held
from redis_replay.embedded.record import ServerRecord, read_record

_USER = Path(__file__).with_name("embedded_user.py")
_NEVER = Event()


def wait_until(condition: Callable[[], bool], *, what: str, seconds: float = 10.0) -> None:
    """Wait until a condition holds; fail saying what never happened."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"within {seconds} s it never happened that {what}")
        _NEVER.wait(0.005)


class User:
    """A process that uses a folder; `kill` it, or let it `leave`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_USER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @classmethod
    def of(cls, folder: Path, **options: Any) -> User:
        """Return a process that has opened a folder."""
        user = cls()
        user.opened = user.ask("open", str(folder), options)
        return user

    opened: dict[str, Any]

    def tell(self, *words: Any) -> None:
        """Send an order without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the answer to the order sent last."""
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, *words: Any) -> Any:
        """Send an order and return the answer."""
        self.tell(*words)
        return self.answer()

    def kill(self) -> None:
        """End the process without a goodbye."""
        self._process.kill()
        self._end()

    def exit(self) -> None:
        """Let the process end as programs do, without closing what it opened."""
        self.tell("exit")
        self._process.wait(timeout=10)
        self._end()

    def _end(self) -> None:
        with self._process:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.returncode is None:
            self.kill()


def is_running(folder: Path) -> bool:
    """Return whether a folder has a keeper or a server."""
    return is_held(folder / KEEPER) or is_held(folder / SERVER)


def record_of(folder: Path) -> ServerRecord:
    """Return a folder's record, which must be there."""
    record = read_record(folder)
    assert record is not None
    return record


def kill_keeper(folder: Path) -> None:
    """Kill a folder's keeper and wait until the kernel has taken its lock."""
    keeper = record_of(folder).keeper_pid
    assert keeper is not None
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not is_held(folder / KEEPER), what="the keeper's lock was free")


def call(url: str, *command: str) -> Any:
    """Send one command on a connection of its own."""
    client = cast("Any", redis.Redis).from_url(url, decode_responses=True)
    try:
        return client.execute_command(*command)
    finally:
        client.close()


def answers(url: str) -> bool:
    """Return whether a server is ready at an address."""
    try:
        return bool(call(url, "PING"))
    except (redis.ConnectionError, redis.BusyLoadingError):
        return False
