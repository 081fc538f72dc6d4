"""Short conversations over unix sockets: with the server, and between a user and the keeper."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_LONGEST_PATH_BYTES: Final = 100
_PREFIX: Final = "rr-"
_REPLY_SECONDS: Final = 1.0
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid


def make_socket_folder(wanted: Path | None) -> Path:
    """Return a folder for sockets that only this user may enter and whose path is short.

    Args:
        wanted: Its earlier path, taken again if it is free or still ours.

    Raises:
        OSError: none can be made.
    """
    if wanted is not None and wanted.name.startswith(_PREFIX):
        try:
            wanted.mkdir(mode=0o700)
        except OSError:
            pass
        else:
            return wanted
        if _is_private(wanted):
            return wanted
    roomy = len(os.fsencode(tempfile.gettempdir())) + 20 > _LONGEST_PATH_BYTES
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp" if roomy else None))


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    mine = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700
    return mine and stat.S_ISDIR(found.st_mode)


def say(path: Path, command: str, *, seconds: float = _REPLY_SECONDS) -> str | None:
    """Send one inline command to a server; return the start of its answer, ``None`` without one."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(seconds)
            link.connect(str(path))
            link.sendall(command.encode() + b"\r\n")
            return link.recv(16384).decode(errors="replace")
    except OSError:
        return None


def server_pid(path: Path) -> int | None:
    """Return the process that serves a socket, if one does.

    The kernel knows on Linux, also of a server that does not answer; elsewhere it is asked.
    """
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_REPLY_SECONDS)
            link.connect(str(path))
            found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            return _CREDENTIALS.unpack(found)[0] or None
        return None
    for line in (say(path, "INFO server") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "process_id":
            return int(value)
    return None


def ask_keeper(path: Path, message: dict[str, Any], *, deadline: float) -> dict[str, Any] | None:
    """Send a message to a keeper and return its answer; ``None`` when it is gone without one.

    Raises:
        TimeoutError: it is there and did not answer until the deadline of the monotonic clock.
    """
    received = b""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(max(deadline - time.monotonic(), 0.001))
            link.connect(str(path))
            link.sendall(json.dumps(message).encode() + b"\n")
            while not received.endswith(b"\n"):
                link.settimeout(max(deadline - time.monotonic(), 0.001))
                part = link.recv(4096)
                if not part:
                    return None
                received += part
    except TimeoutError:
        raise
    except OSError:
        return None
    reply: dict[str, Any] = json.loads(received)
    return reply


def listen(path: Path) -> socket.socket:
    """Return a socket on which others can connect to a path.

    Raises:
        OSError: the path cannot be taken.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def receive(listener: socket.socket) -> tuple[socket.socket, dict[str, Any] | None]:
    """Accept a connection; return it and its message, or ``None`` if none comes at once."""
    link, _ = listener.accept()
    link.settimeout(_REPLY_SECONDS)
    received = b""
    with suppress(OSError, ValueError):
        while not received.endswith(b"\n"):
            part = link.recv(4096)
            if not part:
                return link, None
            received += part
        message: dict[str, Any] = json.loads(received)
        return link, message
    return link, None


def answer(links: list[socket.socket], reply: dict[str, Any] | None) -> None:
    """Send a reply to all, or hang up without one, and forget them."""
    for link in links:
        with suppress(OSError), link:
            if reply is not None:
                link.sendall(json.dumps(reply).encode() + b"\n")
    links.clear()
