"""Locks on files, which the kernel takes back when their holder dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from redis_replay.errors import EmbeddedServerError

USERS: Final = "users.lock"
KEEPER: Final = "keeper.lock"
SERVER: Final = "server.lock"
START: Final = "start.lock"

PAUSE_SECONDS: Final = 0.002


class FileLock:
    """One opening of a lock file, which is created if need be. Not held until one of the tries."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_exclusive(self) -> bool:
        """Take the lock if nobody holds it."""
        return self._try(fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        """Take the lock if nobody holds it exclusively."""
        return self._try(fcntl.LOCK_SH)

    def release(self) -> None:
        """Give the lock back, for copies of the descriptor in forked children too."""
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close this copy of the descriptor; the lock is free when the last copy is closed."""
        os.close(self.descriptor)

    def in_place(self) -> bool:
        """Return whether the path still names the locked file, and not a later one or none."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return os.path.samestat(os.fstat(self.descriptor), self._path.stat())
        return False

    def _try(self, operation: int) -> bool:
        try:
            fcntl.flock(self.descriptor, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def acquire(path: Path, *, shared: bool, deadline: float, waiting_for: str) -> FileLock:
    """Wait for a lock until a deadline of the monotonic clock.

    Raises:
        EmbeddedServerError: it was not free in time.
        OSError: the file cannot be opened.
    """
    while True:
        lock = FileLock(path)
        with ExitStack() as undo:
            undo.callback(lock.close)
            while not (lock.try_shared() if shared else lock.try_exclusive()):
                check_deadline(deadline, waiting_for)
                time.sleep(PAUSE_SECONDS)
            if lock.in_place():
                undo.pop_all()
                return lock


@contextmanager
def starting(folder: Path, *, deadline: float) -> Generator[None]:
    """Keep every other process from starting or stopping a keeper of this folder meanwhile.

    Raises:
        EmbeddedServerError: another one did not finish in time.
        OSError: the folder is gone or cannot be written.
    """
    waiting_for = f"another process that starts or stops the server of {folder}"
    lock = acquire(folder / START, shared=False, deadline=deadline, waiting_for=waiting_for)
    try:
        yield
    finally:
        lock.close()


def is_held(path: Path) -> bool:
    """Return whether some process holds a lock exclusively. Creates nothing."""
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        return not lock.try_shared()
    finally:
        lock.close()


def is_used(path: Path) -> bool:
    """Return whether some process holds a lock at all."""
    lock = FileLock(path)
    try:
        return not lock.try_exclusive()
    finally:
        lock.close()


def check_deadline(deadline: float, waiting_for: str) -> None:
    """Raise when a deadline of the monotonic clock has passed.

    Raises:
        EmbeddedServerError: it has; the message says what was waited for.
    """
    if time.monotonic() >= deadline:
        raise EmbeddedServerError(f"gave up waiting for {waiting_for}")
