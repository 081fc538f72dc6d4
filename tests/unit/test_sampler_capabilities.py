"""What a sampler class is trusted with: recovery of the buffer, and training claims."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from redis_replay.samplers.base import BaseSampler
from redis_replay.samplers.config import parse_sampler_config
from redis_replay.samplers.factory import (
    create_sampler,
    sampler_supports_buffer_checkpoint,
    sampler_supports_training_claims,
)
from redis_replay.samplers.in_order import InOrderSampler
from redis_replay.samplers.ready_first import ReadyFirstSampler
from redis_replay.samplers.weight_fifo import WeightFifoSampler
from redis_replay.samplers.windowed import WindowedSampler

Supports = Callable[[Any], bool]

CAPABILITIES: list[tuple[str, Supports]] = [
    ("supports_buffer_checkpoint", sampler_supports_buffer_checkpoint),
    ("supports_training_claims", sampler_supports_training_claims),
]


def _never_constructed(self: object, *_: object, **__: object) -> None:
    raise AssertionError("the class was constructed")


@pytest.fixture
def target_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[object], str]:
    """Put an object into an importable module of a stranger; return its target."""
    module = ModuleType("package_of_a_stranger")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def place(thing: object) -> str:
        vars(module)["Thing"] = thing
        return "package_of_a_stranger:Thing"

    return place


def _custom(target: str, **extras: object) -> dict[str, object]:
    return {"name": "custom", "target": target, **extras}


@pytest.mark.parametrize("name", ["windowed", "ready_first", "weight_fifo", "in_order"])
@pytest.mark.parametrize(("_capability", "supports"), CAPABILITIES)
def test_a_built_in_policy_is_trusted_with_recovery_and_with_claims(
    name: str, _capability: str, supports: Supports
) -> None:
    assert supports({"name": name}) is True
    assert supports(parse_sampler_config({"name": name})) is True


@pytest.mark.parametrize(("capability", "supports"), CAPABILITIES)
@pytest.mark.parametrize("value", [property(lambda self: True), 1, 0, None, "yes", object])
def test_a_capability_that_is_no_plain_boolean_is_refused_before_construction(
    capability: str, supports: Supports, value: object, target_of: Callable[[object], str]
) -> None:
    body = {"__init__": _never_constructed, capability: value}
    config = _custom(target_of(type("Dynamic", (InOrderSampler,), body)))

    with pytest.raises(TypeError, match=f"Dynamic.{capability} must be a boolean class attribute"):
        create_sampler(object(), config)
    with pytest.raises(TypeError, match="boolean class attribute"):
        supports(config)


def test_a_dynamic_capability_is_named_even_where_members_are_missing_too(
    target_of: Callable[[object], str],
) -> None:
    class Bare:
        __init__ = _never_constructed

        @property
        def supports_buffer_checkpoint(self) -> bool:
            raise AssertionError("the factory evaluated a property")

    with pytest.raises(TypeError, match="boolean class attribute"):
        create_sampler(object(), _custom(target_of(Bare)))


@pytest.mark.parametrize(("capability", "supports"), CAPABILITIES)
@pytest.mark.parametrize(
    "base", [InOrderSampler, WindowedSampler, WeightFifoSampler, ReadyFirstSampler, BaseSampler]
)
def test_what_a_built_in_is_trusted_with_is_not_inherited(
    capability: str, supports: Supports, base: type, target_of: Callable[[object], str]
) -> None:
    silent = type("Silent", (base,), {"__init__": _never_constructed})
    assert supports(_custom(target_of(silent))) is False

    for declared in (True, False):
        body = {"__init__": _never_constructed, capability: declared}
        speaking = type("Speaking", (base,), body)
        assert supports(_custom(target_of(speaking))) is declared


@pytest.mark.parametrize(("capability", "supports"), CAPABILITIES)
def test_a_declaration_of_a_strangers_base_class_counts_and_the_nearest_one_wins(
    capability: str, supports: Supports, target_of: Callable[[object], str]
) -> None:
    base = type("StrangersBase", (InOrderSampler,), {capability: True})
    heir = type("Heir", (base,), {})
    doubter = type("Doubter", (base,), {capability: False})

    assert supports(_custom(target_of(heir))) is True
    assert supports(_custom(target_of(doubter))) is False


@pytest.mark.parametrize(("capability", "supports"), CAPABILITIES)
def test_an_annotation_without_a_value_declares_nothing(
    capability: str, supports: Supports, target_of: Callable[[object], str]
) -> None:
    annotated = type("Annotated", (InOrderSampler,), {"__annotations__": {capability: bool}})

    assert supports(_custom(target_of(annotated))) is False


def test_a_package_whose_name_only_begins_like_ours_is_a_strangers(
    target_of: Callable[[object], str],
) -> None:
    base = type("Theirs", (InOrderSampler,), {"supports_buffer_checkpoint": True})
    base.__module__ = "redis_replay_extras.samplers"

    assert sampler_supports_buffer_checkpoint(_custom(target_of(type("Heir", (base,), {}))))


@pytest.mark.parametrize(("_capability", "supports"), CAPABILITIES)
def test_a_built_in_named_as_a_custom_target_speaks_for_itself_only(
    _capability: str, supports: Supports
) -> None:
    config = _custom("redis_replay.samplers.in_order:InOrderSampler")

    assert (_capability in vars(InOrderSampler)) is supports(config)
