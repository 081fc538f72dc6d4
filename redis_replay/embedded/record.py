"""``server.json``: which server wrote a folder, and where it is while it runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from redis_replay.embedded.flags import AppendFsync

RECORD: Final = "server.json"
CONTROL_SOCKET: Final = "k"
SERVER_SOCKET: Final = "s"


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """What a folder says of its server.

    Attributes:
        engine: ``redis`` or ``valkey``.
        version: Of the program that wrote the folder last.
        binary: Path of that program.
        pid: Of the server, while it runs under a keeper.
        socket: Path of the server's socket; kept over its end, so that clients find the next one.
        started: When the server started, in UTC.
        appendfsync: How often its append-only file is synced.
        temporary: Whether the folder is removed when the server stops.
        keep_running: Whether the server stays without users.
        folder_id: Device and inode of the folder; a copied folder is another one.
        keeper_pid: Of the keeper, while it runs.
    """

    engine: str
    version: tuple[int, ...]
    binary: str
    pid: int | None
    socket: str
    started: str | None
    appendfsync: AppendFsync
    temporary: bool
    keep_running: bool
    folder_id: str
    keeper_pid: int | None = None

    @property
    def control_socket(self) -> Path:
        """Path of the keeper's socket."""
        return Path(self.socket).with_name(CONTROL_SOCKET)

    @classmethod
    def from_parts(cls, parts: dict[str, Any]) -> ServerRecord:
        """Read what `dataclasses.asdict` and JSON made of a record.

        Raises:
            TypeError: parts are missing, unknown or of another type.
        """
        version: list[int] = parts.pop("version", None)
        return cls(version=tuple(version), **parts)


def folder_id(folder: Path) -> str:
    """Return what tells a folder from its copies."""
    found = folder.stat()
    return f"{found.st_dev}:{found.st_ino}"


def read_record(folder: Path) -> ServerRecord | None:
    """Return a folder's record, or ``None`` if there is none that can be read."""
    try:
        return ServerRecord.from_parts(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None


def write_record(folder: Path, record: ServerRecord) -> None:
    """Replace a folder's record in one step.

    Raises:
        OSError: it cannot be written; the old one stands.
    """
    draft = folder / f"{RECORD}.tmp"
    draft.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    draft.replace(folder / RECORD)
