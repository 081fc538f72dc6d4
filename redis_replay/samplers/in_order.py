"""``in_order``: every group is stamped with the step that trains it.

* Admission: gated by the live window, first ``max_lookahead_versions``; the stamp is the dispatch
  index. A driver may widen it to ``warmup_lookahead_versions`` and narrow it again; capacity is
  sized for the larger.
* Eligible: ready groups with ``target_step == w``; the weight window plays no part.
* Order: buffer order.
* Eviction: ready groups whose target step is below ``w``, whatever their weight.
* Cost: proportional to the groups asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from redis_replay.meta import KVBatchMeta
from redis_replay.samplers.base import SamplerBuffer
from redis_replay.samplers.config import InOrderSamplerConfig
from redis_replay.samplers.gated import _GatedSampler  # pyright: ignore[reportPrivateUsage]
from redis_replay.selection import Eviction, Rule, Selection


class InOrderSampler(_GatedSampler):
    """The batch of the current step, exactly."""

    supports_buffer_checkpoint: ClassVar[bool] = True
    supports_training_claims: ClassVar[bool] = True

    max_lookahead_versions: int
    warmup_lookahead_versions: int | None
    peak_lookahead_versions: int

    def __init__(
        self,
        buffer: SamplerBuffer,
        *,
        max_lookahead_versions: int,
        warmup_lookahead_versions: int | None = None,
    ) -> None:
        config = InOrderSamplerConfig(
            max_lookahead_versions=max_lookahead_versions,
            warmup_lookahead_versions=warmup_lookahead_versions,
        )
        super().__init__(buffer, gate_window=max_lookahead_versions)
        self.max_lookahead_versions = max_lookahead_versions
        self.warmup_lookahead_versions = warmup_lookahead_versions
        self.peak_lookahead_versions = config.peak_lookahead_versions

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim groups stamped for the current step."""
        selection = Selection(
            rule=Rule.STEP,
            lowest=0,
            highest=current_train_weight,
            min_prompt_groups=min_prompt_groups,
            max_prompt_groups=max_prompt_groups,
        )
        await self.flush()
        return await self._buffer.claim(selection)

    async def evict(self, *, current_train_weight: int) -> int:
        """Drop ready groups of passed steps; return how many."""
        await self.flush()
        return await self._buffer.evict(Eviction(below=current_train_weight, by_target_step=True))

    @property
    def is_on_policy(self) -> bool:
        """Whether the live gate window is 0."""
        return self.gate_window == 0

    def _capacity_window(self) -> int:
        return self.peak_lookahead_versions

    def _stamp(self, index: int) -> int | None:
        return index

    def _policy_name(self) -> str:
        return "in_order" if type(self) is InOrderSampler else super()._policy_name()

    def _windows(self) -> Mapping[str, object]:
        return {
            "max_lookahead_versions": self.max_lookahead_versions,
            "warmup_lookahead_versions": self.warmup_lookahead_versions,
        }
