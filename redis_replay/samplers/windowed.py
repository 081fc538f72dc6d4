"""``windowed``: over-sampled selection inside a staleness window, no gate.

* Admission: never gated, never stamped; no cursor moves. Buffer capacity is the only bound.
* Eligible: ready groups with ``max(0, w-K) <= start_weight <= w``.
* Order: buffer order; with ``sample_freshest_first`` by (lag, buffer order).
* Eviction: ready groups below the window. In-flight rollouts below it should be aborted.
* Cost: proportional to the groups asked for times the versions in the window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from redis_replay.meta import KVBatchMeta
from redis_replay.protocols import LiveCut
from redis_replay.samplers.base import BaseSampler, SamplerBuffer
from redis_replay.selection import Rule, Selection, validate_version


class WindowedSampler(BaseSampler):
    """Any ready group of the last ``max_staleness_versions`` versions."""

    supports_buffer_checkpoint: ClassVar[bool] = True
    supports_training_claims: ClassVar[bool] = True

    max_staleness_versions: int
    sample_freshest_first: bool
    min_groups_for_streaming_train: int | None

    def __init__(
        self,
        buffer: SamplerBuffer,
        *,
        max_staleness_versions: int,
        sample_freshest_first: bool = False,
        min_groups_for_streaming_train: int | None = None,
    ) -> None:
        super().__init__(buffer)
        validate_version("max_staleness_versions", max_staleness_versions)
        self.max_staleness_versions = max_staleness_versions
        self.sample_freshest_first = sample_freshest_first
        self.min_groups_for_streaming_train = min_groups_for_streaming_train

    async def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Return at once: this policy has no gate."""
        await self.flush()

    def commit_admission(self, cut: LiveCut) -> int | None:
        """Return no stamp and move no cursor; an expired cut is still refused."""
        cut.require_live()
        return None

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Return no stamp at once."""
        await self.wait_until_admissible(trainer_version_fn=trainer_version_fn)
        return None

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim groups of the window, oldest place first or freshest version first."""
        selection = Selection(
            rule=Rule.FRESHEST if self.sample_freshest_first else Rule.BUFFER,
            lowest=max(0, current_train_weight - self.max_staleness_versions),
            highest=current_train_weight,
            min_prompt_groups=min_prompt_groups,
            max_prompt_groups=max_prompt_groups,
        )
        await self.flush()
        return await self._buffer.claim(selection)

    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether the rollout's start weight has left the window."""
        return start_weight_version < max(0, current_train_weight - self.max_staleness_versions)

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return the smallest streaming batch, ``None`` when it was not given."""
        return self.min_groups_for_streaming_train

    def _eviction_window(self) -> int:
        return self.max_staleness_versions

    def _policy_name(self) -> str:
        return "windowed" if type(self) is WindowedSampler else super()._policy_name()

    def _windows(self) -> Mapping[str, object]:
        return {
            "max_staleness_versions": self.max_staleness_versions,
            "sample_freshest_first": self.sample_freshest_first,
        }
