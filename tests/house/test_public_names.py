"""What the package offers: sorted, complete, explained, and called by keyword."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping

import pytest

import redis_replay
from tests.house.python_source import Module, findings, is_public, modules

EVERY_SAMPLER = frozenset(
    {
        *("admit", "select", "evict", "should_abort_inflight", "is_on_policy"),
        *("supports_buffer_checkpoint", "supports_training_claims", "required_buffer_capacity"),
        *("dispatch_index", "set_dispatch_index", "restore_dispatch_index"),
        *("wait_until_admissible", "commit_admission"),
    }
)
SEED_NAMES: Mapping[str, frozenset[str]] = {
    "WindowedSampler": EVERY_SAMPLER,
    "ReadyFirstSampler": EVERY_SAMPLER | {"set_gate_window"},
    "WeightFifoSampler": EVERY_SAMPLER | {"set_gate_window"},
    "InOrderSampler": EVERY_SAMPLER | {"set_gate_window"},
    "RedisReplayBuffer": frozenset(
        {
            *("reserve", "commit", "claim_for_training", "release_training_claims"),
            *("training_owned_group_ids", "training_owned_replay_groups", "requeue", "remove"),
            *("remove_group", "abort", "evict", "promote_ready_group", "count_for_target_step"),
            *("size", "slots", "stats", "reserve_when_free"),
        }
    ),
    "SamplePlane": frozenset({"put_samples", "get_samples", "clear_samples", "list_sample_ids"}),
    "ReplayStore": frozenset(
        {"buffer", "samples", "trainer", "rollout", "mutation", "audit", "stats"}
    ),
    "TrainerSession": frozenset({"select", "commit_step", "abort_step", "transfer_claims"}),
    "RolloutSession": frozenset({"take_tickets", "mutation"}),
    "DataPlaneMutationCut": frozenset({"reserve", "set_loader_state", "require_live"}),
    "StepRewardStats": frozenset(
        {
            *("groups", "zero_variance_groups", "reward_sum", "samples"),
            *("first_attempt_reward_sum", "first_attempt_samples"),
        }
    ),
    "PromptGroupRecord": frozenset(
        {
            *("prompt_idx", "prompt", "extra_env_info", "metadata", "completions"),
            *("rollout_metrics", "loss_multiplier"),
        }
    ),
    "Completion": frozenset({"message_log", "env_extras", "truncated", "reward"}),
    "KVBatchMeta": frozenset(
        {
            *("partition_id", "task_name", "sample_ids", "fields", "sequence_lengths"),
            *("extra_info", "tags", "subset", "slice", "concat", "size"),
        }
    ),
    "WindowedSamplerConfig": frozenset({"name", "max_staleness_versions", "sample_freshest_first"}),
    "ReadyFirstSamplerConfig": frozenset({"name", "max_staleness_versions"}),
    "WeightFifoSamplerConfig": frozenset({"name", "max_staleness_versions"}),
    "InOrderSamplerConfig": frozenset(
        {
            *("name", "max_lookahead_versions", "warmup_lookahead_versions"),
            "peak_lookahead_versions",
        }
    ),
    "CustomSamplerConfig": frozenset({"name", "target"}),
}
"""Names that a program written for the seed, or for this store, relies on."""

SEED_POSITIONAL = frozenset(
    {
        *("create_sampler", "required_buffer_capacity_for_config", "drain_step_reward_metrics"),
        *("record_group_rewards", "RedisReplayBuffer.commit", "KVBatchMeta.slice"),
        "GroupFilter.commit",
        "Checkpoints.export",
    }
)
"""Callables whose second argument is positional: it is in the seed, takes its place, or is the
destination of a copy.
"""

PUBLIC = {name: getattr(redis_replay, name) for name in redis_replay.__all__}
CLASSES = {name: found for name, found in PUBLIC.items() if inspect.isclass(found)}
FUNCTIONS = {name: found for name, found in PUBLIC.items() if inspect.isfunction(found)}


def names_of(cls: type) -> set[str]:
    """Return attributes, fields and annotations of a class."""
    annotated = set[str]().union(*(getattr(c, "__annotations__", ()) for c in cls.__mro__))
    return {*dir(cls), *annotated, *getattr(cls, "model_fields", ())}


def test_public_names_are_sorted_and_stand_once() -> None:
    assert sorted(set(redis_replay.__all__)) == redis_replay.__all__


def test_public_names_are_those_that_the_package_imports() -> None:
    [package] = [module for module in modules() if module.name == ""]
    imported = {name.rpartition(".")[2] for name in package.imports()}
    assert sorted(imported | {"__version__"}) == redis_replay.__all__


@pytest.mark.parametrize("name", SEED_NAMES)
def test_a_class_has_the_names_that_programs_rely_on(name: str) -> None:
    assert set() == SEED_NAMES[name] - names_of(CLASSES[name])


def test_the_ungated_policy_has_no_gate_to_retune() -> None:
    assert not hasattr(redis_replay.WindowedSampler, "set_gate_window")


@pytest.mark.parametrize("name", sorted({*CLASSES, *FUNCTIONS}))
def test_a_public_name_is_explained_where_it_is_defined(name: str) -> None:
    explanation = PUBLIC[name].__doc__
    assert explanation
    assert not explanation.startswith(f"{name}("), "a dataclass without a docstring of its own"


def callables() -> Iterator[tuple[str, inspect.Signature]]:
    """Yield the public functions and methods with their signatures, ``self`` left out."""
    for name, function in FUNCTIONS.items():
        yield name, inspect.signature(function)
    for name, cls in CLASSES.items():
        for method_name, method in vars(cls).items():
            if inspect.isfunction(method) and is_public(method_name):
                signature = inspect.signature(method)
                parameters = list(signature.parameters.values())[1:]
                yield f"{name}.{method_name}", signature.replace(parameters=parameters)


def test_arguments_after_the_first_are_keyword_only() -> None:
    loose = {
        name
        for name, signature in callables()
        for parameter in list(signature.parameters.values())[1:]
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    }
    assert SEED_POSITIONAL == loose


def test_no_public_method_takes_a_positional_boolean() -> None:
    boolean = [
        name
        for name, signature in callables()
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and "bool" in str(parameter.annotation)
    ]
    assert [] == boolean


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def is_stub(node: Definition) -> bool:
    """Return whether a body is ``...`` alone: a member of a Protocol, explained by its name."""
    [first, *others] = node.body
    return (
        not others
        and isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and first.value.value is ...
    )


def is_script(node: ast.ClassDef) -> bool:
    """Return whether a class is the call of a Lua script, whose header explains it."""
    return any(
        isinstance(part, ast.Assign) and getattr(part.targets[0], "id", "") == "SCRIPT"
        for part in node.body
    )


def unexplained(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield public definitions without a docstring; what is inside functions is not public."""
    for node in body:
        if not isinstance(node, Definition) or not is_public(node.name):
            continue
        if isinstance(node, ast.ClassDef) and is_script(node):
            continue
        if ast.get_docstring(node) is None and not is_stub(node):
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from unexplained(node.body, f"{prefix}{node.name}.")


def test_a_module_says_what_is_in_it() -> None:
    silent = [module.name for module in modules() if not ast.get_docstring(module.tree)]
    assert [] == silent


def test_public_classes_functions_and_methods_have_docstrings() -> None:
    assert {} == findings(lambda module: unexplained(module.tree.body))


def docstrings(module: Module) -> Iterator[tuple[str, str]]:
    """Yield every docstring of a module with the name it explains."""
    for node in ast.walk(module.tree):
        if isinstance(node, Definition | ast.Module):
            text = ast.get_docstring(node, clean=True)
            if text is not None:
                yield getattr(node, "name", module.name), text


def ragged(module: Module) -> Iterator[str]:
    """Yield what is explained by a docstring whose first paragraph ends in mid-sentence."""
    for name, text in docstrings(module):
        if not text.split("\n\n")[0].rstrip().endswith((".", ":", "?")):
            yield name


def test_a_docstring_begins_with_whole_sentences() -> None:
    assert {} == findings(ragged)
