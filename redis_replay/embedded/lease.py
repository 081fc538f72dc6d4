"""Opening a folder's server, holding it, and leaving it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from redis_replay.embedded import keeper
from redis_replay.embedded.binary import ServerBinary, find_server, server_flags
from redis_replay.errors import EmbeddedServerError, UnsupportedUrl

DEFAULT_IDLE_SECONDS: Final = 60.0
_OPEN_SECONDS: Final = 30.0
_LEAVE_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.01
_LONGEST_SOCKET_PATH: Final = 100
_OPTIONS: Final = {"appendfsync": str, "idle_seconds": float}


class EmbeddedLease:
    """One user's hold on a folder's server; leave it with `close` or as a context manager.

    Attributes:
        url: Address of the server, ``unix://...``.
        directory: The folder.
    """

    def __init__(self, url: str, directory: Path, user_file: Path, descriptor: int) -> None:
        self.url = url
        self.directory = directory
        self._user_file = user_file
        self._descriptor: int | None = descriptor

    @property
    def server_pid(self) -> int:
        """Process id of the server as it runs now.

        Raises:
            EmbeddedServerError: it does not run.
        """
        known = keeper.read_json(self.directory / "server.json")
        if known is None:
            raise EmbeddedServerError(f"no server runs in {self.directory}")
        return int(known["server_pid"])

    def close(self) -> None:
        """Leave. The last user stops the server and waits until it has ended. Repeatable."""
        if self._descriptor is None:
            return
        self._user_file.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = None
        users = self.directory / "users"
        if users.is_dir() and not any(users.iterdir()) and not (self.directory / "stay").exists():
            _wait_until_unlocked(self.directory / "keeper.lock", seconds=_LEAVE_SECONDS)

    def __enter__(self) -> EmbeddedLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def parse_embedded_url(url: str) -> tuple[Path | None, dict[str, Any]]:
    """Split ``embedded:///folder?appendfsync=always&idle_seconds=60`` into folder and options.

    Without a folder the server is temporary and its data goes with its last user.

    Raises:
        UnsupportedUrl: a host, a relative folder or an unknown option.
    """
    parts = urlsplit(url)
    if parts.scheme != "embedded" or parts.netloc:
        raise UnsupportedUrl(
            f"{url!r} must read embedded:///absolute/folder or embedded:// (a temporary one)"
        )
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise UnsupportedUrl(f"{url!r} has the unknown option {name!r}; known: {[*_OPTIONS]}")
        try:
            options[name] = _OPTIONS[name](value)
        except ValueError:
            raise UnsupportedUrl(f"{url!r}: option {name!r} cannot be {value!r}") from None
    path = unquote(parts.path)
    return (Path(path) if path not in ("", "/") else None), options


def open_embedded(
    directory: Path | None,
    *,
    appendfsync: str = "everysec",
    idle_seconds: float = DEFAULT_IDLE_SECONDS,
    stay: bool = False,
) -> EmbeddedLease:
    """Open the server of a folder, starting it if none runs there. Blocks; call it in a thread.

    Args:
        directory: The folder, made if absent; ``None`` for a temporary one.
        appendfsync: When the append-only file reaches the disk: ``always``, ``everysec`` or ``no``.
            Only the process that starts the server decides.
        idle_seconds: How long the server waits for a new user after its users were all killed.
        stay: Whether the server stays up without users until `stop_embedded`.

    Raises:
        EmbeddedServerError: no server binary, an unusable folder, or the server does not start.
        ValueError: an unknown ``appendfsync``.
    """
    flags = server_flags(appendfsync=appendfsync)
    temporary = directory is None
    folder = Path(tempfile.mkdtemp(prefix="redis-replay-")) if directory is None else directory
    folder = folder.absolute()
    _require_writable(folder)
    with _only_opener(folder):
        if stay:
            (folder / "stay").touch()
        user_file, descriptor = _register_user(folder)
        try:
            known = _running(folder)
            if known is None:
                known = _start_keeper(folder, flags, idle_seconds=idle_seconds, temporary=temporary)
        except BaseException:
            user_file.unlink(missing_ok=True)
            os.close(descriptor)
            raise
    return EmbeddedLease(f"unix://{known['socket']}?db=0", folder, user_file, descriptor)


def stop_embedded(directory: Path) -> bool:
    """Stop the server of a folder, whoever uses it, and return whether one ran. Blocks.

    Raises:
        EmbeddedServerError: it does not end.
    """
    folder = directory.absolute()
    (folder / "stay").unlink(missing_ok=True)
    known = keeper.read_json(folder / "server.json")
    locks = [folder / name for name in ("keeper.lock", "server.lock")]
    held = [path.exists() and _is_locked(path) for path in locks]
    if known is None or not any(held):
        return False
    pid = known["keeper_pid"] if held[0] else known["server_pid"]
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    for path in locks:
        if not _wait_until_unlocked(path, seconds=_LEAVE_SECONDS):
            raise EmbeddedServerError(f"the server in {folder} (process {pid}) does not end")
    return True


def _require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, by writing: a permission bit says too little."""
    probe = folder / f".write-test-{os.getpid()}"
    try:
        (folder / "users").mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x" * 4096)
        probe.unlink()
    except OSError as failure:
        reason = {
            errno.ENOSPC: "its disk is full",
            errno.EDQUOT: "the disk quota is used up",
            errno.EFBIG: "a file-size limit forbids it",
            errno.ENOTDIR: "it is a file, or below one",
            errno.EEXIST: "it is a file, or below one",
            errno.EROFS: "it is on a read-only file system",
        }.get(failure.errno or 0, failure.strerror)
        raise EmbeddedServerError(f"the folder {folder} cannot be written: {reason}") from failure


@contextmanager
def _only_opener(folder: Path) -> Iterator[None]:
    deadline = time.monotonic() + _OPEN_SECONDS
    while (lock := keeper.try_lock(folder / "open.lock")) is None:
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"another process has been opening {folder} for too long")
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        os.close(lock)


def _register_user(folder: Path) -> tuple[Path, int]:
    path = folder / "users" / f"{os.getpid()}-{secrets.token_hex(4)}"
    draft = folder / f".{path.name}"
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    draft.rename(path)  # it is locked before the keeper can see it
    return path, descriptor


def _running(folder: Path) -> dict[str, Any] | None:
    """Return the running server's facts, ``None`` when no keeper lives."""
    deadline = time.monotonic() + _OPEN_SECONDS
    while _is_locked(folder / "keeper.lock"):
        known = keeper.read_json(folder / "server.json")
        if known is not None and keeper.answers_ping(known["socket"]):
            return known
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"the server in {folder} does not answer")
        time.sleep(_LOOK_SECONDS)
    return None


def _start_keeper(
    folder: Path, flags: tuple[str, ...], *, idle_seconds: float, temporary: bool
) -> dict[str, Any]:
    binary = find_server()
    _require_readable(folder, binary)
    (folder / "failure").unlink(missing_ok=True)
    socket_folder = tempfile.mkdtemp(prefix="rr-")
    if len(socket_folder) > _LONGEST_SOCKET_PATH:
        Path(socket_folder).rmdir()
        socket_folder = tempfile.mkdtemp(prefix="rr-", dir="/tmp")
    order = {
        "folder": str(folder),
        "socket": f"{socket_folder}/s",
        "command": [binary.path, "--port", "0", "--unixsocketperm", "700", *flags],
        "idle_seconds": idle_seconds,
        "temporary": temporary,
        "engine": binary.engine,
        "version": list(binary.version),
    }
    with (folder / "keeper.log").open("ab") as log:
        subprocess.run(
            [sys.executable, "-I", keeper.__file__, json.dumps(order)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=True,
        )
    deadline = time.monotonic() + _OPEN_SECONDS
    while time.monotonic() < deadline:
        known = keeper.read_json(folder / "server.json")
        if known is not None and keeper.answers_ping(known["socket"]):
            return known
        if (folder / "failure").exists():
            reason = (folder / "failure").read_text(encoding="utf-8")
            raise EmbeddedServerError(f"the server in {folder} cannot be started: {reason}")
        time.sleep(_LOOK_SECONDS / 4)
    raise EmbeddedServerError(f"the server in {folder} was not ready within {_OPEN_SECONDS:g} s")


def _require_readable(folder: Path, binary: ServerBinary) -> None:
    """Refuse data of another engine or of a newer version than the binary's."""
    known = keeper.read_json(folder / "engine.json")
    if known is None:
        return
    wrote = f"{known['engine']} {'.'.join(map(str, known['version']))}"
    newer = tuple(known["version"][:2]) > binary.version[:2]
    if known["engine"] != binary.engine or newer:
        raise EmbeddedServerError(
            f"the data in {folder} was written by {wrote}, and the server found here is "
            f"{binary.name} ({binary.path}). Name a matching one in REDIS_REPLAY_SERVER, or choose "
            "another folder."
        )


def _is_locked(path: Path) -> bool:
    lock = keeper.try_lock(path)
    if lock is None:
        return path.exists()
    os.close(lock)
    return False


def _wait_until_unlocked(path: Path, *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while path.exists() and _is_locked(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True
