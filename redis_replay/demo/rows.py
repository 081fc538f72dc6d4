"""Stored rows: what a rollout process writes of a group, and what a trainer needs of it.

One row per sample::

    input_ids            int32[L]  question tokens, then answer tokens
    generation_logprobs  float32[A]  of the answer tokens, by the policy that sampled them
    answer               str  the text the verifier scored
    reward               float  the verifier's score
    length               int  L

A trainer needs nothing but these rows: it never sees the prompt's entry, nor the answer in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redis_replay.demo.model_files import FloatArray
from redis_replay.demo.policy import Generation, LogprobArray, Policy, TokenInputs
from redis_replay.demo.tasks import Prompt, score_answer
from redis_replay.demo.text import EMPTY_TOKEN, TokenArray, encode_text, prompt_window

_SPREAD_FLOOR = 1e-6


@dataclass(frozen=True, slots=True)
class Batch:
    """Every answer token of a train step.

    Attributes:
        inputs: What the policy reads to write each of the N tokens.
        tokens: int32[N], the tokens that were sampled.
        generation_logprobs: float64[N], as stored.
        advantages: float64[N], that of the sample each token belongs to.
        rewards: float64[G, S], as stored, one line per group.
    """

    inputs: TokenInputs
    tokens: TokenArray
    generation_logprobs: FloatArray
    advantages: FloatArray
    rewards: FloatArray


def rows_for_group(prompt: Prompt, *, generations: Sequence[Generation]) -> list[dict[str, Any]]:
    """Score the answers sampled for a prompt and return the row of each, in the same order."""
    prompt_ids = encode_text(prompt.question)
    return [
        {
            "input_ids": np.concatenate([prompt_ids, generation.tokens]),
            "generation_logprobs": generation.logprobs.copy(),
            "answer": generation.answer,
            "reward": score_answer(prompt, answer=generation.answer),
            "length": len(prompt_ids) + len(generation.tokens),
        }
        for generation in generations
    ]


def group_advantages(rewards: FloatArray) -> FloatArray:
    """Return ``(reward - mean) / (std + eps)`` within each group, ``float64[G, S]``.

    A group whose rewards are all exactly equal has nothing to teach: its advantages are 0.
    """
    centered = rewards - rewards.mean(axis=1, keepdims=True)
    advantages: FloatArray = centered / (rewards.std(axis=1, keepdims=True) + _SPREAD_FLOOR)
    advantages[~groups_with_spread(rewards)] = 0.0
    return advantages


def groups_with_spread(rewards: FloatArray) -> NDArray[np.bool_]:
    """Return, for each group, whether its rewards differ at all, ``bool[G]``."""
    spread: NDArray[np.bool_] = rewards.max(axis=1) != rewards.min(axis=1)
    return spread


def batch_from_rows(rows: Sequence[Mapping[str, Any]], *, group_size: int) -> Batch:
    """Build a train step from stored rows; each ``group_size`` rows in a row are one group.

    Raises:
        ValueError: No rows, an incomplete group, or a row that contradicts itself; the message
            names the row.
    """
    if group_size < 1:
        raise ValueError(f"group_size must be at least 1, not {group_size}")
    if not rows or len(rows) % group_size:
        raise ValueError(f"{len(rows)} rows are not one or more groups of {group_size}")
    samples = [_sample(row, place=place) for place, row in enumerate(rows)]
    rewards = np.array([sample.reward for sample in samples]).reshape(-1, group_size)
    lengths = [len(sample.tokens) for sample in samples]
    previous = [np.concatenate([[EMPTY_TOKEN], sample.tokens[:-1]]) for sample in samples]
    return Batch(
        inputs=TokenInputs(
            windows=np.repeat(np.stack([sample.window for sample in samples]), lengths, axis=0),
            positions=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
            previous=np.concatenate(previous).astype(np.int32),
        ),
        tokens=np.concatenate([sample.tokens for sample in samples]),
        generation_logprobs=np.concatenate([sample.logprobs for sample in samples]).astype(
            np.float64
        ),
        advantages=np.repeat(group_advantages(rewards).ravel(), lengths),
        rewards=rewards,
    )


def evaluate(policy: Policy, *, prompts: Sequence[Prompt]) -> float:
    """Return the verifier's mean over the likeliest answer to each prompt; nothing is drawn."""
    generations = policy.greedy([encode_text(prompt.question) for prompt in prompts])
    scores = [
        score_answer(prompt, answer=generation.answer)
        for prompt, generation in zip(prompts, generations, strict=True)
    ]
    return math.fsum(scores) / len(scores)


@dataclass(frozen=True, slots=True)
class _Sample:
    window: TokenArray
    tokens: TokenArray
    logprobs: LogprobArray
    reward: float


def _sample(row: Mapping[str, Any], *, place: int) -> _Sample:
    input_ids: TokenArray = np.asarray(row["input_ids"], dtype=np.int32)
    logprobs: LogprobArray = np.asarray(row["generation_logprobs"], dtype=np.float32)
    reward = float(row["reward"])
    length = int(row["length"])
    if len(input_ids) != length or not 1 <= len(logprobs) < length:
        raise ValueError(
            f"row {place}: length {length} with {len(input_ids)} input_ids "
            f"and {len(logprobs)} generation_logprobs"
        )
    if not (math.isfinite(reward) and bool(np.isfinite(logprobs).all())):
        raise ValueError(f"row {place}: reward or generation_logprobs are not finite")
    answer_start = length - len(logprobs)
    return _Sample(
        window=prompt_window(input_ids[:answer_start]),
        tokens=input_ids[answer_start:],
        logprobs=logprobs,
        reward=reward,
    )
