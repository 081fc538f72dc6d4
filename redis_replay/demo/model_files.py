"""Arrays on disk: a file is there whole or not at all, and never needs pickle.

A trainer writes one file per weight version, policy and optimizer together, before it commits the
step (D28); a rollout process reads the policy from the same file.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Its stub mixes a flag of its own with the names of the arrays.
_save_npz: Final[Callable[..., None]] = np.savez


def save_arrays(path: Path, *, arrays: Mapping[str, FloatArray]) -> None:
    """Write arrays to an ``.npz`` file, whole or not at all, and durable on return."""
    written = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with written.open("wb") as stream:
            _save_npz(stream, **arrays)
            stream.flush()
            os.fsync(stream.fileno())
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load_arrays(path: Path) -> dict[str, FloatArray]:
    """Read every array of an ``.npz`` file, without pickle.

    Raises:
        ValueError: The file is damaged; the message names it.
    """
    try:
        # np.load leaves a file it opened itself open when it finds it damaged
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: np.asarray(stored[name], dtype=np.float64) for name in stored.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a model file: {error}") from error
