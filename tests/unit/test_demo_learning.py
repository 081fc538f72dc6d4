"""The learning part of the demo: policy, rows and GRPO, without a store."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from redis_replay.demo.grpo import (
    Adam,
    StepStats,
    load_model,
    loss_and_gradients,
    save_model,
    train_step,
)
from redis_replay.demo.model_files import save_arrays
from redis_replay.demo.policy import WEIGHT_SHAPES, Policy, TokenInputs
from redis_replay.demo.rows import (
    Batch,
    batch_from_rows,
    evaluate,
    group_advantages,
    rows_for_group,
)
from redis_replay.demo.tasks import (
    Prompt,
    PromptStream,
    held_out_prompts,
    score_answer,
)
from redis_replay.demo.text import (
    EMPTY_TOKEN,
    MAX_ANSWER_TOKENS,
    STOP_TOKEN,
    WINDOW_TOKENS,
    TokenArray,
    decode_answer,
    encode_text,
    prompt_window,
)

GROUP_SIZE = 8
GROUPS_PER_STEP = 8


def rollout_rows(
    policy: Policy, *, prompts: list[Prompt], rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Sample and score one group of rows for each prompt."""
    rows: list[dict[str, Any]] = []
    for prompt in prompts:
        generations = policy.sample(encode_text(prompt.question), rng=rng, count=GROUP_SIZE)
        rows += rows_for_group(prompt, generations=generations)
    return rows


def train(*, seed: int, steps: int, staleness: int) -> tuple[Policy, list[StepStats]]:
    """Train as the demo does: rows are `staleness` versions old when they reach the trainer."""
    stream = PromptStream(seed)
    policy, optimizer = Policy.create(seed=seed), Adam()
    rng = np.random.default_rng(seed)
    waiting: deque[list[dict[str, Any]]] = deque()
    history: list[StepStats] = []
    for step in range(steps + staleness):
        first = step * GROUPS_PER_STEP
        prompts = [stream.prompt(index) for index in range(first, first + GROUPS_PER_STEP)]
        waiting.append(rollout_rows(policy, prompts=prompts, rng=rng))
        if len(waiting) > staleness:
            batch = batch_from_rows(waiting.popleft(), group_size=GROUP_SIZE)
            history.append(train_step(policy, batch=batch, optimizer=optimizer))
    return policy, history


def small_batch(*, groups: int = 3) -> tuple[Policy, Batch]:
    """A batch sampled by one policy and the policy that trains on it, a little further on."""
    behaviour = Policy.create(seed=7)
    stream = PromptStream(7)
    prompts = [stream.prompt(index) for index in range(groups)]
    rows = rollout_rows(behaviour, prompts=prompts, rng=np.random.default_rng(7))
    rng = np.random.default_rng(8)
    for row in rows:
        row["reward"] = float(rng.random())
    moved = {
        name: array + 0.05 * rng.standard_normal(array.shape)
        for name, array in behaviour.weights.items()
    }
    return Policy(moved), batch_from_rows(rows, group_size=GROUP_SIZE)


# Text and policy


def test_text_comes_back_from_its_tokens() -> None:
    printable = "".join(chr(code) for code in range(33, 127))
    assert printable == decode_answer(encode_text(printable))
    assert "tac" == decode_answer(encode_text("tac at"))
    assert "a\ufffdb" == decode_answer(encode_text("aéb"))


def test_every_question_fits_the_window() -> None:
    assert WINDOW_TOKENS >= max(len(prompt.question) for prompt in held_out_prompts())


def test_the_window_is_the_end_of_the_prompt_padded_on_the_left() -> None:
    long = np.arange(1, 71, dtype=np.int32)
    assert list(range(7, 71)) == prompt_window(long).tolist()
    assert [EMPTY_TOKEN] * (WINDOW_TOKENS - 3) + [1, 2, 3] == prompt_window(long[:3]).tolist()


def test_empty_places_get_no_attention() -> None:
    policy = Policy.create(seed=1)
    window = prompt_window(encode_text("sun"))
    zero = np.zeros(1, dtype=np.int32)
    attention = policy.forward(TokenInputs(window[None], zero, zero)).attention[0]
    np.testing.assert_allclose(attention[-3:], 1 / 3)
    assert [0.0] * (WINDOW_TOKENS - 3) == attention[:-3].tolist()


def test_sampling_is_fixed_by_the_seed() -> None:
    policy = Policy.create(seed=1)
    prompt_ids = encode_text(PromptStream(1).prompt(0).question)
    draws = [
        policy.sample(prompt_ids, rng=np.random.default_rng(seed), count=4) for seed in (5, 5, 6)
    ]
    assert [g.answer for g in draws[0]] == [g.answer for g in draws[1]]
    assert [g.answer for g in draws[0]] != [g.answer for g in draws[2]]


def test_an_answer_ends_with_its_first_stop_token_or_at_the_limit() -> None:
    policy = Policy.create(seed=1)
    policy.weights["output_bias"][STOP_TOKEN] = 1.0
    prompt_ids = encode_text(PromptStream(1).prompt(0).question)
    generations = policy.sample(prompt_ids, rng=np.random.default_rng(1), count=200)
    lengths = Counter(len(generation.tokens) for generation in generations)
    assert set(lengths) == set(range(1, MAX_ANSWER_TOKENS + 1))
    for generation in generations:
        assert len(generation.tokens) == len(generation.logprobs)
        assert STOP_TOKEN not in generation.tokens[:-1]
        if len(generation.tokens) < MAX_ANSWER_TOKENS:
            assert STOP_TOKEN == generation.tokens[-1]


def test_samples_follow_the_logprobs_they_report() -> None:
    policy = Policy.create(seed=2)
    prompt_ids = encode_text(PromptStream(1).prompt(0).question)
    count = 20_000
    generations = policy.sample(prompt_ids, rng=np.random.default_rng(3), count=count)
    seen: Counter[int] = Counter()
    reported: dict[int, float] = {}
    for generation in generations:
        token = int(generation.tokens[0])
        seen[token] += 1
        reported[token] = float(np.exp(generation.logprobs[0]))
    assert sum(reported.values()) == pytest.approx(1.0, abs=1e-3)
    for token, probability in reported.items():
        deviation = abs(seen[token] / count - probability)
        assert deviation < 5 * np.sqrt(probability / count)


def test_the_answer_in_the_entry_changes_rewards_only() -> None:
    policy = Policy.create(seed=4)
    prompt = PromptStream(4).prompt(9)
    other = dataclasses.replace(prompt, entry={**prompt.entry, "answer": "zzzzzz"})
    kept: list[list[dict[str, Any]]] = []
    for version in (prompt, other):
        rows = rollout_rows(policy, prompts=[version], rng=np.random.default_rng(4))
        for row in rows:
            del row["reward"]
            row["input_ids"] = row["input_ids"].tolist()
            row["generation_logprobs"] = row["generation_logprobs"].tolist()
        kept.append(rows)
    assert kept[0] == kept[1]


# Rows


def test_rows_hold_question_and_answer_tokens_with_their_logprobs() -> None:
    policy = Policy.create(seed=5)
    prompt = PromptStream(5).prompt(0)
    prompt_ids = encode_text(prompt.question)
    generations = policy.sample(prompt_ids, rng=np.random.default_rng(5), count=GROUP_SIZE)
    rows = rows_for_group(prompt, generations=generations)
    assert GROUP_SIZE == len(rows)
    for row, generation in zip(rows, generations, strict=True):
        names = ["input_ids", "generation_logprobs", "answer", "reward", "length"]
        assert names == list(row)
        assert np.int32 == row["input_ids"].dtype
        assert np.float32 == row["generation_logprobs"].dtype
        assert prompt_ids.tolist() + generation.tokens.tolist() == row["input_ids"].tolist()
        assert len(row["input_ids"]) == row["length"]
        assert score_answer(prompt, answer=row["answer"]) == row["reward"]


def test_a_batch_rebuilds_what_the_policy_read_for_every_token() -> None:
    policy = Policy.create(seed=6)
    hidden_out = policy.weights["hidden_out"]
    hidden_out[...] = np.random.default_rng(6).standard_normal(hidden_out.shape)
    stream = PromptStream(6)
    prompts = [stream.prompt(0), stream.prompt(1)]
    rows = rollout_rows(policy, prompts=prompts, rng=np.random.default_rng(6))
    batch = batch_from_rows(rows, group_size=GROUP_SIZE)
    computed = policy.forward(batch.inputs).logprobs[np.arange(len(batch.tokens)), batch.tokens]
    np.testing.assert_allclose(computed, batch.generation_logprobs, atol=1e-6)
    assert (2, GROUP_SIZE) == batch.rewards.shape


def test_rows_as_they_come_back_from_a_store_are_accepted() -> None:
    prompt = PromptStream(6).prompt(0)
    rows = rollout_rows(Policy.create(seed=6), prompts=[prompt], rng=np.random.default_rng(6))
    stored: list[dict[str, Any]] = []
    for row in rows:
        ids: TokenArray = np.frombuffer(row["input_ids"].tobytes(), dtype="<i4")
        reward = np.float64(row["reward"])
        stored.append({**row, "input_ids": ids, "reward": reward, "length": np.int64(len(ids))})
    expected = batch_from_rows(rows, group_size=GROUP_SIZE)
    actual = batch_from_rows(stored, group_size=GROUP_SIZE)
    assert expected.tokens.tolist() == actual.tokens.tolist()
    assert expected.advantages.tolist() == actual.advantages.tolist()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("reward", float("nan")),
        ("reward", float("inf")),
        ("length", 3),
        ("generation_logprobs", np.zeros(0, np.float32)),
        ("generation_logprobs", np.array([np.nan], np.float32)),
    ],
)
def test_a_row_that_contradicts_itself_is_refused_by_its_place(field: str, value: object) -> None:
    prompt = PromptStream(6).prompt(0)
    rows = rollout_rows(Policy.create(seed=6), prompts=[prompt], rng=np.random.default_rng(6))
    rows[5][field] = value
    with pytest.raises(ValueError, match="row 5"):
        batch_from_rows(rows, group_size=GROUP_SIZE)


@pytest.mark.parametrize(("kept", "group_size"), [(0, 8), (7, 8), (8, 3), (8, 0)])
def test_incomplete_groups_are_refused(kept: int, group_size: int) -> None:
    prompt = PromptStream(6).prompt(0)
    rows = rollout_rows(Policy.create(seed=6), prompts=[prompt], rng=np.random.default_rng(6))
    with pytest.raises(ValueError, match="group"):
        batch_from_rows(rows[:kept], group_size=group_size)


# GRPO


def test_advantages_are_centered_and_scaled_within_each_group() -> None:
    rewards = np.array([[0.0, 1.0, 1.0, 0.0], [10.0, 10.0, 10.0, 14.0]])
    advantages = group_advantages(rewards)
    np.testing.assert_allclose([-1.0, 1.0, 1.0, -1.0], advantages[0], rtol=1e-5)
    np.testing.assert_allclose([-1.0, -1.0, -1.0, 3.0], advantages[1] * np.sqrt(3), rtol=1e-5)


def test_a_group_without_spread_has_no_advantage_and_no_gradient() -> None:
    # the mean of seven times 0.1 is not 0.1, so only exact equality gives exactly zero
    assert [[0.0] * 7] == group_advantages(np.full((1, 7), 0.1)).tolist()
    policy = Policy.create(seed=6)
    rows = rollout_rows(policy, prompts=[PromptStream(6).prompt(0)], rng=np.random.default_rng(6))
    for row in rows:
        row["reward"] = 0.95
    batch = batch_from_rows(rows, group_size=GROUP_SIZE)
    stats, gradients = loss_and_gradients(policy, batch=batch, clip_ratio=0.2)
    assert 1 == stats.groups_without_spread
    assert {0.0} == {float(np.abs(gradient).max()) for gradient in gradients.values()}


@pytest.mark.parametrize("name", list(WEIGHT_SHAPES))
def test_gradients_agree_with_finite_differences(name: str) -> None:
    policy, batch = small_batch()
    stats, gradients = loss_and_gradients(policy, batch=batch, clip_ratio=0.2)
    assert 0.0 < stats.clipped_fraction < 1.0
    gradient = gradients[name].ravel()
    flat = policy.weights[name].reshape(-1)
    largest = np.argsort(-np.abs(gradient))[:12]
    chosen = np.concatenate([largest, np.random.default_rng(1).integers(len(flat), size=8)])
    step = 1e-6
    numeric: list[float] = []
    for place in chosen.tolist():
        losses: list[float] = []
        kept = flat[place]
        for moved in (kept + step, kept - step):
            flat[place] = moved
            losses.append(loss_and_gradients(policy, batch=batch, clip_ratio=0.2)[0].loss)
        flat[place] = kept
        numeric.append((losses[0] - losses[1]) / (2 * step))
    assert np.abs(gradient[largest]).min() > 0.0
    np.testing.assert_allclose(numeric, gradient[chosen], rtol=1e-4, atol=1e-8)


def test_the_clip_stops_only_moves_that_went_far_enough_the_right_way() -> None:
    policy = Policy.create(seed=6)
    rows = rollout_rows(policy, prompts=[PromptStream(6).prompt(0)], rng=np.random.default_rng(6))
    for place, row in enumerate(rows):
        row["reward"] = float(place < 4)
    batch = batch_from_rows(rows, group_size=GROUP_SIZE)
    good = batch.advantages > 0
    for shift, stopped in ((np.log(1.5), good), (-np.log(1.5), ~good), (0.0, good & ~good)):
        moved = dataclasses.replace(batch, generation_logprobs=batch.generation_logprobs - shift)
        stats, _ = loss_and_gradients(policy, batch=moved, clip_ratio=0.2)
        assert stats.clipped_fraction == pytest.approx(stopped.mean())


def test_training_goes_on_from_a_file_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    path = tmp_path / "step-2.npz"
    policy, batch = small_batch()
    optimizer = Adam()
    for _ in range(2):
        train_step(policy, batch=batch, optimizer=optimizer)
    save_model(path, policy=policy, optimizer=optimizer)
    resumed, resumed_optimizer = load_model(path)
    train_step(policy, batch=batch, optimizer=optimizer)
    train_step(resumed, batch=batch, optimizer=resumed_optimizer)
    assert optimizer.updates == resumed_optimizer.updates
    for name, array in policy.weights.items():
        assert array.tolist() == resumed.weights[name].tolist()


def test_a_rollout_process_reads_the_policy_from_the_trainers_file(tmp_path: Path) -> None:
    policy = Policy.create(seed=9)
    save_model(tmp_path / "model.npz", policy=policy, optimizer=Adam())
    policy.save(tmp_path / "policy.npz")
    for name in ("model.npz", "policy.npz"):
        loaded = Policy.load(tmp_path / name)
        assert policy.weights["embedding"].tolist() == loaded.weights["embedding"].tolist()
    assert ["model.npz", "policy.npz"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_save_that_fails_leaves_the_older_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "policy.npz"
    Policy.create(seed=1).save(path)
    before = path.read_bytes()

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("redis_replay.demo.model_files.os.fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        Policy.create(seed=2).save(path)
    assert before == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_damaged_or_foreign_model_files_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    Policy.create(seed=1).save(path)
    whole = path.read_bytes()
    with pytest.raises(ValueError, match=r"model\.npz holds no policy with its optimizer"):
        load_model(path)
    for damaged in (b"", b"not a zip", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.npz is not a model file"):
            Policy.load(path)
    save_arrays(path, arrays={"policy/embedding": np.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"model\.npz: weights have shapes"):
        Policy.load(path)


# The point of it all


def best_constant_score() -> float:
    """The verifier's mean for one answer to all questions: the likeliest letter at each place."""
    prompts = held_out_prompts()
    answers = [str(prompt.entry["answer"]).lower() for prompt in prompts]
    letters = [
        Counter(answer[place] for answer in answers if len(answer) > place).most_common(1)[0][0]
        for place in range(max(len(answer) for answer in answers))
    ]
    return sum(score_answer(p, answer="".join(letters)) for p in prompts) / len(prompts)


@pytest.mark.parametrize(("seed", "staleness"), [(1, 1), (2, 1), (3, 1), (1, 2)])
def test_held_out_reward_rises_with_stale_rows(seed: int, staleness: int) -> None:
    first = evaluate(Policy.create(seed=seed), prompts=held_out_prompts())
    policy, history = train(seed=seed, steps=40, staleness=staleness)
    last = evaluate(policy, prompts=held_out_prompts())
    assert first < 0.1
    assert last > 0.7
    assert last > best_constant_score() + 0.5
    assert history[-1].reward_mean > history[0].reward_mean + 0.5
    assert 40 == len(history)


def test_a_run_is_fixed_by_its_seed() -> None:
    runs = [train(seed=1, steps=4, staleness=1)[1] for _ in range(2)]
    assert runs[0] == runs[1]
