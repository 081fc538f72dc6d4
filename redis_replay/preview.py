"""What a policy would select and evict, without a script and without changing anything.

A sampler is run against a list of slots. The rules are those of ``pick.lua`` and ``evict.lua`` over
plain numbers; a test compares both on the same groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis_replay.meta import KVBatchMeta
from redis_replay.samplers.base import AdmissionPort, PolicyBinding
from redis_replay.samplers.config import SamplerConfig
from redis_replay.samplers.factory import create_sampler
from redis_replay.selection import Eviction, Rule, Selection
from redis_replay.types import MAX_GROUPS_PER_CALL, GroupState, SlotView

Slots = Sequence[SlotView]


def _buffer(ready: Slots, live: Slots, chosen: Selection) -> Slots:
    return [s for s in ready if chosen.lowest <= s.start_weight_version <= chosen.highest]


def _freshest(ready: Slots, live: Slots, chosen: Selection) -> Slots:
    return sorted(_buffer(ready, live, chosen), key=lambda s: -s.start_weight_version)


def _oldest_version(ready: Slots, live: Slots, chosen: Selection) -> Slots:
    oldest = min((s.start_weight_version for s in _buffer(live, live, chosen)), default=None)
    return [s for s in ready if s.start_weight_version == oldest]


def _arrival(ready: Slots, live: Slots, chosen: Selection) -> Slots:
    return [s for s in ready if s.start_weight_version <= chosen.highest]


def _step(ready: Slots, live: Slots, chosen: Selection) -> Slots:
    return [s for s in ready if s.target_step == chosen.highest]


_RULES: Final[Mapping[Rule, Callable[[Slots, Slots, Selection], Slots]]] = {
    Rule.BUFFER: _buffer,
    Rule.FRESHEST: _freshest,
    Rule.OLDEST_VERSION: _oldest_version,
    Rule.ARRIVAL: _arrival,
    Rule.STEP: _step,
}


def picked(slots: Slots, chosen: Selection) -> list[str]:
    """Return the ids of the groups that a selection takes from slots in buffer order."""
    ready = [slot for slot in slots if slot.state is GroupState.READY]
    live = [slot for slot in slots if slot.state in (GroupState.READY, GroupState.RESERVED)]
    found = _RULES[chosen.rule](ready, live, chosen)[: chosen.max_prompt_groups]
    return [slot.group_id for slot in found] if len(found) >= chosen.min_prompt_groups else []


def dropped(slots: Slots, eviction: Eviction) -> list[str]:
    """Return the ids of the groups that an eviction drops."""
    numbers = [
        (slot.group_id, slot.target_step if eviction.by_target_step else slot.start_weight_version)
        for slot in slots
        if slot.state is GroupState.READY
    ]
    return [name for name, number in numbers if number is not None and number < eviction.below]


@dataclass(frozen=True, slots=True)
class PolicyPreview:
    """What one policy would do at a step.

    Attributes:
        selected: Ids in selection order.
        evicted: Ids that the first eviction drops.
    """

    selected: tuple[str, ...]
    evicted: tuple[str, ...]


async def preview_policy(
    slots: Slots, cfg: SamplerConfig, *, step: int, min_prompt_groups: int = 1
) -> PolicyPreview:
    """Return what a policy would evict at a step, and then select. A pure function of its input.

    Args:
        slots: Live groups in buffer order.
        cfg: The policy with its windows.
        step: The trainer version.
        min_prompt_groups: Fewest groups to take.
    """
    buffer = _SlotsOnly(list(slots), _NoAdmission(step))
    sampler = create_sampler(buffer, cfg)
    await sampler.evict(current_train_weight=step)
    gone = set(buffer.evicted)
    buffer.listed = [slot for slot in slots if slot.group_id not in gone]
    await sampler.select(
        current_train_weight=step,
        min_prompt_groups=min_prompt_groups,
        max_prompt_groups=MAX_GROUPS_PER_CALL,
    )
    return PolicyPreview(tuple(buffer.selected), tuple(buffer.evicted))


@dataclass
class _NoAdmission:
    """An admission that dispatches nothing and writes nothing."""

    trainer_version: int
    dispatch_index: int = -1
    gate_window: int | None = None
    seen_version: int = 0
    groups_per_step: int | None = None

    async def refresh(self) -> None:
        """Read nothing."""

    async def bind(self, binding: PolicyBinding) -> None:
        """Write nothing."""

    async def seed(self, dispatch_index: int, *, exact: bool) -> None:
        """Write nothing."""

    async def set_gate_window(self, gate_window: int) -> None:
        """Write nothing."""

    async def wait_until_open(
        self, trainer_version_fn: Callable[[], int], *, poll_seconds: float
    ) -> None:
        """Wait for nothing."""

    async def admit(self) -> int | None:
        """Admit nothing."""
        return None


@dataclass
class _SlotsOnly:
    """A sampler's buffer that answers from a list of slots and claims nothing."""

    listed: Slots
    admission: AdmissionPort
    selected: list[str] = field(default_factory=list)
    evicted: list[str] = field(default_factory=list)

    async def claim(self, selection: Selection) -> tuple[KVBatchMeta | None, int]:
        """Note what would be claimed."""
        self.selected = picked(self.listed, selection)
        return None, 0

    async def claim_for_training(self, group_ids: list[str]) -> KVBatchMeta:
        """Note what would be claimed, for a custom sampler that claims by id."""
        self.selected = list(group_ids)
        return KVBatchMeta("", None, [])

    async def evict(self, eviction: Eviction) -> int:
        """Note what would be dropped."""
        self.evicted = dropped(self.listed, eviction)
        return len(self.evicted)

    async def slots(self) -> list[SlotView]:
        """Return the slots."""
        return list(self.listed)

    async def rewards(self, group_ids: list[str]) -> list[tuple[float, ...] | None]:
        """Return no rewards: rows are not read."""
        return [None] * len(group_ids)
