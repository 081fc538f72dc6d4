"""Installs peers, each into an environment of its own, once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_INSTALL_SECONDS: Final = 900
_TORCH: Final = (
    *("torch==2.13.0", "numpy"),
    *("--extra-index-url", "https://download.pytorch.org/whl/cpu"),
)
"""Without the other index the package registry gives builds of several gigabytes."""


class PeerUnavailable(RuntimeError):
    """A peer cannot be installed or run here; the message says why."""


@dataclass(frozen=True)
class PeerPackage:
    """How one peer is installed and run.

    Attributes:
        name: As parts of targets are named.
        title: As people name it, with the version.
        installs: Arguments of pip, one installation after the other.
        arguments: What its worker is given.
        chooses: Whether its worker can measure choosing alone.
        target: Id of the target that it stands in, ``None`` for one that is only shown.
        home: Name of its environment; its name by default.
    """

    name: str
    title: str
    installs: tuple[tuple[str, ...], ...]
    chooses: bool = True
    target: str | None = "P13"
    home: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The worker's module."""
        return f"benchmarks.peers.of_{self.home or self.name}"


PEERS: Final = (
    PeerPackage(
        "reverb",
        "Reverb 0.14, server in a process of its own",
        (("dm-reverb[tensorflow]==0.14.0",),),
        chooses=False,
    ),
    PeerPackage(
        "ray",
        "a plain list in a Ray 2.60 actor, rows of torch tensors",
        (_TORCH, ("ray==2.60.0",)),
    ),
    PeerPackage(
        "ray of arrays",
        "the same with rows of NumPy arrays, which Ray hands out without a copy",
        (_TORCH, ("ray==2.60.0",)),
        chooses=False,
        target=None,
        home="ray",
        arguments=("arrays",),
    ),
    PeerPackage(
        "transferqueue",
        "TransferQueue 0.1.11",
        (_TORCH, ("TransferQueue==0.1.11", "ray==2.60.0")),
    ),
    PeerPackage(
        "torchrl",
        "TorchRL 0.14 memory map, in process",
        (_TORCH, ("torchrl==0.14.1",)),
        target="P14",
    ),
    PeerPackage(
        "torchrl in memory",
        "the same with the map in /dev/shm",
        (_TORCH, ("torchrl==0.14.1",)),
        target=None,
        home="torchrl",
        arguments=("/dev/shm",),
    ),
)


def installed(peer: PeerPackage, folder: Path) -> Path:
    """Install a peer into a folder below this one, unless it is there; return its interpreter.

    Raises:
        PeerUnavailable: it cannot be installed.
    """
    home = folder / (peer.home or peer.name)
    python, stamp = home / "bin" / "python", home / "installed"
    wanted = repr(peer.installs)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(home)], peer)
    for words in peer.installs:
        # An index that cannot be reached is asked once; pip goes on with what the others have.
        options = ("--quiet", "--disable-pip-version-check", "--retries", "0")
        _run([str(python), "-m", "pip", "install", *options, *words], peer)
    stamp.write_text(wanted, encoding="utf-8")
    return python


def _run(command: Sequence[str], peer: PeerPackage) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise PeerUnavailable(f"{peer.title} was not installed: {failure}") from failure
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        said = " ".join(errors or done.stderr.splitlines()[-1:])
        raise PeerUnavailable(f"{peer.title} could not be installed: {said}")
