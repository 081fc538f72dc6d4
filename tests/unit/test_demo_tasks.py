"""The demo's prompts: rebuilt from a reference, held out, scored by the verifier."""

from __future__ import annotations

import subprocess
import sys

import pytest

from redis_replay.demo import tasks
from redis_replay.demo.tasks import (
    HELD_OUT_PROMPTS,
    PromptReference,
    PromptStream,
    held_out_prompts,
    prompt_from_reference,
    score_answer,
)
from redis_replay.errors import ConfigurationError


def test_a_prompt_is_rebuilt_from_its_stored_reference() -> None:
    stream = PromptStream(3)
    stored = stream.reference(41).to_bytes()
    assert b"spell_backward:3:41" == stored
    assert PromptReference(seed=3, index=41) == PromptReference.from_bytes(stored)
    assert PromptStream(3).prompt(41) == prompt_from_reference(stored)


@pytest.mark.parametrize(
    "stored",
    [b"", b"spell_backward:1", b"other:1:2", b"spell_backward:-1:2", b"spell_backward:1:x"],
)
def test_a_foreign_prompt_reference_is_refused(stored: bytes) -> None:
    with pytest.raises(ValueError, match="not a prompt reference"):
        PromptReference.from_bytes(stored)


@pytest.mark.parametrize(("seed", "index"), [(-1, 0), (2**31, 0), (0, -1), (0, 2**32)])
def test_a_reference_out_of_range_is_refused(seed: int, index: int) -> None:
    with pytest.raises(ValueError, match="must be in 0"):
        PromptReference(seed=seed, index=index)


def test_streams_of_different_seeds_do_not_repeat_each_other() -> None:
    questions = [
        [PromptStream(seed).prompt(index).question for index in range(200)] for seed in (1, 2, 3)
    ]
    for left, right in ((0, 1), (0, 2), (1, 2)):
        # 200 words of 34,000 meet by chance about once; shifted streams would share nearly all
        assert len(set(questions[left]) & set(questions[right])) < 10


def test_the_held_out_prompts_are_200_distinct_ones() -> None:
    prompts = held_out_prompts()
    assert list(range(HELD_OUT_PROMPTS)) == [prompt.index for prompt in prompts]
    assert HELD_OUT_PROMPTS == 200 == len({prompt.question.casefold() for prompt in prompts})


def test_a_held_out_question_is_passed_over_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = PromptStream(1)
    before = stream.prompt(5)
    held_out = frozenset({before.question.casefold()})
    monkeypatch.setattr(tasks, "_held_out_spellings", lambda: held_out)
    assert before.question != stream.prompt(5).question
    assert stream.prompt(5) == stream.prompt(5)


def test_no_training_question_is_held_out() -> None:
    stream = PromptStream(2)
    training = {stream.prompt(index).question.casefold() for index in range(3000)}
    assert set() == training & {prompt.question.casefold() for prompt in held_out_prompts()}


def test_the_verifier_scores_exact_partial_and_wrong_answers() -> None:
    prompt = next(p for p in held_out_prompts() if len(p.entry["answer"]) == 4)
    answer = str(prompt.entry["answer"]).lower()
    assert 1.0 == score_answer(prompt, answer=answer)
    assert 0.75 == score_answer(prompt, answer=answer[:3] + "?")
    assert 0.0 == score_answer(prompt, answer="")


def test_a_score_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = held_out_prompts()[0]

    class Broken:
        def score_answer(self, *_question: object) -> float:
            return float("nan")

    def broken_dataset(_stream_number: int) -> Broken:
        return Broken()

    monkeypatch.setattr(tasks, "_dataset", broken_dataset)
    with pytest.raises(ValueError, match="scored prompt 0 with nan"):
        score_answer(prompt, answer="a")


def test_a_missing_reasoning_gym_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ConfigurationError, match=r"redis-replay\[demo\]"):
        PromptStream(2**31 - 1).prompt(0)


def test_the_trainer_side_does_not_import_reasoning_gym() -> None:
    program = (
        "import sys, redis_replay.demo.grpo, redis_replay.demo.rows;"
        "sys.exit('reasoning_gym' in sys.modules)"
    )
    completed = subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    assert 0 == completed.returncode
