"""GRPO: a clipped policy gradient with advantages taken within each group.

The loss of a train step, over its N answer tokens, with ratio = exp(logprob - stored logprob)::

    - 1/N * sum(min(ratio * advantage, clip(ratio, 1 - c, 1 + c) * advantage))

The stored logprobs are those of the policy that sampled the tokens, so rows that are a version or
two old are weighed for what they are, and stop pulling once the policy has moved past the clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from redis_replay.demo.model_files import FloatArray, load_arrays, save_arrays
from redis_replay.demo.policy import WEIGHT_SHAPES, Policy
from redis_replay.demo.rows import Batch, groups_with_spread

_FIRST_MOMENT: Final = "adam/first/"
_SECOND_MOMENT: Final = "adam/second/"
_UPDATES: Final = "adam/updates"


@dataclass(frozen=True, slots=True)
class GrpoSettings:
    """Sizes of a step.

    Attributes:
        attention_learning_rate: Step of the attention table. Its entries are plain scores, which
            have to travel by several units, where the dense weights move by hundredths.
    """

    clip_ratio: float = 0.2
    learning_rate: float = 0.003
    attention_learning_rate: float = 0.3
    first_decay: float = 0.9
    second_decay: float = 0.99
    denominator_floor: float = 1e-8


DEFAULT_SETTINGS: Final = GrpoSettings()


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one train step saw.

    Attributes:
        reward_mean: Of the stored rewards.
        groups_without_spread: Groups that taught nothing.
        clipped_fraction: Share of the tokens whose gradient the clip stopped.
        entropy: Mean entropy of the next token, in nats.
    """

    loss: float
    reward_mean: float
    groups: int
    groups_without_spread: int
    tokens: int
    clipped_fraction: float
    entropy: float


class Adam:
    """Adam's moments, one pair per weight, and the number of updates made."""

    def __init__(self) -> None:
        self.first = {name: np.zeros(shape) for name, shape in WEIGHT_SHAPES.items()}
        self.second = {name: np.zeros(shape) for name, shape in WEIGHT_SHAPES.items()}
        self.updates = 0

    def update(
        self, policy: Policy, *, gradients: Mapping[str, FloatArray], settings: GrpoSettings
    ) -> None:
        """Move the policy's weights against the gradients, in place."""
        self.updates += 1
        first_scale = 1.0 - settings.first_decay**self.updates
        second_scale = 1.0 - settings.second_decay**self.updates
        for name, gradient in gradients.items():
            first, second = self.first[name], self.second[name]
            first += (1.0 - settings.first_decay) * (gradient - first)
            second += (1.0 - settings.second_decay) * (gradient**2 - second)
            rate = (
                settings.attention_learning_rate if name == "attention" else settings.learning_rate
            )
            scale = np.sqrt(second / second_scale) + settings.denominator_floor
            policy.weights[name] -= rate * (first / first_scale) / scale


def loss_and_gradients(
    policy: Policy, *, batch: Batch, clip_ratio: float
) -> tuple[StepStats, dict[str, FloatArray]]:
    """Return the loss of a batch and its gradient by every weight; nothing is changed."""
    computed = policy.forward(batch.inputs)
    count = len(batch.tokens)
    rows = np.arange(count)
    ratios = np.exp(computed.logprobs[rows, batch.tokens] - batch.generation_logprobs)
    clipped = np.clip(ratios, 1.0 - clip_ratio, 1.0 + clip_ratio)
    unclipped_gain = ratios * batch.advantages
    clipped_gain = clipped * batch.advantages
    stopped = clipped_gain < unclipped_gain
    weights = np.where(stopped, 0.0, unclipped_gain) / count
    probabilities = np.exp(computed.logprobs)
    logit_gradients = probabilities * weights[:, None]
    logit_gradients[rows, batch.tokens] -= weights
    groups = len(batch.rewards)
    stats = StepStats(
        loss=-float(np.minimum(unclipped_gain, clipped_gain).mean()),
        reward_mean=float(batch.rewards.mean()),
        groups=groups,
        groups_without_spread=groups - int(groups_with_spread(batch.rewards).sum()),
        tokens=count,
        clipped_fraction=float(stopped.mean()),
        entropy=-float((probabilities * computed.logprobs).sum(axis=1).mean()),
    )
    gradients = policy.backward(batch.inputs, computed=computed, logit_gradients=logit_gradients)
    return stats, gradients


def train_step(
    policy: Policy, *, batch: Batch, optimizer: Adam, settings: GrpoSettings = DEFAULT_SETTINGS
) -> StepStats:
    """Make one update of the policy, in place, from the rows of one step."""
    stats, gradients = loss_and_gradients(policy, batch=batch, clip_ratio=settings.clip_ratio)
    optimizer.update(policy, gradients=gradients, settings=settings)
    return stats


def save_model(path: Path, *, policy: Policy, optimizer: Adam) -> None:
    """Write policy and optimizer to one file, which `Policy.load` reads too; see `save_arrays`."""
    arrays = policy.arrays()
    for name in WEIGHT_SHAPES:
        arrays[_FIRST_MOMENT + name] = optimizer.first[name]
        arrays[_SECOND_MOMENT + name] = optimizer.second[name]
    arrays[_UPDATES] = np.array(float(optimizer.updates))
    save_arrays(path, arrays=arrays)


def load_model(path: Path) -> tuple[Policy, Adam]:
    """Read what `save_model` wrote; training goes on as if it had not stopped.

    Raises:
        ValueError: The file is damaged or holds no optimizer; the message names it.
    """
    arrays = load_arrays(path)
    optimizer = Adam()
    try:
        policy = Policy.from_arrays(arrays)
        for name in WEIGHT_SHAPES:
            optimizer.first[name][...] = arrays[_FIRST_MOMENT + name]
            optimizer.second[name][...] = arrays[_SECOND_MOMENT + name]
        optimizer.updates = int(arrays[_UPDATES])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path} holds no policy with its optimizer: {error}") from error
    return policy, optimizer
