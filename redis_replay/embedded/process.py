"""The server of one folder as a process: started by us, or found running without a keeper."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

from redis_replay.embedded.locks import PAUSE_SECONDS, SERVER, FileLock, is_held
from redis_replay.embedded.sockets import say, server_pid

_STOP_SECONDS: Final = 8.0


class AdoptedServer:
    """A server that is not our child: its number could be another's by the time it is used."""

    def __init__(self, socket: Path, pid: int) -> None:
        self._socket = socket
        self.pid = pid
        self._handle = _hold(pid)
        if self._handle is not None and server_pid(socket) != pid:
            self.close()  # it ended before it was held

    def send_signal(self, number: int) -> None:
        """Send a signal, if it is certain who gets it."""
        with suppress(ProcessLookupError):
            if sys.platform == "linux" and self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif server_pid(self._socket) == self.pid:
                os.kill(self.pid, number)

    def close(self) -> None:
        """Let go of the process."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


def _hold(pid: int) -> int | None:
    if sys.platform == "linux":
        with suppress(OSError):  # some sandboxes do not have it
            return os.pidfd_open(pid)
    return None


class ServerProcess:
    """At most one server runs on a folder: it inherits the lock that it was started under.

    Attributes:
        is_loading: Whether it last said that it still reads its data.
    """

    def __init__(self, folder: Path, socket: Path) -> None:
        self._folder = folder
        self._socket = socket
        self._child: subprocess.Popen[bytes] | None = None
        self._adopted: AdoptedServer | None = None
        self.is_loading = False

    @property
    def pid(self) -> int | None:
        """Process of the server that `begin` started or found."""
        found = self._child or self._adopted
        return None if found is None else found.pid

    @property
    def adopted(self) -> bool:
        """Whether that server was found."""
        return self._adopted is not None

    def begin(self, *, binary: str, flags: Sequence[str], log: IO[bytes]) -> bool:
        """Start the server, or adopt the one that runs; ``False`` if that one does not answer.

        Raises:
            OSError: the program cannot be started.
        """
        lock = FileLock(self._folder / SERVER)
        try:
            if lock.try_exclusive():
                self._child = self._start(binary, flags, log, lock)
                return True
        finally:
            lock.close()
        pid = server_pid(self._socket)
        self._adopted = None if pid is None else AdoptedServer(self._socket, pid)
        return self._adopted is not None

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
        if self._adopted is not None:
            self._adopted.close()
        self._child = self._adopted = None
        self.is_loading = False

    def is_ready(self) -> bool:
        """Return whether the server has read its data and serves."""
        said = say(self._socket, "PING") or ""
        self.is_loading = said.startswith("-LOADING")
        return said.startswith("+PONG")

    def stop(self) -> bool:
        """End the server, politely and then by force; return whether it has ended."""
        for force in (signal.SIGTERM, signal.SIGKILL):
            if self.has_ended():
                break
            target = self._child or self._adopted
            if target is not None:
                target.send_signal(force)
            deadline = time.monotonic() + _STOP_SECONDS
            while not self.has_ended() and time.monotonic() < deadline:
                time.sleep(PAUSE_SECONDS)
        return self.has_ended()
