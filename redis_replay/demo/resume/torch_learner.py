"""A small Torch network on the CPU, trained by GRPO with Torch's own gradients and Adam.

It reads what the NumPy network reads, and attends to the question by content as well as by place::

    scores[j] = query(position, previous) . key(place j, question[j])
    h = sum_j softmax(scores)[j] * embedding[question[j]]
    logits = (h + mlp([h, embedding[previous]])) @ embedding.T + bias

One thread and deterministic kernels: equal weights and inputs give equal bits.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from redis_replay.demo.grpo import DEFAULT_SETTINGS
from redis_replay.demo.model_files import FloatArray
from redis_replay.demo.policy import Generation, TokenInputs, write_answers
from redis_replay.demo.resume.learner import Arrays
from redis_replay.demo.rows import Batch
from redis_replay.demo.text import (
    EMPTY_TOKEN,
    MAX_ANSWER_TOKENS,
    VOCABULARY_SIZE,
    WINDOW_TOKENS,
    TokenArray,
    prompt_window,
)

# Torch is an extra, so it is not there to be checked against.
torch: Final[Any] = importlib.import_module("torch")

_WIDTH: Final = 32
_HIDDEN: Final = 64
_LEARNING_RATE: Final = 0.01
_EMBEDDING_SCALE: Final = 0.6
_FAR_BELOW: Final = -1e9


class TorchLearner:
    """The network; see `redis_replay.demo.resume.learner.Learner`."""

    def __init__(self, seed: int) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        layers = torch.nn
        self._network: Any = layers.ModuleDict(
            {
                "tokens": layers.Embedding(VOCABULARY_SIZE, _WIDTH),
                "positions": layers.Embedding(MAX_ANSWER_TOKENS, _WIDTH),
                "places": layers.Embedding(WINDOW_TOKENS, _WIDTH),
                "query": layers.Linear(_WIDTH, _WIDTH),
                "key": layers.Linear(_WIDTH, _WIDTH),
                "mlp": layers.Sequential(
                    layers.Linear(2 * _WIDTH, _HIDDEN),
                    layers.GELU(),
                    layers.Linear(_HIDDEN, _WIDTH),
                ),
                "bias": layers.ParameterDict({"logits": torch.zeros(VOCABULARY_SIZE)}),
            }
        )
        with torch.no_grad():
            self._network["tokens"].weight.mul_(_EMBEDDING_SCALE)
            self._network["mlp"][2].weight.zero_()
        self._named: dict[str, Any] = dict(self._network.named_parameters())
        self._adam: Any = torch.optim.Adam(
            self._named.values(),
            lr=_LEARNING_RATE,
            betas=(DEFAULT_SETTINGS.first_decay, DEFAULT_SETTINGS.second_decay),
            foreach=False,
        )

    def sample(self, prompt_ids: TokenArray, *, draws: FloatArray) -> list[Generation]:
        """Sample an answer for each row of draws."""
        windows = np.tile(prompt_window(prompt_ids), (len(draws), 1))
        with torch.inference_mode():
            return write_answers(windows, draws=draws, logprobs_of=self._logprobs_array)

    def gradients(self, batch: Batch) -> tuple[float, Arrays]:
        """Return the clipped loss of GRPO and its gradients."""
        clip = DEFAULT_SETTINGS.clip_ratio
        tokens = torch.from_numpy(batch.tokens.astype(np.int64))
        stored = torch.from_numpy(batch.generation_logprobs.astype(np.float32))
        advantages = torch.from_numpy(batch.advantages.astype(np.float32))
        chosen = self._logprobs(batch.inputs).gather(1, tokens[:, None])[:, 0]
        ratios = torch.exp(chosen - stored)
        gains = torch.minimum(ratios * advantages, ratios.clamp(1 - clip, 1 + clip) * advantages)
        loss = -gains.mean()
        self._adam.zero_grad(set_to_none=False)
        loss.backward()
        return float(loss), {name: _array(p.grad) for name, p in self._named.items()}

    def update(self, gradients: Mapping[str, FloatArray]) -> None:
        """Make one step of Torch's Adam."""
        for name, parameter in self._named.items():
            parameter.grad = _tensor(gradients[name])
        self._adam.step()

    def weights(self) -> Arrays:
        """Return a copy of the weights."""
        return {name: _array(parameter) for name, parameter in self._named.items()}

    def optimizer(self) -> Arrays:
        """Return a copy of the optimizer's state; empty before the first update."""
        return {
            f"{place}/{name}": _array(value)
            for place, state in self._adam.state_dict()["state"].items()
            for name, value in state.items()
        }

    def load_weights(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over weights."""
        with torch.no_grad():
            for name, parameter in self._named.items():
                if tuple(parameter.shape) != arrays[name].shape:
                    raise ValueError(
                        f"{name} has shape {arrays[name].shape}, not {tuple(parameter.shape)}"
                    )
                parameter.copy_(_tensor(arrays[name]))

    def load_optimizer(self, arrays: Mapping[str, FloatArray]) -> None:
        """Take over the optimizer's state."""
        state: dict[int, dict[str, Any]] = {}
        for key, array in arrays.items():
            place, _, name = key.partition("/")
            state.setdefault(int(place), {})[name] = _tensor(array)
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": state, "param_groups": groups})

    def _logprobs_array(self, inputs: TokenInputs) -> FloatArray:
        return _array(self._logprobs(inputs))

    def _logprobs(self, inputs: TokenInputs) -> Any:
        """Return float32[N, V], the log-probability of every next token."""
        network = self._network
        windows = torch.from_numpy(inputs.windows.astype(np.int64))
        previous = network["tokens"](torch.from_numpy(inputs.previous.astype(np.int64)))
        positions = network["positions"](torch.from_numpy(inputs.positions.astype(np.int64)))
        question = network["tokens"](windows)
        queries = network["query"](positions + previous)
        keys = network["key"](question + network["places"].weight)
        scores = (keys @ queries[:, :, None])[:, :, 0] / math.sqrt(_WIDTH)
        scores = scores.masked_fill(windows == EMPTY_TOKEN, _FAR_BELOW)
        attended = (scores.softmax(dim=1)[:, None, :] @ question)[:, 0, :]
        output = attended + network["mlp"](torch.cat([attended, previous], dim=1))
        logits = output @ network["tokens"].weight.T + network["bias"]["logits"]
        return logits.log_softmax(dim=1)


def _array(tensor: Any) -> FloatArray:
    return np.array(tensor.detach().numpy(), dtype=np.float64)


def _tensor(array: FloatArray) -> Any:
    return torch.from_numpy(np.asarray(array, dtype=np.float32))
