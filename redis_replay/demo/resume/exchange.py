"""What the ranks of a resume run tell each other, through files: the batch, and gradients.

The trainer, rank 0, says which batch it has claimed under which epoch. Each rank computes the
gradients of its slice and writes them to a file of that batch. The trainer reads them, and the
sum is taken in the order of the ranks, so its bits do not depend on who was first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import anyio
import numpy as np

from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.model_files import FloatArray, load_arrays, save_arrays
from redis_replay.demo.resume.learner import Arrays
from redis_replay.demo.settings import DEADLINE_SECONDS

_WORD: Final = "word.json"
_LOSS: Final = "loss"
_GRADIENT: Final = "gradient/"
_LOOK_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class Word:
    """The batch that all ranks are to train on.

    Attributes:
        epoch: Number of the trainer's session.
        batch: Number of its claim.
        step: The step, and the weight version that the gradients are taken at.
        is_last: Whether there is none: the run has made its steps.
    """

    epoch: int
    batch: int
    step: int
    is_last: bool = False


@dataclass(frozen=True)
class Exchange:
    """The folder in which the ranks meet."""

    folder: Path

    def tell(self, word: Word) -> None:
        """Say the word; it replaces the one before, whole."""
        written = self.folder / f".{_WORD}.tmp"
        written.write_text(json.dumps(asdict(word)), encoding="utf-8")
        written.replace(self.folder / _WORD)

    def hear(self) -> Word | None:
        """Return the newest word, ``None`` before the first."""
        try:
            return Word(**json.loads((self.folder / _WORD).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def hand_in(
        self, word: Word, rank: int, *, loss: float, gradients: Mapping[str, FloatArray]
    ) -> None:
        """Write what a rank has computed for a batch, whole and durable."""
        arrays = {_GRADIENT + name: array for name, array in gradients.items()}
        save_arrays(self._path(word, rank), arrays={**arrays, _LOSS: np.array(loss)})

    async def collect(self, word: Word, rank: int) -> tuple[float, Arrays]:
        """Wait for what a rank computes for a batch.

        Raises:
            DemoFailed: it did not come.
        """
        path = self._path(word, rank)
        with anyio.move_on_after(DEADLINE_SECONDS):
            while not path.exists():
                await anyio.sleep(_LOOK_SECONDS)
        if not path.exists():
            raise DemoFailed(f"rank {rank} never wrote {path}")
        arrays = load_arrays(path)
        loss = float(arrays.pop(_LOSS))
        return loss, {name.removeprefix(_GRADIENT): array for name, array in arrays.items()}

    def clear(self) -> None:
        """Remove all gradients; their step is committed."""
        for path in self.folder.glob("*.npz"):
            path.unlink(missing_ok=True)

    def _path(self, word: Word, rank: int) -> Path:
        return self.folder / f"gradients-{word.epoch}-{word.batch}-{rank}.npz"
