"""The resume demo's models: saved and loaded they go on to the same bits; ranks add in order."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from redis_replay import Bookmark
from redis_replay.demo.model_files import save_arrays
from redis_replay.demo.resume.exchange import Exchange, Word
from redis_replay.demo.resume.learner import average
from redis_replay.demo.resume.model import Model, digest, model_path, saved_steps
from redis_replay.demo.resume.policies import create_learner
from redis_replay.demo.rows import Batch, batch_from_rows, rows_for_group
from redis_replay.demo.tasks import PromptStream
from redis_replay.demo.text import MAX_ANSWER_TOKENS, encode_text
from redis_replay.errors import ConfigurationError

GROUP_SIZE = 8
KEPT = 2
BOOKMARK = Bookmark("lineage", 1, 77, 2, ("g0", "g1"))


def new_model() -> Model:
    model = Model(0, create_learner("numpy", seed=3))
    model.keep_version(KEPT)
    return model


def batch_of(model: Model, prompts: range) -> Batch:
    """Rows that the model's present weights sample, with rewards that differ."""
    rng, rows = np.random.default_rng(prompts.start), list[dict[str, Any]]()
    for index in prompts:
        prompt = PromptStream(3).prompt(index)
        draws = rng.random((GROUP_SIZE, MAX_ANSWER_TOKENS))
        answers = model.learner.sample(encode_text(prompt.question), draws=draws)
        rows += rows_for_group(prompt, generations=answers)
    for row in rows:
        row["reward"] = float(rng.random())
    return batch_from_rows(rows, group_size=GROUP_SIZE)


def train(model: Model, first: int, last: int) -> Model:
    for step in range(first, last):
        loss, gradients = model.learner.gradients(batch_of(model, range(step, step + 2)))
        model.make_step(loss, gradients, keep=KEPT)
    return model


def test_a_model_that_was_saved_and_loaded_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    train(new_model(), 0, 4).save(tmp_path)
    whole = digest(model_path(tmp_path, 4))
    train(new_model(), 0, 2).save(tmp_path)
    again = Model.load(tmp_path, 2, create_learner("numpy", seed=9))
    train(again, 2, 4).save(tmp_path)
    assert whole == digest(model_path(tmp_path, 4))
    assert [2, 4] == saved_steps(tmp_path)


def test_a_model_keeps_the_weights_of_the_last_versions_and_their_losses(tmp_path: Path) -> None:
    model = train(new_model(), 0, 3)
    model.save(tmp_path)
    loaded = Model.load(tmp_path, 3, create_learner("numpy", seed=9))
    assert ([2, 3], model.losses) == (sorted(loaded.versions), loaded.losses)
    for version, weights in model.versions.items():
        for name, array in weights.items():
            np.testing.assert_array_equal(array, loaded.versions[version][name])
    assert 3 == len(set(model.losses))


def test_the_bookmark_comes_back_and_is_no_part_of_the_digest(tmp_path: Path) -> None:
    model = train(new_model(), 0, 2)
    model.save(tmp_path)
    bare = digest(model_path(tmp_path, 2))
    model.bookmark = BOOKMARK
    model.save(tmp_path)
    assert bare == digest(model_path(tmp_path, 2))
    assert BOOKMARK == Model.load(tmp_path, 2, create_learner("numpy", seed=9)).bookmark


def test_a_file_that_holds_no_model_is_named(tmp_path: Path) -> None:
    path = model_path(tmp_path, 2)
    save_arrays(path, arrays={"losses": np.zeros(2)})
    with pytest.raises(ValueError, match=f"{path} holds no model of this kind"):
        Model.load(tmp_path, 2, create_learner("numpy", seed=9))


def test_gradients_are_averaged_in_the_order_of_the_ranks() -> None:
    parts = [
        (1e16, {"w": np.array([1e16])}),
        (1.0, {"w": np.array([1.0])}),
        (-1e16, {"w": np.array([-1e16])}),
        (1.0, {"w": np.array([1.0])}),
    ]
    loss, gradients = average(parts)
    assert (0.25, [0.25]) == (loss, gradients["w"].tolist())
    assert [1e16] == parts[0][1]["w"].tolist()


def test_ranks_hear_the_newest_word_and_collect_the_gradients_of_its_batch(
    tmp_path: Path,
) -> None:
    exchange, word = Exchange(tmp_path), Word(epoch=4, batch=9, step=2)
    assert exchange.hear() is None
    exchange.tell(Word(epoch=3, batch=8, step=2))
    exchange.tell(word)
    assert word == exchange.hear()
    exchange.hand_in(word, 1, loss=0.1, gradients={"w": np.array([0.3])})
    loss, gradients = anyio.run(exchange.collect, word, 1)
    assert (0.1, {"w": [0.3]}) == (loss, {name: g.tolist() for name, g in gradients.items()})
    exchange.clear()
    assert [] == sorted(tmp_path.glob("*.npz"))
    assert word == exchange.hear()


def test_a_missing_library_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_nothing(name: str) -> None:
        assert "torch" == name

    monkeypatch.setattr(importlib.util, "find_spec", find_nothing)
    with pytest.raises(ConfigurationError, match=r"pip install 'redis-replay\[torch\]'"):
        create_learner("torch", seed=1)
