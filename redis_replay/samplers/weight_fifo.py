"""``weight_fifo``: one weight version at a time, oldest first.

* Admission: gated by ``max_staleness_versions``; not stamped.
* Eligible: ready groups with ``start_weight == t``, where ``t`` is the smallest in-window start
  weight among all reserved and ready groups. So it waits for the oldest version's batch; claimed
  groups do not count.
* Order: buffer order.
* Eviction: ready groups below the window.
* Cost: proportional to the groups asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from redis_replay.meta import KVBatchMeta
from redis_replay.samplers.base import SamplerBuffer
from redis_replay.samplers.gated import _GatedSampler  # pyright: ignore[reportPrivateUsage]
from redis_replay.selection import Rule, Selection, validate_version


class WeightFifoSampler(_GatedSampler):
    """The oldest in-window version's groups, and no others before them."""

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
        """Claim groups of the oldest version in the window, once enough of them are ready."""
        selection = Selection(
            rule=Rule.OLDEST_VERSION,
            lowest=max(0, current_train_weight - self.max_staleness_versions),
            highest=current_train_weight,
            min_prompt_groups=min_prompt_groups,
            max_prompt_groups=max_prompt_groups,
        )
        await self.flush()
        return await self._buffer.claim(selection)

    def _policy_name(self) -> str:
        return "weight_fifo" if type(self) is WeightFifoSampler else super()._policy_name()

    def _windows(self) -> Mapping[str, object]:
        return {"max_staleness_versions": self.max_staleness_versions}
