"""``server.log``: what the server and its keeper have to say."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

LOG: Final = "server.log"
_LOG_BYTES: Final = 1 << 20
_TAIL_LINES: Final = 4
_TAIL_BYTES: Final = 4096


class ServerLog:
    """The log of one folder; emptied when it is opened and has grown long.

    Attributes:
        file: For the server to write to.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOG
        self.file = self._path.open("ab")
        if self.file.tell() > _LOG_BYTES:
            self.file.truncate(0)
        self._mark = 0

    def mark(self) -> None:
        """Remember where the log ends now, for `tail`."""
        self._mark = self.file.seek(0, os.SEEK_END)

    def note(self, text: str) -> None:
        """Add a line of the keeper's, if there is room."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with suppress(OSError):
            self.file.write(f"keeper {os.getpid()} {now} {text}\n".encode())
            self.file.flush()

    def tail(self) -> str:
        """Return the last lines since the mark, as the end of a sentence."""
        with self._path.open("rb") as written:
            size = os.fstat(written.fileno()).st_size
            written.seek(max(self._mark, size - _TAIL_BYTES))
            lines = written.read().decode(errors="replace").splitlines()
        said = "; ".join(line.strip() for line in lines[-_TAIL_LINES:] if line.strip())
        return f" and said: {said}" if said else " and said nothing"
