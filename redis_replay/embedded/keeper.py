"""The keeper process: owns the server of one folder, and stops it when nobody needs it.

Run as a script with the standard library alone, so that it starts in milliseconds and keeps running
whatever happens to the package. It is told everything in one JSON argument::

    {"folder", "socket", "command", "idle_seconds", "temporary", "engine", "version"}

A server that dies is started again on the same socket, at most `_RESTARTS` times a minute, so that
clients which are retrying find it. The locks say who lives: ``server.lock`` is inherited by the
server and stays locked as long as it, or a child of it, runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_LOOK_SECONDS = 0.05
_RESTARTS = 5
_START_SECONDS = 20.0
_STOP_SECONDS = 10.0


class Keeper:
    """The life of one folder's server."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.folder = Path(order["folder"])
        self.child: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.stopping = False
        self.starts: list[float] = []
        self.idle_since: float | None = None

    def run(self) -> int:
        """Keep the server until it is not needed; return the exit status."""
        keeper_lock = take_lock(self.folder / "keeper.lock")
        if keeper_lock is None:
            return 0
        signal.signal(signal.SIGTERM, self._stop_soon)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            self._start_or_adopt()
            while not self.stopping:
                if self._server_is_dead():
                    self._start()
                elif self._is_unneeded() and self._may_stop():
                    break
                time.sleep(_LOOK_SECONDS)
            self._stop_server()
        except KeeperError as failure:
            (self.folder / "failure").write_text(str(failure), encoding="utf-8")
            return 1
        finally:
            (self.folder / "server.json").unlink(missing_ok=True)
            shutil.rmtree(Path(self.order["socket"]).parent, ignore_errors=True)
            if self.order["temporary"]:
                shutil.rmtree(self.folder, ignore_errors=True)
        return 0

    def _stop_soon(self, number: int, frame: object) -> None:
        self.stopping = True

    def _start_or_adopt(self) -> None:
        """Take over the server of a keeper that was killed, else start one."""
        known = read_json(self.folder / "server.json")
        if known is not None and not self._server_is_dead():
            self.order["socket"] = known["socket"]
            if answers_ping(known["socket"], seconds=_START_SECONDS):
                self.pid = known["server_pid"]
                self._write_server_file()
                return
            os.kill(known["server_pid"], signal.SIGKILL)
        deadline = time.monotonic() + _STOP_SECONDS
        while not self._server_is_dead():
            if time.monotonic() > deadline:
                raise KeeperError("another server is using the folder and does not answer")
            time.sleep(_LOOK_SECONDS)
        self._start()

    def _start(self) -> None:
        now = time.monotonic()
        self.starts = [at for at in self.starts if now - at < 60.0]
        if len(self.starts) >= _RESTARTS:
            raise KeeperError(f"the server died {_RESTARTS} times within a minute; {self._log()}")
        self.starts.append(now)
        path = self.order["socket"]
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(path).unlink(missing_ok=True)
        (self.folder / "data").mkdir(exist_ok=True)
        lock = take_lock(self.folder / "server.lock")
        if lock is None:
            raise KeeperError("another server is using the folder")
        with (self.folder / "server.log").open("ab") as log:
            self.child = subprocess.Popen(
                [*self.order["command"], "--unixsocket", path, "--dir", str(self.folder / "data")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        os.close(lock)
        self.pid = self.child.pid
        self._wait_until_ready(path)
        self._write_server_file()

    def _wait_until_ready(self, path: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not answers_ping(path):
            if self._server_is_dead():
                raise KeeperError(f"the server did not start; {self._log()}")
            if time.monotonic() > deadline and not self._is_loading(path):
                raise KeeperError(f"the server does not answer; {self._log()}")
            time.sleep(0.005)

    def _is_loading(self, path: str) -> bool:
        return ping(path).startswith(b"-LOADING")

    def _write_server_file(self) -> None:
        facts = {
            "socket": self.order["socket"],
            "server_pid": self.pid,
            "keeper_pid": os.getpid(),
            "engine": self.order["engine"],
            "version": self.order["version"],
        }
        write_json(self.folder / "server.json", facts)
        written_by = {"engine": self.order["engine"], "version": self.order["version"]}
        write_json(self.folder / "engine.json", written_by)

    def _server_is_dead(self) -> bool:
        if self.child is not None:
            self.child.poll()
        lock = try_lock(self.folder / "server.lock")
        if lock is None:
            return False
        os.close(lock)
        return True

    def _is_unneeded(self) -> bool:
        """Look after the users; a killed one leaves an unlocked file, one that left leaves none."""
        alive = False
        for path in (self.folder / "users").iterdir():
            lock = try_lock(path)
            if lock is None:
                alive = True
            else:
                path.unlink(missing_ok=True)
                os.close(lock)
                self.idle_since = time.monotonic()
        if alive or (self.folder / "stay").exists():
            self.idle_since = None
            return False
        waited = self.order["idle_seconds"]
        return self.idle_since is None or time.monotonic() - self.idle_since >= waited

    def _may_stop(self) -> bool:
        """Return whether, with all openers kept out, still nobody is there. Keeps them out then."""
        lock = try_lock(self.folder / "open.lock")
        if lock is None:
            return False
        if self._is_unneeded():
            return True
        os.close(lock)
        return False

    def _stop_server(self) -> None:
        deadline = time.monotonic() + _STOP_SECONDS
        number = signal.SIGTERM
        while not self._server_is_dead():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass
            if time.monotonic() > deadline:
                number = signal.SIGKILL
            time.sleep(_LOOK_SECONDS)

    def _log(self) -> str:
        try:
            lines = (self.folder / "server.log").read_text("utf-8", "replace").splitlines()
        except OSError:
            lines = []
        return f"its log ends with: {' | '.join(lines[-4:])}"


class KeeperError(Exception):
    """Why the server cannot be kept, for the opener to read."""


def try_lock(path: Path) -> int | None:
    """Lock a file and return its descriptor, ``None`` when somebody holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def take_lock(path: Path, *, seconds: float = 2.0) -> int | None:
    """`try_lock`, patient with those who hold the lock for an instant to see whether it is held."""
    deadline = time.monotonic() + seconds
    while (lock := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(0.002)
    return lock


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON object from a file, ``None`` when there is no readable one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a file by a JSON object, in one step."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document), encoding="utf-8")
    draft.replace(path)


def ping(path: str) -> bytes:
    """Return the answer to one PING, empty when there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1.0)
            client.connect(path)
            client.sendall(b"PING\r\n")
            return client.recv(64)
    except OSError:
        return b""


def answers_ping(path: str, *, seconds: float = 0.0) -> bool:
    """Return whether the server at a socket answers, within a while."""
    deadline = time.monotonic() + seconds
    while not (answered := ping(path).startswith(b"+PONG")) and time.monotonic() < deadline:
        time.sleep(0.01)
    return answered


def main() -> int:
    """Leave the opener's process tree, then keep the server."""
    if os.fork():
        return 0
    os.setsid()
    return Keeper(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    sys.exit(main())
