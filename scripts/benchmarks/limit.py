"""What one connection carries without a client library: a C program, built once (`limit.c`)."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

SET: Final = "set"
GET: Final = "get"
_SOURCE = Path(__file__).with_name("limit.c")


@dataclass(frozen=True)
class Limit:
    """The program, talking to one server."""

    program: Path
    socket: Path

    async def seconds(self, verb: str, prefix: str, first: int, count: int, size: int) -> float:
        """Return how long so many commands took, one after the other, on keys of a prefix."""
        words = (self.program, self.socket, verb, prefix, first, count, size)
        done = await anyio.run_process([str(word) for word in words])
        return float(done.stdout)


NO_COMPILER: Final = "the limit needs a C compiler named cc; on Debian: apt-get install gcc"


def build_limit(folder: Path) -> Path | None:
    """Compile the program into a folder; ``None`` where there is no compiler.

    Raises:
        CalledProcessError: the compiler refuses it.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    program = folder / "limit"
    subprocess.run([compiler, "-O2", "-o", program, _SOURCE], check=True)
    return program
