"""Build the sampler that a configuration names, and answer what its class is trusted with.

Built-in policies are one table: config class, sampler class, keywords. A custom class is judged
before it is constructed, by static look-ups only, so that no property of a stranger runs:

1. ``target`` must be ``module:ClassName`` and name a class;
2. a declared capability must be a plain boolean class attribute;
3. every member of `PromptGroupSampler` must be there (the Protocol's own stubs do not count, and
   an abstract method is missing).

What a class may be trusted with is read by `redis_replay.samplers.trust`.
A class without training claims gets a buffer on which what it selects has ended (D51).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, Final, cast

from redis_replay.protocols import PromptGroupSampler
from redis_replay.samplers.config import (
    CustomSamplerConfig,
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    SamplerConfig,
    WeightFifoSamplerConfig,
    WindowedSamplerConfig,
    parse_sampler_config,
)
from redis_replay.samplers.in_order import InOrderSampler
from redis_replay.samplers.ready_first import ReadyFirstSampler
from redis_replay.samplers.trust import (
    CHECKPOINT,
    CLAIMS,
    Trust,
    declared_capability,
    plain_capability,
    remember_sampler,
    trust_of,
)
from redis_replay.samplers.weight_fifo import WeightFifoSampler
from redis_replay.samplers.windowed import WindowedSampler

_FOR_GOOD: Final = "selecting_for_good"
"""Gives the buffer for a sampler without training claims, where a buffer has it."""

_BUILT_INS: Final[Mapping[type, tuple[type[Any], tuple[str, ...]]]] = {
    WindowedSamplerConfig: (
        WindowedSampler,
        ("max_staleness_versions", "sample_freshest_first", "min_groups_for_streaming_train"),
    ),
    ReadyFirstSamplerConfig: (ReadyFirstSampler, ("max_staleness_versions",)),
    WeightFifoSamplerConfig: (WeightFifoSampler, ("max_staleness_versions",)),
    InOrderSamplerConfig: (
        InOrderSampler,
        ("max_lookahead_versions", "warmup_lookahead_versions"),
    ),
}

_PROTOCOL_BODY: Final = vars(PromptGroupSampler)
_METHODS: Final = frozenset(
    name
    for name, member in _PROTOCOL_BODY.items()
    if inspect.isfunction(member) and not name.startswith("_")
)
_ATTRIBUTES: Final = frozenset(inspect.get_annotations(PromptGroupSampler)) | frozenset(
    name for name, member in _PROTOCOL_BODY.items() if isinstance(member, property)
)


def create_sampler(
    buffer: object,
    cfg: SamplerConfig | Mapping[str, object],
    *,
    min_groups_for_streaming_train: int | None = None,
) -> PromptGroupSampler:
    """Build the sampler that ``cfg`` names; the store is not touched.

    Args:
        buffer: The replay buffer whose session the sampler acts under.
        cfg: A config object, or a mapping with its ``name`` and keys.
        min_groups_for_streaming_train: Smallest batch the trainer takes; only ``windowed`` asks.

    Raises:
        ValueError: The config is wrong, or a custom ``target`` is not ``module:ClassName``.
        TypeError: A custom target is not a class, declares a capability that is not a plain
            boolean class attribute, or lacks members of `PromptGroupSampler` (all are listed).
    """
    config = parse_sampler_config(cfg)
    sampler_class = _sampler_class_for_config(config)
    if isinstance(config, CustomSamplerConfig):
        return _create_custom_sampler(buffer, config, sampler_class)
    offered = {
        **dict(config),
        "min_groups_for_streaming_train": min_groups_for_streaming_train,
    }
    _, keywords = _built_in(config)
    sampler = sampler_class(buffer, **{keyword: offered[keyword] for keyword in keywords})
    return cast(PromptGroupSampler, sampler)


def sampler_supports_buffer_checkpoint(cfg: SamplerConfig | Mapping[str, object]) -> bool:
    """Return whether groups waiting in the buffer may be restored under this sampler.

    The class answers, without being constructed; a custom one must declare it itself.

    Raises:
        TypeError: The declaration is not a boolean class attribute.
    """
    return _supports(parse_sampler_config(cfg), CHECKPOINT)


def sampler_supports_training_claims(cfg: SamplerConfig | Mapping[str, object]) -> bool:
    """Return whether selected groups stay claimed until their step commits.

    A custom class that declares nothing keeps the remove-on-selection behaviour: false.

    Raises:
        TypeError: The declaration is not a boolean class attribute.
    """
    return _supports(parse_sampler_config(cfg), CLAIMS)


def _sampler_class_for_config(cfg: SamplerConfig) -> type[Any]:
    """Return the class that a config names, importing a custom one."""
    if isinstance(cfg, CustomSamplerConfig):
        return _custom_sampler_class(cfg)
    sampler_class, _ = _built_in(cfg)
    return sampler_class


def _built_in(cfg: SamplerConfig) -> tuple[type[Any], tuple[str, ...]]:
    """Return the row of a config's class, or of the built-in one it extends."""
    return next(_BUILT_INS[owner] for owner in type(cfg).__mro__ if owner in _BUILT_INS)


def _custom_sampler_class(cfg: CustomSamplerConfig) -> type[Any]:
    """Import and return the class of a custom config, without constructing it."""
    module_name, colon, class_name = cfg.target.partition(":")
    if not (module_name and colon and class_name):
        raise ValueError(f"custom sampler target must be 'module:ClassName', got {cfg.target!r}")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        error.add_note(f"while importing the custom sampler target {cfg.target!r}")
        raise
    try:
        sampler_class = getattr(module, class_name)
    except AttributeError:
        raise ValueError(
            f"custom sampler target {cfg.target!r}: module {module_name!r} has no {class_name!r}"
        ) from None
    if not isinstance(sampler_class, type):
        raise TypeError(f"custom sampler target is not a class: {cfg.target!r}")
    return sampler_class


def _create_custom_sampler(
    buffer: object, cfg: CustomSamplerConfig, sampler_class: type[Any]
) -> PromptGroupSampler:
    """Judge a custom class, construct it, and judge what only its constructor can have set."""
    trust = _judge(cfg, sampler_class)
    if not trust.claims:
        buffer = getattr(buffer, _FOR_GOOD, lambda: buffer)()
    sampler = sampler_class(buffer, **(cfg.model_extra or {}))
    if missing := _missing_members(sampler):
        _refuse_incomplete(cfg, missing)
    remember_sampler(buffer, trust)
    return cast(PromptGroupSampler, sampler)


def judge_sampler(cfg: SamplerConfig | Mapping[str, object]) -> Trust:
    """Return what the class that a config names is trusted with, without constructing it.

    Raises:
        ValueError, TypeError: as `create_sampler`, but for what only a constructor can tell.
    """
    config = parse_sampler_config(cfg)
    sampler_class = _sampler_class_for_config(config)
    if isinstance(config, CustomSamplerConfig):
        return _judge(config, sampler_class)
    return trust_of(sampler_class)


def _judge(cfg: CustomSamplerConfig, sampler_class: type[Any]) -> Trust:
    trust = trust_of(sampler_class)
    abstract: frozenset[str] = vars(sampler_class).get("__abstractmethods__", frozenset())
    missing = _missing_members(sampler_class) | abstract
    constructor_may_set = _ATTRIBUTES - {CHECKPOINT}
    if abstract or missing - constructor_may_set:
        _refuse_incomplete(cfg, missing)
    return trust


def _missing_members(subject: object) -> frozenset[str]:
    """Return the members of the Protocol that a class or an instance lacks, statically."""
    return frozenset(name for name in _METHODS | _ATTRIBUTES if not _has_member(subject, name))


def _has_member(subject: object, name: str) -> bool:
    found: object = inspect.getattr_static(subject, name, None)
    if found is None or found is _PROTOCOL_BODY.get(name):
        return False
    return name in _ATTRIBUTES or callable(found) or hasattr(type(found), "__get__")


def _refuse_incomplete(cfg: CustomSamplerConfig, missing: frozenset[str]) -> None:
    raise TypeError(
        f"custom sampler {cfg.target!r} does not satisfy PromptGroupSampler; "
        f"missing: {', '.join(sorted(missing))}"
    )


def _supports(cfg: SamplerConfig, capability: str) -> bool:
    """Return a capability of the class that a config names."""
    sampler_class = _sampler_class_for_config(cfg)
    if isinstance(cfg, CustomSamplerConfig):
        return declared_capability(sampler_class, capability)
    return plain_capability(sampler_class, capability)
