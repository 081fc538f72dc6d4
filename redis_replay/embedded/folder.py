"""Is this folder fit for a server's data? Asked before one is started; the answers are errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from redis_replay.embedded.binary import ServerBinary
from redis_replay.embedded.record import ServerRecord
from redis_replay.errors import EmbeddedServerError

_NO_PERMISSION: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_FOLDER: Final = (errno.ENOTDIR, errno.EEXIST)
_PROBE: Final = "probe.tmp"
_PROBE_BYTES: Final = 1 << 20
_DATA: Final = "appendonlydir"


@contextmanager
def naming_faults(folder: Path) -> Generator[None]:
    """Turn what the system says of a folder into an error that says what to do.

    Raises:
        EmbeddedServerError: the block raised an ``OSError``.
    """
    try:
        yield
    except OSError as fault:
        raise EmbeddedServerError(_explain(folder, fault)) from fault


def _explain(folder: Path, fault: OSError) -> str:
    reason = fault.strerror or str(fault)
    if fault.errno in _NO_PERMISSION:
        return (
            f"the folder {folder} cannot be written ({reason}). Give user {os.geteuid()} write "
            "permission, or choose another folder."
        )
    if fault.errno in _NO_ROOM:
        return (
            f"there is no room for the server's data in {folder} ({reason}). Free some space, or "
            "choose a folder on another disk."
        )
    if fault.errno in _NO_FOLDER:
        return f"{folder} is, or lies below, a file. The server's data needs a folder."
    return f"the folder {folder} cannot be used: {reason}"


def make_folder(folder: Path) -> None:
    """Create a folder, only for this user, and those above it, unless it is there.

    Raises:
        OSError: it cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def check_room(folder: Path) -> None:
    """Write as much as a young server does and take it back: root may write what others may not.

    Raises:
        OSError: it cannot be written.
    """
    probe = folder / _PROBE
    try:
        probe.write_bytes(bytes(_PROBE_BYTES))
    finally:
        probe.unlink(missing_ok=True)


def check_written_by(folder: Path, record: ServerRecord | None, binary: ServerBinary) -> None:
    """Refuse data of another engine, or of a newer version than the server to start.

    Raises:
        EmbeddedServerError: naming both.
    """
    if record is None or not (folder / _DATA).exists():
        return
    if record.engine == binary.engine and record.version[:2] <= binary.version[:2]:
        return
    wrote = f"{record.engine} {_dotted(record.version)}"
    oldest = f"{record.engine}-server {_dotted(record.version[:2])} or newer"
    raise EmbeddedServerError(
        f"the data in {folder} was written by {wrote}, and the server found here is "
        f"{binary.engine} {_dotted(binary.version)} ({binary.path}). Set REDIS_REPLAY_SERVER to a "
        f"{oldest} (it was {record.binary}), or choose another folder."
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)
