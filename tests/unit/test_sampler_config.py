"""Sampler configurations: defaults, refusals and the capacity they ask for."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from redis_replay.samplers.config import (
    CustomSamplerConfig,
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    SamplerConfig,
    WeightFifoSamplerConfig,
    WindowedSamplerConfig,
    parse_sampler_config,
    required_buffer_capacity_for_config,
)

_ONE_WINDOW = (WindowedSamplerConfig, ReadyFirstSamplerConfig, WeightFifoSamplerConfig)

_WINDOW_KEYS = [
    ("windowed", "max_staleness_versions"),
    ("ready_first", "max_staleness_versions"),
    ("weight_fifo", "max_staleness_versions"),
    ("in_order", "max_lookahead_versions"),
]

_ALL_WINDOW_KEYS = [*_WINDOW_KEYS, ("in_order", "warmup_lookahead_versions")]

_EXPECTED_DEFAULTS: list[tuple[type, dict[str, Any]]] = [
    (
        WindowedSamplerConfig,
        {"name": "windowed", "max_staleness_versions": 1, "sample_freshest_first": False},
    ),
    (ReadyFirstSamplerConfig, {"name": "ready_first", "max_staleness_versions": 1}),
    (WeightFifoSamplerConfig, {"name": "weight_fifo", "max_staleness_versions": 1}),
    (
        InOrderSamplerConfig,
        {"name": "in_order", "max_lookahead_versions": 1, "warmup_lookahead_versions": None},
    ),
]


@pytest.mark.parametrize(("config_class", "expected"), _EXPECTED_DEFAULTS)
def test_every_window_is_one_and_every_option_off_by_default(
    config_class: Any, expected: dict[str, Any]
) -> None:
    assert expected == config_class().model_dump()


@pytest.mark.parametrize(("config_class", "expected"), _EXPECTED_DEFAULTS)
def test_the_name_alone_chooses_the_policy(config_class: Any, expected: dict[str, Any]) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(SamplerConfig)

    assert config_class() == adapter.validate_python({"name": expected["name"]})
    assert config_class() == parse_sampler_config({"name": expected["name"]})
    assert config_class() == adapter.validate_json(config_class().model_dump_json())


def test_a_mapping_without_a_known_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValidationError, match="name"):
        parse_sampler_config({"max_staleness_versions": 1})
    with pytest.raises(ValidationError) as refused:
        parse_sampler_config({"name": "fifo"})
    for name in ("windowed", "ready_first", "weight_fifo", "in_order", "custom"):
        assert name in str(refused.value)


def test_something_that_is_no_config_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="got str"):
        parse_sampler_config("windowed")  # type: ignore[arg-type]  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "typo"),
    [
        ("windowed", "max_stalenes_versions"),
        ("ready_first", "sample_freshest_first"),
        ("weight_fifo", "max_lookahead_versions"),
        ("in_order", "max_staleness_versions"),
    ],
)
def test_an_unknown_key_of_a_built_in_policy_is_refused_by_name(name: str, typo: str) -> None:
    with pytest.raises(ValidationError, match=typo):
        parse_sampler_config({"name": name, typo: 1})


def test_a_custom_config_keeps_the_keys_it_does_not_know() -> None:
    config = parse_sampler_config({"name": "custom", "target": "m:C", "spread": 0.5, "k": [1]})

    assert isinstance(config, CustomSamplerConfig)
    assert {"spread": 0.5, "k": [1]} == config.model_extra


def test_a_custom_config_needs_a_target() -> None:
    with pytest.raises(ValidationError, match="target"):
        parse_sampler_config({"name": "custom"})


@pytest.mark.parametrize(("name", "key"), _ALL_WINDOW_KEYS)
@pytest.mark.parametrize("window", [-1, True, False, 1.0, "1", 2**53])
def test_a_window_that_is_no_small_natural_number_is_refused_by_name(
    name: str, key: str, window: object
) -> None:
    with pytest.raises(ValidationError, match=key):
        parse_sampler_config({"name": name, key: window})


@pytest.mark.parametrize(("name", "key"), _WINDOW_KEYS)
@pytest.mark.parametrize("window", [0, 1, 2**53 - 1])
def test_a_window_may_be_zero_and_reach_what_the_store_holds_exactly(
    name: str, key: str, window: int
) -> None:
    assert window == parse_sampler_config({"name": name, key: window}).model_dump()[key]


@pytest.mark.parametrize("flag", [1, 0, "yes", None])
def test_freshest_first_is_a_boolean_and_nothing_like_one(flag: object) -> None:
    with pytest.raises(ValidationError, match="sample_freshest_first"):
        parse_sampler_config({"name": "windowed", "sample_freshest_first": flag})


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (InOrderSamplerConfig(warmup_lookahead_versions=2), "max_lookahead_versions"),
        (CustomSamplerConfig(target="m:C"), "target"),
    ],
)
def test_a_config_cannot_be_changed_after_it_was_checked(config: Any, key: str) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, key, 3)


@pytest.mark.parametrize("lookahead", range(4))
@pytest.mark.parametrize("warmup", [None, 0, 1, 2, 3])
def test_a_warmup_window_below_the_steady_one_is_refused_and_the_peak_is_the_larger(
    lookahead: int, warmup: int | None
) -> None:
    if warmup is not None and warmup < lookahead:
        with pytest.raises(ValidationError, match="warmup_lookahead_versions"):
            InOrderSamplerConfig(max_lookahead_versions=lookahead, warmup_lookahead_versions=warmup)
        return
    config = InOrderSamplerConfig(
        max_lookahead_versions=lookahead, warmup_lookahead_versions=warmup
    )

    assert (lookahead if warmup is None else warmup) == config.peak_lookahead_versions


@pytest.mark.parametrize("window", range(7))
@pytest.mark.parametrize("groups_per_step", [1, 2, 16])
def test_a_gated_policy_needs_one_live_batch_and_each_lookahead_batch(
    window: int, groups_per_step: int
) -> None:
    expected = groups_per_step * (window + 1)
    for config in (
        ReadyFirstSamplerConfig(max_staleness_versions=window),
        WeightFifoSamplerConfig(max_staleness_versions=window),
        InOrderSamplerConfig(max_lookahead_versions=window),
    ):
        assert expected == required_buffer_capacity_for_config(config, groups_per_step)
        assert expected == required_buffer_capacity_for_config(
            config, groups_per_step, min_groups_for_streaming_train=1000
        )


def test_in_order_needs_the_places_of_its_warmup_window_for_the_whole_run() -> None:
    config = InOrderSamplerConfig(max_lookahead_versions=1, warmup_lookahead_versions=3)

    assert 16 == required_buffer_capacity_for_config(config, 4)


@pytest.mark.parametrize("minimum", [None, 1, 24])
def test_windowed_needs_only_the_smallest_batch_that_the_trainer_streams(
    minimum: int | None,
) -> None:
    assert minimum == required_buffer_capacity_for_config(
        WindowedSamplerConfig(max_staleness_versions=5),
        8,
        min_groups_for_streaming_train=minimum,
    )


def test_a_custom_sampler_is_not_imported_to_be_asked_for_its_capacity() -> None:
    config = {"name": "custom", "target": "there_is_no_such_module:Sampler"}

    assert required_buffer_capacity_for_config(config, 8, min_groups_for_streaming_train=4) is None


def test_a_capacity_question_takes_a_plain_mapping_too() -> None:
    config = {"name": "in_order", "max_lookahead_versions": 2}

    assert 12 == required_buffer_capacity_for_config(config, 4)


@pytest.mark.parametrize("config_class", _ONE_WINDOW)
def test_a_config_with_other_defaults_keeps_the_rules_of_the_one_it_extends(
    config_class: Any,
) -> None:
    class HouseConfig(config_class):  # type: ignore[misc]
        max_staleness_versions: int = 3

    assert required_buffer_capacity_for_config(
        config_class(max_staleness_versions=3), 2
    ) == required_buffer_capacity_for_config(HouseConfig(), 2)
