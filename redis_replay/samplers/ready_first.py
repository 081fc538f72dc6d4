"""``ready_first``: bounded dispatch, and no finished rollout is ever thrown away.

* Admission: gated by ``max_staleness_versions``; not stamped.
* Eligible: ready groups with ``start_weight <= w``, without a lower bound: stragglers stay
  selectable.
* Order: buffer order.
* Eviction: none, ever.
* Cost: proportional to the groups asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from redis_replay.meta import KVBatchMeta
from redis_replay.samplers.base import SamplerBuffer
from redis_replay.samplers.gated import _GatedSampler  # pyright: ignore[reportPrivateUsage]
from redis_replay.selection import Rule, Selection, validate_version


class ReadyFirstSampler(_GatedSampler):
    """Whatever is ready first, of any past version."""

    supports_buffer_checkpoint: ClassVar[bool] = True
    supports_training_claims: ClassVar[bool] = True

    max_staleness_versions: int

    def __init__(self, buffer: SamplerBuffer, *, max_staleness_versions: int) -> None:
        validate_version("max_staleness_versions", max_staleness_versions)
        super().__init__(buffer, gate_window=max_staleness_versions)
        self.max_staleness_versions = max_staleness_versions

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim ready groups in buffer order, those from the future excepted."""
        selection = Selection(
            rule=Rule.ARRIVAL,
            lowest=0,
            highest=current_train_weight,
            min_prompt_groups=min_prompt_groups,
            max_prompt_groups=max_prompt_groups,
        )
        await self.flush()
        return await self._buffer.claim(selection)

    async def evict(self, *, current_train_weight: int) -> int:
        """Drop nothing."""
        await self.flush()
        return 0

    def _policy_name(self) -> str:
        return "ready_first" if type(self) is ReadyFirstSampler else super()._policy_name()

    def _windows(self) -> Mapping[str, object]:
        return {"max_staleness_versions": self.max_staleness_versions}
