"""The keeper: a small process per folder that owns the server and outlives all its users.

It is nobody's child, so neither the end of the process that started it nor a Ctrl-C in its terminal
reaches it or the server. It answers on a control socket, one JSON object a line:

``join``   the server's socket and process, once it is ready
``leave``  whether this was the last user; then the answer comes when the server has stopped
``keep``   the server stays without users from now on
``stop``   the answer comes when the server has stopped, whoever uses it
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final

from redis_replay.embedded.flags import server_flags, stricter
from redis_replay.embedded.locks import KEEPER, SERVER, USERS, FileLock, is_held
from redis_replay.embedded.log import ServerLog
from redis_replay.embedded.orders import KeeperOrders
from redis_replay.embedded.process import ServerProcess
from redis_replay.embedded.record import CONTROL_SOCKET, RECORD, SERVER_SOCKET, write_record
from redis_replay.embedded.sockets import answer, listen, make_socket_folder, receive, say

_STARTING_POLL_SECONDS: Final = 0.004
_READY_POLL_SECONDS: Final = 0.25
_LOCK_SECONDS: Final = 1.0
_MOST_DEATHS: Final = 5
_DEATHS_SECONDS: Final = 60.0


class Keeper:
    """One run of the keeper of one folder; holds the folder's keeper lock already."""

    def __init__(self, orders: KeeperOrders, *, lock: FileLock, listener: socket.socket) -> None:
        self._folder = orders.folder
        self._lock = lock
        self._users = FileLock(self._folder / USERS)
        self._idle_seconds = orders.idle_seconds
        self._sockets = Path(listener.getsockname()).parent
        server_socket = self._sockets / SERVER_SOCKET
        self._record = replace(
            orders.record,
            socket=str(server_socket),
            pid=None,
            started=None,
            keeper_pid=os.getpid(),
        )
        self._server = ServerProcess(self._folder, server_socket)
        self._log = ServerLog(self._folder)
        self._listener = listener
        self._wake = _wake_on_signals(self._hear_signal)
        self._joining: list[socket.socket] = []
        self._ending: list[socket.socket] = []
        self._begun = self._ready = self._was_ready = False
        self._deaths: deque[float] = deque()
        self._unused_since: float | None = None
        self._end_reason: str | None = None
        self._failure: str | None = None
        write_record(self._folder, self._record)

    def run(self) -> None:
        """Serve until the server is not needed any more, or cannot be kept running."""
        os.dup2(self._log.file.fileno(), sys.stdout.fileno())
        os.dup2(self._log.file.fileno(), sys.stderr.fileno())
        while self._end_reason is None:
            self._tend_server()
            self._hear(self._poll_seconds())
            self._look_for_users()
        self._log.note(f"ends: {self._end_reason}")
        self._end()

    def _tend_server(self) -> None:
        if not self._begun:
            self._begin_server()
        elif self._server.has_ended():
            self._count_death()
        elif (self._joining or not self._ready) and self._server.is_ready():
            self._welcome()

    def _welcome(self) -> None:
        if not self._ready and self._server.adopted:
            self._set_appendfsync()
        self._ready = self._was_ready = True
        answer(self._joining, {"socket": self._record.socket, "pid": self._server.pid})

    def _begin_server(self) -> None:
        self._log.mark()
        flags = server_flags(appendfsync=self._record.appendfsync)
        try:
            self._begun = self._server.begin(
                binary=self._record.binary, flags=flags, log=self._log.file
            )
        except OSError as fault:
            self._fail(f"the server {self._record.binary} cannot be started: {fault}")
            return
        if self._begun:
            self._was_ready |= self._server.adopted
            started = datetime.now(UTC).isoformat(timespec="seconds")
            self._keep_record(pid=self._server.pid, started=started)

    def _count_death(self) -> None:
        self._begun = self._ready = False
        self._server.forget()
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > _DEATHS_SECONDS:
            self._deaths.popleft()
        if not self._was_ready:
            self._fail(f"the server {self._record.binary} ended at its start{self._log.tail()}")
        elif len(self._deaths) > _MOST_DEATHS:
            self._fail(f"the server died {len(self._deaths)} times in a minute{self._log.tail()}")
        else:
            self._log.note("the server died; it is started again")

    def _poll_seconds(self) -> float:
        if self._joining or not self._ready:
            return _STARTING_POLL_SECONDS
        return min(_READY_POLL_SECONDS, self._idle_seconds / 4)

    def _hear(self, seconds: float) -> None:
        readable, _, _ = select.select([self._listener, self._wake], [], [], seconds)
        if self._wake in readable:
            self._wake.recv(4096)
        if self._listener in readable:
            link, message = receive(self._listener)
            if message is None:
                link.close()
                return
            try:
                self._obey(message, link)
            except (KeyError, TypeError, ValueError) as fault:
                answer([link], {"error": f"the keeper is of another version: {fault!r}"})

    def _obey(self, message: dict[str, Any], link: socket.socket) -> None:
        verb = message["verb"]
        if verb == "join":
            self._sync_at_least(message["appendfsync"])
            self._idle_seconds = float(message["idle_seconds"])
            self._joining.append(link)
        elif verb == "keep":
            self._keep_record(keep_running=True)
            answer([link], {"kept": True})
        elif verb == "stop":
            self._ending.append(link)
            self._end_reason = "it was told to stop"
        elif verb == "leave":
            self._let_go(link)
        else:
            raise ValueError(verb)

    def _let_go(self, link: socket.socket) -> None:
        if not self._record.keep_running and self._users.try_exclusive():
            self._ending.append(link)
            self._end_reason = "the last user has left"
        else:
            answer([link], {"stopped": False})

    def _sync_at_least(self, appendfsync: Any) -> None:
        wanted = stricter(self._record.appendfsync, appendfsync)
        if wanted != self._record.appendfsync:
            self._keep_record(appendfsync=wanted)
            if self._begun:
                self._set_appendfsync()

    def _set_appendfsync(self) -> None:
        say(Path(self._record.socket), f"CONFIG SET appendfsync {self._record.appendfsync}")

    def _look_for_users(self) -> None:
        if self._end_reason is not None:
            return
        if not (self._lock.in_place() and self._users.in_place()):
            self._end_reason = "the folder, or a lock in it, was removed"
            return
        if not (self._folder / RECORD).exists():
            self._keep_record()
        if not self._server.is_loading and self._users.try_exclusive():
            now = time.monotonic()
            self._unused_since = now if self._unused_since is None else self._unused_since
            unused_seconds = now - self._unused_since
            if unused_seconds >= self._idle_seconds and not self._record.keep_running:
                # The lock stays taken: who opens the folder now waits for a new keeper.
                self._end_reason = f"nobody used the server for {self._idle_seconds} s"
            else:
                self._users.release()
        else:
            self._unused_since = None

    def _hear_signal(self, number: int, frame: FrameType | None) -> None:
        self._end_reason = f"it received signal {number}"

    def _fail(self, reason: str) -> None:
        self._end_reason = self._failure = reason

    def _end(self) -> None:
        self._listener.close()
        stopped: dict[str, Any] = {"stopped": True}
        if self._begun and not self._server.stop():
            stopped = {"error": f"process {self._server.pid}, the server, does not end"}
        elif not self._begun and is_held(self._folder / SERVER):
            stopped = {
                "error": f"a server that does not answer holds {self._folder / SERVER}; stop it "
                "by hand (fuser names it)"
            }
        if self._lock.in_place():  # else the folder at this path is another keeper's
            with suppress(OSError):
                ended = replace(self._record, pid=None, started=None, keeper_pid=None)
                write_record(self._folder, ended)
            if self._record.temporary:
                shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._sockets, ignore_errors=True)
        self._lock.close()
        self._users.close()
        answer(self._ending, stopped)
        answer(self._joining, {"error": self._failure} if self._failure else None)

    def _keep_record(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        try:
            write_record(self._folder, self._record)
        except OSError as fault:
            self._log.note(f"the record cannot be written: {fault}")


def _wake_on_signals(handler: Callable[[int, FrameType | None], None]) -> socket.socket:
    reading, writing = socket.socketpair()
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach())
    signal.signal(signal.SIGCHLD, _only_wake)
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, handler)
    return reading


def _only_wake(number: int, frame: FrameType | None) -> None:
    """Let a signal interrupt the wait, and nothing else."""


def _say_to_opener(reply: dict[str, Any]) -> None:
    with suppress(OSError):
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


def main(argument: str) -> int:
    """Leave the opener's process tree, take the folder, tell the opener, and keep the server."""
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the opener's thread may have blocked some
    orders = KeeperOrders.from_argument(argument)
    try:
        keeper = _take_folder(orders)
    except OSError as fault:
        _say_to_opener({"errno": fault.errno, "error": fault.strerror})
        return 1
    _say_to_opener({"listening": True})  # this one, or that of an opener who was killed meanwhile
    if keeper is not None:
        keeper.run()
    return 0


def _take_folder(orders: KeeperOrders) -> Keeper | None:
    lock = FileLock(orders.folder / KEEPER)
    deadline = time.monotonic() + _LOCK_SECONDS
    while not lock.try_exclusive():  # an opener may be looking who holds it
        if time.monotonic() > deadline:
            return None
        time.sleep(_STARTING_POLL_SECONDS)
    wanted = Path(orders.record.socket).parent if orders.record.socket else None
    listener = _listen(wanted)
    try:
        return Keeper(orders, lock=lock, listener=listener)
    except OSError:
        shutil.rmtree(Path(listener.getsockname()).parent, ignore_errors=True)
        raise


def _listen(wanted: Path | None) -> socket.socket:
    try:
        sockets = make_socket_folder(wanted)
        try:
            return listen(sockets / CONTROL_SOCKET)
        except OSError:
            shutil.rmtree(sockets, ignore_errors=True)
            raise
    except OSError as fault:  # without a number: it is no fault of the data's folder
        raise OSError(None, f"no socket can be made for its server: {fault}") from fault
