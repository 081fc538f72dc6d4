"""A small NumPy network that reads a question and writes an answer, one character at a time.

The only input is the text of the question (its last 64 characters) and what was written so far.
One block of a transformer, reduced to what the task needs: for the answer's position t, attention
by place over the characters of the question gives h; a hidden layer over h and the character
written last adds to it; the embedding matrix, shared with the input, turns the sum into logits::

    a = softmax(attention[t])           over the 64 places, empty ones left out
    h = sum_j a[j] * embedding[question[j]]
    u = tanh([h, embedding[previous]] @ hidden_in + hidden_bias)
    logits = (h + u @ hidden_out) @ embedding.T + output_bias

An answer ends with a space or at eight characters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from redis_replay.demo.model_files import FloatArray, load_arrays, save_arrays
from redis_replay.demo.text import (
    EMPTY_TOKEN,
    MAX_ANSWER_TOKENS,
    STOP_TOKEN,
    VOCABULARY_SIZE,
    WINDOW_TOKENS,
    TokenArray,
    decode_answer,
    prompt_window,
)

LogprobArray = NDArray[np.float32]

EMBEDDING_WIDTH: Final = 48
HIDDEN_WIDTH: Final = 64

_EMBEDDING_NORM: Final = 4.0
_FILE_PREFIX: Final = "policy/"

WEIGHT_SHAPES: Final[Mapping[str, tuple[int, ...]]] = {
    "embedding": (VOCABULARY_SIZE, EMBEDDING_WIDTH),
    "attention": (MAX_ANSWER_TOKENS, WINDOW_TOKENS),
    "hidden_in": (2 * EMBEDDING_WIDTH, HIDDEN_WIDTH),
    "hidden_bias": (HIDDEN_WIDTH,),
    "hidden_out": (HIDDEN_WIDTH, EMBEDDING_WIDTH),
    "output_bias": (VOCABULARY_SIZE,),
}


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled answer: ``tokens`` int32[A], stop token included; ``logprobs`` float32[A]."""

    tokens: TokenArray
    logprobs: LogprobArray

    @property
    def answer(self) -> str:
        """The text that is shown to the verifier."""
        return decode_answer(self.tokens)


@dataclass(frozen=True, slots=True)
class TokenInputs:
    """What the network reads to write N tokens.

    Attributes:
        windows: int32[N, 64], the visible end of each token's question.
        positions: int32[N], the place of the token in its answer.
        previous: int32[N], the token written before it, or the empty token.
    """

    windows: TokenArray
    positions: TokenArray
    previous: TokenArray


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Log-probabilities ``float64[N, V]`` and the intermediate values `Policy.backward` needs."""

    logprobs: FloatArray
    attention: FloatArray
    mass: FloatArray
    joined: FloatArray
    hidden: FloatArray
    output: FloatArray


def write_answers(
    windows: TokenArray,
    *,
    draws: FloatArray | None,
    logprobs_of: Callable[[TokenInputs], FloatArray],
) -> list[Generation]:
    """Write one answer a row, a token at a time, until each has ended.

    Args:
        windows: int32[S, 64], what is visible of each row's question.
        draws: float64[S, 8] in 0..1, what the tokens are drawn by; ``None`` takes the likeliest.
        logprobs_of: The network: float64[S, V] for the next token of each row.
    """
    count = len(windows)
    rows = np.arange(count)
    tokens = np.zeros((count, MAX_ANSWER_TOKENS), dtype=np.int32)
    logprobs = np.zeros((count, MAX_ANSWER_TOKENS), dtype=np.float32)
    lengths = np.zeros(count, dtype=np.int64)
    previous = np.full(count, EMPTY_TOKEN, dtype=np.int32)
    writing = np.ones(count, dtype=np.bool_)
    for position in range(MAX_ANSWER_TOKENS):
        positions = np.full(count, position, dtype=np.int32)
        row_logprobs = logprobs_of(TokenInputs(windows, positions, previous))
        if draws is None:
            previous = row_logprobs.argmax(axis=1).astype(np.int32)
        else:
            below = np.exp(row_logprobs).cumsum(axis=1) < draws[:, position, None]
            previous = np.minimum(below.sum(axis=1), VOCABULARY_SIZE - 1).astype(np.int32)
        tokens[:, position] = previous
        logprobs[:, position] = row_logprobs[rows, previous]
        lengths += writing
        writing &= previous != STOP_TOKEN
        if not writing.any():
            break
    return [
        Generation(tokens[row, :length], logprobs[row, :length])
        for row, length in enumerate(lengths.tolist())
    ]


class Policy:
    """The network. ``weights`` is a flat dict of ``float64`` arrays (see `WEIGHT_SHAPES`)."""

    def __init__(self, weights: Mapping[str, FloatArray]) -> None:
        shapes = {name: array.shape for name, array in weights.items()}
        if shapes != dict(WEIGHT_SHAPES):
            raise ValueError(f"weights have shapes {shapes}, not {dict(WEIGHT_SHAPES)}")
        self.weights = {name: np.array(weights[name], np.float64) for name in WEIGHT_SHAPES}

    @classmethod
    def create(cls, *, seed: int) -> Policy:
        """Return an untrained network: random embeddings, attention spread over all places."""
        rng = np.random.default_rng(seed)
        weights = {name: np.zeros(shape) for name, shape in WEIGHT_SHAPES.items()}
        embedding = rng.standard_normal(WEIGHT_SHAPES["embedding"])
        norms = np.linalg.norm(embedding, axis=1, keepdims=True)
        weights["embedding"] = embedding * (_EMBEDDING_NORM / norms)
        hidden_in = rng.standard_normal(WEIGHT_SHAPES["hidden_in"])
        weights["hidden_in"] = hidden_in / np.sqrt(2 * EMBEDDING_WIDTH)
        return cls(weights)

    def copy(self) -> Policy:
        """Return a policy with its own weights."""
        return Policy(self.weights)

    def forward(self, inputs: TokenInputs) -> ForwardPass:
        """Compute the log-probability of every token of the vocabulary."""
        w = self.weights
        count = len(inputs.positions)
        scores = np.where(inputs.windows == EMPTY_TOKEN, -1e9, w["attention"][inputs.positions])
        attention = np.exp(scores - scores.max(axis=1, keepdims=True))
        attention /= attention.sum(axis=1, keepdims=True)
        # mass[n, v]: how much of the attention lies on character v
        cells = np.arange(count)[:, None] * VOCABULARY_SIZE + inputs.windows
        mass: FloatArray = np.zeros(count * VOCABULARY_SIZE)
        mass += np.bincount(cells.ravel(), weights=attention.ravel(), minlength=len(mass))
        mass = mass.reshape(count, VOCABULARY_SIZE)
        attended = mass @ w["embedding"]
        joined = np.concatenate([attended, w["embedding"][inputs.previous]], axis=1)
        hidden = np.tanh(joined @ w["hidden_in"] + w["hidden_bias"])
        output = attended + hidden @ w["hidden_out"]
        logits = output @ w["embedding"].T + w["output_bias"]
        logits -= logits.max(axis=1, keepdims=True)
        logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return ForwardPass(logprobs, attention, mass, joined, hidden, output)

    def backward(
        self, inputs: TokenInputs, *, computed: ForwardPass, logit_gradients: FloatArray
    ) -> dict[str, FloatArray]:
        """Return the gradient of every weight, given that of the logits, ``float64[N, V]``."""
        w = self.weights
        output_gradients = logit_gradients @ w["embedding"]
        hidden_gradients = (output_gradients @ w["hidden_out"].T) * (1.0 - computed.hidden**2)
        joined_gradients = hidden_gradients @ w["hidden_in"].T
        attended_gradients = output_gradients + joined_gradients[:, :EMBEDDING_WIDTH]
        embedding = logit_gradients.T @ computed.output + computed.mass.T @ attended_gradients
        np.add.at(embedding, inputs.previous, joined_gradients[:, EMBEDDING_WIDTH:])
        mass_gradients = attended_gradients @ w["embedding"].T
        place_gradients = np.take_along_axis(mass_gradients, inputs.windows, axis=1)
        mean = (computed.attention * place_gradients).sum(axis=1, keepdims=True)
        attention = np.zeros_like(w["attention"])
        np.add.at(attention, inputs.positions, computed.attention * (place_gradients - mean))
        return {
            "embedding": embedding,
            "attention": attention,
            "hidden_in": computed.joined.T @ hidden_gradients,
            "hidden_bias": hidden_gradients.sum(axis=0),
            "hidden_out": computed.hidden.T @ output_gradients,
            "output_bias": logit_gradients.sum(axis=0),
        }

    def sample(
        self, prompt_ids: TokenArray, *, rng: np.random.Generator, count: int
    ) -> list[Generation]:
        """Sample ``count`` answers; the same weights and generator state give the same answers."""
        return self.sample_by(prompt_ids, draws=rng.random((MAX_ANSWER_TOKENS, count)).T)

    def sample_by(self, prompt_ids: TokenArray, *, draws: FloatArray) -> list[Generation]:
        """Sample an answer for each row of ``draws``, ``float64[S, 8]`` in 0..1, one per token."""
        windows = np.tile(prompt_window(prompt_ids), (len(draws), 1))
        return write_answers(windows, draws=draws, logprobs_of=self._logprobs)

    def greedy(self, prompts: Sequence[TokenArray]) -> list[Generation]:
        """Return the answer made of the likeliest characters, for each of the prompts."""
        windows = np.stack([prompt_window(p) for p in prompts])
        return write_answers(windows, draws=None, logprobs_of=self._logprobs)

    def _logprobs(self, inputs: TokenInputs) -> FloatArray:
        return self.forward(inputs).logprobs

    def arrays(self) -> dict[str, FloatArray]:
        """Return the weights under the names they have in a file."""
        return {_FILE_PREFIX + name: array for name, array in self.weights.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, FloatArray]) -> Policy:
        """Build the policy from the arrays of a file; others in the file are left alone."""
        return cls(
            {
                name.removeprefix(_FILE_PREFIX): array
                for name, array in arrays.items()
                if name.startswith(_FILE_PREFIX)
            }
        )

    def save(self, path: Path) -> None:
        """Write the weights to ``path``; see `save_arrays`."""
        save_arrays(path, arrays=self.arrays())

    @classmethod
    def load(cls, path: Path) -> Policy:
        """Read the weights from any file that holds them.

        Raises:
            ValueError: The file is damaged or holds other weights; the message names it.
        """
        arrays = load_arrays(path)
        try:
            return cls.from_arrays(arrays)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
