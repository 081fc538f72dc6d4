"""The model checkpoint: learner, losses, and the weights that groups under way are generated with.

One file per saved step, durable before the store hears of the step. It holds the weights of
the last ``lookahead + 1`` versions, so that what a crash left to be generated again can be (D39).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from redis_replay.bookmark import Bookmark
from redis_replay.demo.model_files import FloatArray, load_arrays, save_arrays
from redis_replay.demo.resume.learner import Arrays, Learner

_LOSSES: Final = "losses"
_BOOKMARK: Final = "bookmark"
_OPTIMIZER: Final = "optimizer/"
_VERSION: Final = "version/{:06d}/"
_PATTERN: Final = "step-*.npz"


@dataclass
class Model:
    """A learner in training.

    Attributes:
        step: Steps that it has made; also its weight version.
        losses: Loss of each of these steps.
        versions: Weights of the last versions, by version; the newest is that of `step`.
        bookmark: Where the store was when the model was saved, ``None`` before the first step.
    """

    step: int
    learner: Learner
    losses: list[float] = field(default_factory=list[float])
    versions: dict[int, Arrays] = field(default_factory=dict[int, Arrays])
    bookmark: Bookmark | None = None

    def make_step(self, loss: float, gradients: Mapping[str, FloatArray], *, keep: int) -> None:
        """Update the learner and keep the weights of so many versions."""
        self.learner.update(gradients)
        self.step += 1
        self.losses.append(loss)
        self.keep_version(keep)

    def keep_version(self, keep: int) -> None:
        """Take the present weights into the versions, and drop the oldest beyond so many."""
        self.versions[self.step] = self.learner.weights()
        for version in [known for known in self.versions if known <= self.step - keep]:
            del self.versions[version]

    def save(self, folder: Path) -> None:
        """Write the model to its file, whole or not at all, and durable on return."""
        arrays = {_OPTIMIZER + name: array for name, array in self.learner.optimizer().items()}
        for version, weights in self.versions.items():
            prefix = _VERSION.format(version)
            arrays |= {prefix + name: array for name, array in weights.items()}
        arrays[_LOSSES] = np.array(self.losses, dtype=np.float64)
        if self.bookmark is not None:
            arrays[_BOOKMARK] = np.array(list(self.bookmark.to_bytes()), dtype=np.float64)
        save_arrays(model_path(folder, self.step), arrays=arrays)

    @classmethod
    def load(cls, folder: Path, step: int, learner: Learner) -> Model:
        """Read the model of a step into an untrained learner.

        Raises:
            ValueError: the file is damaged or of another network; the message names it.
        """
        path = model_path(folder, step)
        arrays = load_arrays(path)
        try:
            losses = arrays.pop(_LOSSES).tolist()
            packed = arrays.pop(_BOOKMARK, None)
            bookmark = None if packed is None else Bookmark.from_bytes(bytes(map(int, packed)))
            optimizer = {
                name.removeprefix(_OPTIMIZER): arrays.pop(name)
                for name in list(arrays)
                if name.startswith(_OPTIMIZER)
            }
            versions: dict[int, Arrays] = {}
            for name, array in arrays.items():
                _, version, weight = name.split("/", 2)
                versions.setdefault(int(version), {})[weight] = array
            learner.load_weights(versions[step])
            learner.load_optimizer(optimizer)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} holds no model of this kind: {error}") from error
        return cls(step, learner, losses, versions, bookmark)


def model_path(folder: Path, step: int) -> Path:
    """Return where the model of a step is."""
    return folder / f"step-{step:06d}.npz"


def saved_steps(folder: Path) -> list[int]:
    """Return the steps of which there is a model, in order."""
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(_PATTERN))


def digest(path: Path) -> str:
    """Return a digest over name, shape and bytes of every array in a file but the bookmark."""
    found = hashlib.sha256()
    arrays = load_arrays(path)
    arrays.pop(_BOOKMARK, None)
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.shape}\n".encode())
        found.update(array.tobytes())
    return found.hexdigest()
