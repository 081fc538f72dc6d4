"""Open a folder's server, use it, and leave."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from redis_replay.embedded.flags import APPENDFSYNC, AppendFsync
from redis_replay.embedded.folder import make_folder, naming_faults
from redis_replay.embedded.launch import has_keeper, has_server, start_keeper, tell_keeper
from redis_replay.embedded.locks import (
    KEEPER,
    PAUSE_SECONDS,
    USERS,
    FileLock,
    acquire,
    check_deadline,
    is_used,
    starting,
)
from redis_replay.embedded.record import read_record
from redis_replay.errors import EmbeddedServerError

IDLE_SECONDS: Final = 60.0
DEADLINE_SECONDS: Final = 10.0
_LEAVE_SECONDS: Final = 20.0


class EmbeddedLease:
    """One use of a folder's server. The server stays at least until `close`, or this process ends.

    Attributes:
        directory: Absolute path of the folder.
        url: Address for a client: ``unix:///tmp/rr-x/s?db=0``. The same after the server's restart.
    """

    def __init__(self, directory: Path, *, socket: str, users: FileLock) -> None:
        self.directory = directory
        self.url = f"unix://{quote(socket)}?db=0"
        self._users = users
        self._opener = os.getpid()
        self._closed = False
        atexit.register(self.close)

    @property
    def server_pid(self) -> int:
        """Process of the server as it runs now.

        Raises:
            EmbeddedServerError: it does not run at this moment.
        """
        record = read_record(self.directory)
        if record is None or record.pid is None:
            raise EmbeddedServerError(f"no server runs in {self.directory}")
        return record.pid

    def keep_running(self) -> None:
        """Let the server stay without users, until `stop_embedded`. May be repeated.

        Raises:
            EmbeddedServerError: the keeper is gone.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        if tell_keeper(self.directory, {"verb": "keep"}, deadline=deadline) is None:
            raise EmbeddedServerError(f"the server of {self.directory} has no keeper; open it anew")

    def close(self) -> None:
        """Leave; the last one waits until the server has stopped. May be repeated.

        Raises:
            EmbeddedServerError: this was the last user, and the server cannot be stopped.
        """
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        if os.getpid() != self._opener:
            self._users.close()
            return
        self._users.release()
        self._users.close()
        _leave(self.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_embedded(
    directory: Path | None,
    *,
    appendfsync: AppendFsync = "everysec",
    idle_seconds: float = IDLE_SECONDS,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> EmbeddedLease:
    """Use the server of a folder; start it if it does not run. Blocks until it is ready.

    Args:
        directory: Where the data is; created if need be. ``None``: a temporary folder, removed when
            its last user leaves.
        appendfsync: How often the append-only file is synced, at least; the strictest user decides.
        idle_seconds: How long the server stays after all its users were killed; the latest opener
            decides.
        deadline_seconds: How long to wait for the server to be ready.

    Raises:
        ValueError: an unknown ``appendfsync``, or seconds that are not above zero.
        EmbeddedServerError: no server program; a folder that cannot be written, is full, or was
            written by another engine or a newer version; a server that does not start in time.
    """
    if appendfsync not in APPENDFSYNC:
        raise ValueError(f"appendfsync must be one of {', '.join(APPENDFSYNC)}: {appendfsync!r}")
    if not (idle_seconds > 0 and deadline_seconds > 0):
        raise ValueError("idle_seconds and deadline_seconds must be above zero")
    deadline = time.monotonic() + deadline_seconds
    if directory is not None:
        folder = directory.absolute()
        with naming_faults(folder):
            return _open(folder, appendfsync, idle_seconds, deadline, temporary=False)
    with naming_faults(Path(os.environ.get("TMPDIR", "/tmp"))):
        folder = Path(tempfile.mkdtemp(prefix="redis-replay-"))
    try:
        with naming_faults(folder):
            return _open(folder, appendfsync, idle_seconds, deadline, temporary=True)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _open(
    folder: Path,
    appendfsync: AppendFsync,
    idle_seconds: float,
    deadline: float,
    *,
    temporary: bool,
) -> EmbeddedLease:
    while True:
        make_folder(folder)
        with suppress(FileNotFoundError), ExitStack() as undo:  # it may vanish with another server
            users = acquire(
                folder / USERS,
                shared=True,
                deadline=deadline,
                waiting_for=f"the server of {folder} to end before it is started again",
            )
            undo.callback(users.close)
            socket = _join(folder, appendfsync, idle_seconds, deadline, temporary=temporary)
            if socket is not None:
                undo.pop_all()
                return EmbeddedLease(folder, socket=socket, users=users)
        check_deadline(deadline, f"the server of {folder} to start")
        time.sleep(PAUSE_SECONDS)


def _join(
    folder: Path,
    appendfsync: AppendFsync,
    idle_seconds: float,
    deadline: float,
    *,
    temporary: bool,
) -> str | None:
    with starting(folder, deadline=deadline):
        if not has_keeper(folder):
            start_keeper(
                folder,
                appendfsync=appendfsync,
                idle_seconds=idle_seconds,
                temporary=temporary,
                deadline=deadline,
            )
    message = {"verb": "join", "appendfsync": appendfsync, "idle_seconds": idle_seconds}
    answer = tell_keeper(folder, message, deadline=deadline)
    return None if answer is None else str(answer["socket"])


def stop_embedded(directory: Path, *, deadline_seconds: float = 2 * DEADLINE_SECONDS) -> bool:
    """Stop the server of a folder, whoever uses it; return whether one ran. May be repeated.

    Raises:
        EmbeddedServerError: it does not stop, or the folder cannot be used.
    """
    folder = directory.absolute()
    deadline = time.monotonic() + deadline_seconds
    found = False
    with _folder_may_vanish(folder):
        if not (folder / KEEPER).exists():
            return False
        with starting(folder, deadline=deadline):
            while has_keeper(folder) or has_server(folder):
                found = True
                _tell_or_replace(folder, {"verb": "stop"}, deadline)
    return found


def _leave(folder: Path) -> None:
    """Say goodbye; if the keeper was killed, see to it that an unused server ends all the same."""
    deadline = time.monotonic() + _LEAVE_SECONDS
    with _folder_may_vanish(folder):
        while tell_keeper(folder, {"verb": "leave"}, deadline=deadline) is None:
            with starting(folder, deadline=deadline):
                if not has_keeper(folder):
                    if not has_server(folder) or is_used(folder / USERS):
                        return
                    _tell_or_replace(folder, {"verb": "leave"}, deadline)
            check_deadline(deadline, f"the server of {folder} to stop")
            time.sleep(PAUSE_SECONDS)


@contextmanager
def _folder_may_vanish(folder: Path) -> Generator[None]:
    # A temporary folder goes with its server; so does the server of a folder that was removed.
    with naming_faults(folder), suppress(FileNotFoundError):
        yield


def _tell_or_replace(folder: Path, message: dict[str, str], deadline: float) -> None:
    """Tell the keeper something; where there is none, start one that adopts the server."""
    if not has_keeper(folder):
        start_keeper(
            folder,
            appendfsync=APPENDFSYNC[0],
            idle_seconds=IDLE_SECONDS,
            temporary=False,
            deadline=deadline,
        )
    if tell_keeper(folder, message, deadline=deadline) is None:
        check_deadline(deadline, f"the server of {folder} to stop")
        time.sleep(PAUSE_SECONDS)
