"""What the figures depend on: machine, load, versions."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from redis_replay import __version__
from redis_replay.embedded.binary import find_server

_LIBRARIES = ("redis", "hiredis", "numpy", "msgpack", "xxhash", "anyio")


def machine_facts() -> dict[str, Any]:
    """Return processor, memory, system and load."""
    return {
        "system": platform.platform(),
        "processor": _after_colon(Path("/proc/cpuinfo"), "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "load": [round(value, 2) for value in os.getloadavg()],
        "measured": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def version_facts() -> dict[str, str]:
    """Return the versions of the package, Python, the server and the libraries on the way."""
    binary = find_server().path
    done = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return {
        "redis_replay": __version__,
        "python": platform.python_version(),
        "server": done.stdout.split(" sha=")[0].strip(),
        **{name: importlib.metadata.version(name) for name in _LIBRARIES},
    }


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _after_colon(path: Path, word: str) -> str:
    """Return what follows the colon in the first line that begins with a word."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(word)), "")
