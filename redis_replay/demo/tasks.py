"""Prompts and answer checking, from the `reasoning-gym` package.

The task is `spell_backward`: the question ends with a word of three to six letters, the answer is
that word reversed. The verifier gives 1.0 for the exact answer and a share for letters in place.
A prompt is known by its seed and index alone, so a few bytes in the store are enough to build it
again after a crash. `reasoning-gym` takes about 1.5 s to import, so it is imported at the first
prompt or score: a trainer, which needs stored rows only, never pays for it.

The answer is never an input of the network; 200 prompts are held out (D38).
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import sys
import types
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, cast

from redis_replay.errors import ConfigurationError

TASK_NAME: Final = "spell_backward"
MIN_WORD_LETTERS: Final = 3
MAX_WORD_LETTERS: Final = 6
HELD_OUT_PROMPTS: Final = 200
MAX_SEED: Final = 2**31
MAX_PROMPT_INDEX: Final = 2**32

_HELD_OUT_SEED: Final = 0
_SEED_STRIDE: Final = 2**48
"""reasoning-gym draws item i of seed s from the number s + i, so streams must lie far apart."""


class _Dataset(Protocol):
    """What is used of a reasoning-gym dataset."""

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...

    def score_answer(self, answer: str | None, entry: dict[str, Any]) -> float: ...


@dataclass(frozen=True, slots=True)
class PromptReference:
    """What is stored of a prompt: enough to build it again."""

    seed: int
    index: int

    def __post_init__(self) -> None:
        if not 0 <= self.seed < MAX_SEED:
            raise ValueError(f"seed must be in 0..{MAX_SEED - 1}, not {self.seed}")
        if not 0 <= self.index < MAX_PROMPT_INDEX:
            raise ValueError(f"index must be in 0..{MAX_PROMPT_INDEX - 1}, not {self.index}")

    def to_bytes(self) -> bytes:
        """Return the stored form, such as ``b"spell_backward:1:17"``."""
        return f"{TASK_NAME}:{self.seed}:{self.index}".encode("ascii")

    @classmethod
    def from_bytes(cls, stored: bytes) -> PromptReference:
        """Read the stored form.

        Raises:
            ValueError: The bytes are not a reference to a prompt of this task.
        """
        match stored.split(b":"):
            case [task, seed, index] if (
                task == TASK_NAME.encode("ascii") and seed.isdigit() and index.isdigit()
            ):
                return cls(seed=int(seed), index=int(index))
            case _:
                raise ValueError(f"not a prompt reference of {TASK_NAME}: {stored!r}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, with what its verifier needs.

    Attributes:
        index: Place in its stream.
        question: The text the policy reads; nothing else of the prompt reaches it.
        entry: The reasoning-gym entry. It holds the answer and goes to the verifier only.
    """

    index: int
    question: str
    entry: Mapping[str, Any]


class PromptStream:
    """The endless training prompts of one seed, in an order fixed by that seed.

    No training question is one of the held-out questions, in any spelling of upper and lower case.
    """

    def __init__(self, seed: int) -> None:
        self.seed = PromptReference(seed=seed, index=0).seed

    def prompt(self, index: int) -> Prompt:
        """Build the prompt at ``index``; the same index always gives the same prompt."""
        reference = self.reference(index)
        dataset = _dataset(self.seed + 1)
        draws = (dataset[reference.index + n * MAX_PROMPT_INDEX] for n in itertools.count())
        entry = next(draw for draw in draws if _spelling(draw) not in _held_out_spellings())
        return Prompt(index=index, question=str(entry["question"]), entry=entry)

    def reference(self, index: int) -> PromptReference:
        """Return what to store of the prompt at ``index``."""
        return PromptReference(seed=self.seed, index=index)


def prompt_from_reference(stored: bytes) -> Prompt:
    """Build the prompt that ``stored`` refers to.

    Raises:
        ValueError: The bytes are not a reference to a prompt of this task.
    """
    reference = PromptReference.from_bytes(stored)
    return PromptStream(reference.seed).prompt(reference.index)


@lru_cache(maxsize=1)
def held_out_prompts() -> tuple[Prompt, ...]:
    """Return the 200 distinct prompts, the same for every seed, that are never trained on."""
    dataset = _dataset(_HELD_OUT_SEED)
    entries: dict[str, dict[str, Any]] = {}
    for index in itertools.count():
        entry = dataset[index]
        entries.setdefault(_spelling(entry), entry)
        if len(entries) == HELD_OUT_PROMPTS:
            break
    return tuple(
        Prompt(index=index, question=str(entry["question"]), entry=entry)
        for index, entry in enumerate(entries.values())
    )


def score_answer(prompt: Prompt, *, answer: str) -> float:
    """Return the reasoning-gym verifier's score of ``answer``, from 0.0 to 1.0.

    Raises:
        ValueError: The verifier returned something that is no finite number.
    """
    score = float(_dataset(_HELD_OUT_SEED).score_answer(answer, dict(prompt.entry)))
    if not math.isfinite(score):
        raise ValueError(f"the verifier scored prompt {prompt.index} with {score}")
    return score


@lru_cache(maxsize=1)
def _held_out_spellings() -> frozenset[str]:
    return frozenset(_spelling(prompt.entry) for prompt in held_out_prompts())


def _spelling(entry: Mapping[str, Any]) -> str:
    return str(entry["question"]).casefold()


def _spare_the_compiler() -> None:
    """Let reasoning-gym be imported without pycosat, which its logic puzzles alone would call.

    That package is C source only; scripts/demo leaves it out where there is no compiler.
    """
    if "pycosat" not in sys.modules and importlib.util.find_spec("pycosat") is None:
        sys.modules["pycosat"] = types.ModuleType("pycosat")


@lru_cache(maxsize=8)
def _dataset(stream_number: int) -> _Dataset:
    try:
        with warnings.catch_warnings():
            # Some of its dependencies warn while Python compiles them for the first time.
            warnings.simplefilter("ignore")
            _spare_the_compiler()
            gym: Any = importlib.import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the demo takes its prompts from reasoning-gym, and {error.name} is not installed: "
            "pip install 'redis-replay[demo]'"
        ) from error
    dataset = gym.create_dataset(
        TASK_NAME,
        seed=stream_number * _SEED_STRIDE,
        size=_SEED_STRIDE,
        min_word_len=MIN_WORD_LETTERS,
        max_word_len=MAX_WORD_LETTERS,
    )
    return cast(_Dataset, dataset)
