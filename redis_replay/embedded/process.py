"""The server of one folder as a process: started by us, or found running without a keeper."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from redis_replay.embedded.locks import PAUSE_SECONDS, SERVER, FileLock, is_held
from redis_replay.embedded.sockets import say, server_pid

_STOP_SECONDS: Final = 8.0


class ServerProcess:
    """At most one server runs on a folder: it inherits the lock that it was started under.

    Attributes:
        pid: Of the server that `begin` started or found.
        adopted: Whether it was found.
    """

    def __init__(self, folder: Path, socket: Path) -> None:
        self._folder = folder
        self._socket = socket
        self._child: subprocess.Popen[bytes] | None = None
        self.pid: int | None = None
        self.adopted = False

    def begin(self, *, binary: str, flags: Sequence[str], log: IO[bytes]) -> bool:
        """Start the server, or adopt the one that runs; ``False`` if that one does not answer.

        Raises:
            OSError: the program cannot be started.
        """
        lock = FileLock(self._folder / SERVER)
        try:
            if lock.try_exclusive():
                self._child = self._start(binary, flags, log, lock)
                self.pid, self.adopted = self._child.pid, False
                return True
        finally:
            lock.close()
        self.pid, self.adopted = server_pid(self._socket), True
        return self.pid is not None

    def _start(
        self, binary: str, flags: Sequence[str], log: IO[bytes], lock: FileLock
    ) -> subprocess.Popen[bytes]:
        place = ("--port", "0", "--unixsocket", str(self._socket), "--unixsocketperm", "700")
        return subprocess.Popen(
            [binary, *place, *flags],
            cwd=self._folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(lock.descriptor,),
        )

    def has_ended(self) -> bool:
        """Return whether the server that `begin` returned ``True`` for is gone."""
        if self._child is not None:
            return self._child.poll() is not None
        return not is_held(self._folder / SERVER)

    def forget(self) -> None:
        """Be ready for another `begin` after the end of the server."""
        self._child, self.pid = None, None

    def is_ready(self) -> bool:
        """Return whether the server has read its data and serves."""
        return (say(self._socket, "PING") or "").startswith("+PONG")

    def stop(self) -> None:
        """End the server and wait: politely, and by force when it does not listen."""
        for force in (signal.SIGTERM, signal.SIGKILL):
            if self.pid is None or self.has_ended():
                return
            with suppress(ProcessLookupError):
                os.kill(self.pid, force)
            deadline = time.monotonic() + _STOP_SECONDS
            while not self.has_ended() and time.monotonic() < deadline:
                time.sleep(PAUSE_SECONDS)
