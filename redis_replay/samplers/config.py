"""Sampler configurations: one model per policy, told apart by ``name``.

Each policy has its own model with its own few numbers, so combinations that mean nothing cannot be
written down. A key that a built-in policy does not know is an error that names the key: a typo
must not silently change the policy. Windows are plain integers (``true`` is not 1 here) from 0 to
below 2**53, which is what the store holds exactly.

====================  =============================================================================
``name``              window
====================  =============================================================================
``windowed``          ``max_staleness_versions``: largest lag of a group that is trained
``ready_first``       ``max_staleness_versions``: batches dispatched ahead of the trainer
``weight_fifo``       ``max_staleness_versions``: both of the above
``in_order``          ``max_lookahead_versions``: batches dispatched ahead of the trainer
``custom``            whatever the class named by ``target`` takes
====================  =============================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictStr,
    TypeAdapter,
    model_validator,
)

from redis_replay.types import MAX_EXACT_INTEGER

VersionWindow = Annotated[int, Field(strict=True, ge=0, lt=MAX_EXACT_INTEGER)]
"""A number of weight versions or of dispatch batches; a boolean is refused."""


class _SamplerConfigBase(BaseModel):
    """What the five models share: values that do not change and know their gate."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @property
    def peak_gate_window(self) -> int | None:
        """The widest window of the dispatch gate; ``None`` when the policy has no gate."""
        return None


class WindowedSamplerConfig(_SamplerConfigBase):
    """Over-sampled selection: nothing gates the dispatch, groups older than the window go.

    Attributes:
        max_staleness_versions: Largest lag a selected group may have.
        sample_freshest_first: Select by (lag, buffer order) instead of buffer order.
    """

    name: Literal["windowed"] = "windowed"
    max_staleness_versions: VersionWindow = 1
    sample_freshest_first: StrictBool = False


class ReadyFirstSamplerConfig(_SamplerConfigBase):
    """Gated dispatch, any ready group in buffer order; nothing is ever dropped.

    Attributes:
        max_staleness_versions: How many batches generation may run ahead of the trainer.
    """

    name: Literal["ready_first"] = "ready_first"
    max_staleness_versions: VersionWindow = 1

    @property
    def peak_gate_window(self) -> int:
        """The window of the dispatch gate, which capacity must cover."""
        return self.max_staleness_versions


class WeightFifoSamplerConfig(_SamplerConfigBase):
    """Gated dispatch, oldest weight version of the window first and alone.

    Attributes:
        max_staleness_versions: How many batches generation may run ahead of the trainer, and the
            largest lag a selected group may have.
    """

    name: Literal["weight_fifo"] = "weight_fifo"
    max_staleness_versions: VersionWindow = 1

    @property
    def peak_gate_window(self) -> int:
        """The window of the dispatch gate, which capacity must cover."""
        return self.max_staleness_versions


class InOrderSamplerConfig(_SamplerConfigBase):
    """Gated dispatch, each batch stamped with the step that trains it.

    Attributes:
        max_lookahead_versions: How many batches generation may run ahead of the trainer.
        warmup_lookahead_versions: A wider window that the driver may open for a while; capacity
            is sized for it during the whole run. ``None`` for no such phase.
    """

    name: Literal["in_order"] = "in_order"
    max_lookahead_versions: VersionWindow = 1
    warmup_lookahead_versions: VersionWindow | None = None

    @model_validator(mode="after")
    def validate_warmup_lookahead(self) -> InOrderSamplerConfig:
        """Refuse a warm-up window that is narrower than the one it widens."""
        warmup = self.warmup_lookahead_versions
        if warmup is not None and warmup < self.max_lookahead_versions:
            raise ValueError(
                f"warmup_lookahead_versions ({warmup}) must be greater than or equal to "
                f"max_lookahead_versions ({self.max_lookahead_versions})"
            )
        return self

    @property
    def peak_lookahead_versions(self) -> int:
        """The widest window the run can reach."""
        return max(self.max_lookahead_versions, self.warmup_lookahead_versions or 0)

    @property
    def peak_gate_window(self) -> int:
        """The widest window of the dispatch gate, which capacity must cover."""
        return self.peak_lookahead_versions


class CustomSamplerConfig(_SamplerConfigBase):
    """A `PromptGroupSampler` defined elsewhere.

    Attributes:
        target: ``"module:ClassName"``. All other keys go to its constructor, after the buffer.
    """

    model_config = ConfigDict(extra="allow")

    name: Literal["custom"] = "custom"
    target: StrictStr


SamplerConfig = Annotated[
    WindowedSamplerConfig
    | ReadyFirstSamplerConfig
    | WeightFifoSamplerConfig
    | InOrderSamplerConfig
    | CustomSamplerConfig,
    Field(discriminator="name"),
]
"""Any of the five, chosen by ``name``."""

_ADAPTER: Final[TypeAdapter[SamplerConfig]] = TypeAdapter(SamplerConfig)


def parse_sampler_config(cfg: SamplerConfig | Mapping[str, object]) -> SamplerConfig:
    """Return a configuration object for a configuration object or a plain mapping.

    Raises:
        TypeError: Neither of the two.
        ValueError: The mapping has no known ``name``, an unknown key or an impossible number
            (pydantic's ``ValidationError``, which names the key).
    """
    if isinstance(cfg, _SamplerConfigBase):
        return cfg
    if not isinstance(cfg, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"a sampler config must be one of the config classes or a mapping with a 'name', "
            f"got {type(cfg).__name__}"
        )
    return _ADAPTER.validate_python(dict(cfg))


def required_buffer_capacity_for_config(
    cfg: SamplerConfig | Mapping[str, object],
    groups_per_step: int,
    *,
    min_groups_for_streaming_train: int | None = None,
) -> int | None:
    """Return the places a policy needs, in groups, without constructing or importing anything.

    Args:
        cfg: Which policy, with its windows.
        groups_per_step: Prompt groups of one dispatch batch.
        min_groups_for_streaming_train: Smallest batch the trainer takes; only ``windowed`` asks.

    Returns:
        ``None`` when any capacity will do, and for every custom sampler.
    """
    config = parse_sampler_config(cfg)
    if config.peak_gate_window is not None:
        return _gated_required_buffer_capacity(groups_per_step, gate_window=config.peak_gate_window)
    return min_groups_for_streaming_train if config.name == "windowed" else None


def _gated_required_buffer_capacity(groups_per_step: int, *, gate_window: int) -> int:
    """Return the places for one live batch plus each batch of the gate's window."""
    return groups_per_step * (gate_window + 1)
