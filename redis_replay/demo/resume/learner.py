"""What a resume run trains, whichever library computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from redis_replay.demo.model_files import FloatArray
from redis_replay.demo.policy import Generation
from redis_replay.demo.rows import Batch
from redis_replay.demo.text import TokenArray

Arrays = dict[str, FloatArray]


class Learner(Protocol):
    """A policy with its optimizer. Equal arrays and equal inputs give equal bits.

    All arrays are ``float64``; a network of smaller numbers converts, which loses nothing.
    """

    def sample(self, prompt_ids: TokenArray, *, draws: FloatArray) -> list[Generation]:
        """Sample an answer for each row of ``draws``, ``float64[S, 8]`` in 0..1."""
        ...

    def gradients(self, batch: Batch) -> tuple[float, Arrays]:
        """Return the loss of a batch and its gradient by every weight; nothing is changed."""
        ...

    def update(self, gradients: Mapping[str, FloatArray]) -> None:
        """Make one update of the weights."""
        ...

    def weights(self) -> Arrays:
        """Return a copy of the weights."""
        ...

    def optimizer(self) -> Arrays:
        """Return a copy of the optimizer's state."""
        ...

    def load_weights(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over weights.

        Raises:
            KeyError, ValueError: they are of another network.
        """
        ...

    def load_optimizer(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over the optimizer's state.

        Raises:
            KeyError, ValueError: it is of another network.
        """
        ...


def average(parts: Sequence[tuple[float, Mapping[str, FloatArray]]]) -> tuple[float, Arrays]:
    """Return the mean of losses and gradients, added in the order given, which fixes its bits."""
    (loss, first), *others = parts
    gradients = {name: array.copy() for name, array in first.items()}
    for other_loss, other in others:
        loss += other_loss
        for name, array in gradients.items():
            array += other[name]
    count = len(parts)
    return loss / count, {name: array / count for name, array in gradients.items()}
