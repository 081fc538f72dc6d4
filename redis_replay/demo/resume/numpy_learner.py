"""The demo's NumPy network as a learner."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from redis_replay.demo.grpo import DEFAULT_SETTINGS, Adam, loss_and_gradients
from redis_replay.demo.model_files import FloatArray
from redis_replay.demo.policy import WEIGHT_SHAPES, Generation, Policy
from redis_replay.demo.resume.learner import Arrays
from redis_replay.demo.rows import Batch
from redis_replay.demo.text import TokenArray


class NumpyLearner:
    """`Policy` and `Adam`; see `redis_replay.demo.resume.learner.Learner`."""

    def __init__(self, seed: int) -> None:
        self._policy = Policy.create(seed=seed)
        self._adam = Adam()

    def sample(self, prompt_ids: TokenArray, *, draws: FloatArray) -> list[Generation]:
        """Sample an answer for each row of draws."""
        return self._policy.sample_by(prompt_ids, draws=draws)

    def gradients(self, batch: Batch) -> tuple[float, Arrays]:
        """Return loss and gradients."""
        stats, gradients = loss_and_gradients(
            self._policy, batch=batch, clip_ratio=DEFAULT_SETTINGS.clip_ratio
        )
        return stats.loss, gradients

    def update(self, gradients: Mapping[str, FloatArray]) -> None:
        """Make one step of Adam."""
        self._adam.update(self._policy, gradients=gradients, settings=DEFAULT_SETTINGS)

    def weights(self) -> Arrays:
        """Return a copy of the weights."""
        return {name: array.copy() for name, array in self._policy.weights.items()}

    def optimizer(self) -> Arrays:
        """Return a copy of Adam's moments and of the number of updates."""
        moments = {"first": self._adam.first, "second": self._adam.second}
        arrays = {
            f"{moment}/{name}": array.copy()
            for moment, named in moments.items()
            for name, array in named.items()
        }
        return {**arrays, "updates": np.array(float(self._adam.updates))}

    def load_weights(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over weights."""
        self._policy = Policy(arrays)

    def load_optimizer(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over the moments."""
        for name in WEIGHT_SHAPES:
            self._adam.first[name][...] = arrays[f"first/{name}"]
            self._adam.second[name][...] = arrays[f"second/{name}"]
        self._adam.updates = int(arrays["updates"])
