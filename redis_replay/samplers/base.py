"""What the built-in policies share, and what a custom one may build on.

Synchronous members do no I/O: readers answer from the newest reply that this process has seen,
setters validate and act in this process at once and are written before the sampler's next awaited
call does anything else (`flush`). Constructors do not touch the store; the policy is written into
the run at the first awaited call (D17, D22, D23).
"""

from __future__ import annotations

import abc
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol

import anyio

from redis_replay.errors import StoreError
from redis_replay.meta import KVBatchMeta
from redis_replay.processes import require_own_process
from redis_replay.samplers.trust import remember_sampler, trust_of
from redis_replay.selection import Eviction, Selection, validate_group_bounds, validate_version
from redis_replay.types import SlotView

_LOG = logging.getLogger(__name__)

_GATE_POLL_SECONDS: Final = 0.005
"""How often a waiter re-reads ``trainer_version_fn``, a local call that costs no command."""

NOTHING_DISPATCHED: Final = -1


@dataclass(frozen=True, slots=True)
class PolicyBinding:
    """A policy as it is written into the run.

    Attributes:
        windows: Its settings as sorted JSON.
        gate_window: Configured window of the admission gate, ``None`` for an ungated policy.
        required_capacity: Groups it needs places for, ``None`` when unconstrained.
    """

    name: str
    windows: str
    gate_window: int | None
    required_capacity: int | None


class AdmissionPort(Protocol):
    """The side of the store that admission needs."""

    @property
    def dispatch_index(self) -> int: ...

    @property
    def trainer_version(self) -> int: ...

    @property
    def gate_window(self) -> int | None: ...

    @property
    def seen_version(self) -> int: ...

    @property
    def groups_per_step(self) -> int | None: ...

    async def refresh(self) -> None: ...

    async def bind(self, binding: PolicyBinding) -> None: ...

    async def seed(self, dispatch_index: int, *, exact: bool) -> None: ...

    async def set_gate_window(self, gate_window: int) -> None: ...

    async def wait_until_open(
        self, trainer_version_fn: Callable[[], int], *, poll_seconds: float
    ) -> None: ...

    async def admit(self) -> int | None: ...


class SamplerBuffer(Protocol):
    """The side of the replay buffer that a built-in policy needs."""

    @property
    def admission(self) -> AdmissionPort: ...

    async def claim(self, selection: Selection) -> tuple[KVBatchMeta | None, int]: ...

    async def claim_for_training(self, group_ids: list[str]) -> KVBatchMeta: ...

    async def evict(self, eviction: Eviction) -> int: ...

    async def slots(self) -> list[SlotView]: ...

    async def rewards(self, group_ids: list[str]) -> list[tuple[float, ...] | None]: ...


class BaseSampler(abc.ABC):
    """Shared machinery: the cursor, binding, eviction by weight window, exact claims."""

    supports_buffer_checkpoint: ClassVar[bool] = False
    supports_training_claims: ClassVar[bool] = True

    def __init__(self, buffer: SamplerBuffer) -> None:
        self._buffer = buffer
        self._bound = False
        self._seed: tuple[int, bool] | None = None
        self._flushing = anyio.Lock(fast_acquire=True)
        self._maker = os.getpid()
        remember_sampler(buffer, trust_of(type(self)))

    @abc.abstractmethod
    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Wait until the next batch may dispatch, advance the cursor, return the stamp."""

    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch, as of the newest reply this process has seen."""
        if self._seed is not None:
            return self._seed[0]
        return self._buffer.admission.dispatch_index

    def set_dispatch_index(self, resume_from_trainer_version: int) -> None:
        """Seed the cursor of a run that never admitted: the next batch gets this index.

        On a run that has admitted, the stored cursor stays; both numbers are logged (D21).

        Raises:
            ValueError: the version is negative, or 2**53 and more.
        """
        if resume_from_trainer_version < 0:
            raise ValueError(
                "resume_from_trainer_version must be non-negative, got "
                f"{resume_from_trainer_version}"
            )
        validate_version("resume_from_trainer_version", resume_from_trainer_version)
        self._seed = (resume_from_trainer_version - 1, False)

    def restore_dispatch_index(self, dispatch_index: int) -> None:
        """Seed the exact cursor; `flush` raises `CursorConflict` where the run holds another.

        Raises:
            ValueError: below -1, or 2**53 and more.
        """
        if dispatch_index < NOTHING_DISPATCHED:
            raise ValueError(f"dispatch_index must be at least -1, got {dispatch_index}")
        validate_version("dispatch_index", dispatch_index, least=NOTHING_DISPATCHED)
        self._seed = (dispatch_index, True)

    async def refresh(self) -> None:
        """Read the control record, so that the synchronous readers are current."""
        await self._buffer.admission.refresh()

    async def flush(self) -> None:
        """Write what setters staged, and bind the policy at the first call. May be repeated.

        A seed or window that the run refused is dropped; one that the server did not answer for is
        written again by the next call. Tasks that share a sampler wait for one another here, so
        none of them goes on without what was staged before.

        Raises:
            PolicyMismatch: the run is bound to another policy.
            CapacityTooSmall: the policy would wait for ever in the run's capacity.
            CursorConflict: an exact seed contradicts the stored cursor.
            ForkedStore: this process was forked from the one that made the sampler.
        """
        require_own_process(self._maker)
        async with self._flushing:
            await self._write_staged()

    async def _write_staged(self) -> None:
        admission = self._buffer.admission
        if not self._bound:
            await admission.bind(self._binding())
            self._bound = True
        if self._seed is not None:
            staged, self._seed = self._seed, None
            try:
                await admission.seed(staged[0], exact=staged[1])
            except StoreError:
                self._seed = staged if self._seed is None else self._seed
                raise

    def _binding(self) -> PolicyBinding:
        groups = self._buffer.admission.groups_per_step
        return PolicyBinding(
            name=self._policy_name(),
            windows=json.dumps(dict(self._windows()), sort_keys=True),
            gate_window=None,
            required_capacity=None if groups is None else self.required_buffer_capacity(groups),
        )

    def _policy_name(self) -> str:
        """Return the name under which the run is bound; a custom class is its own policy."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    def _windows(self) -> Mapping[str, object]:
        """Return the settings that are written with the policy's name."""
        return {}

    @abc.abstractmethod
    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim eligible groups, greedily and without waiting."""

    async def evict(self, *, current_train_weight: int) -> int:
        """Drop ready groups with a start weight below the window; return how many."""
        await self.flush()
        below = max(0, current_train_weight - self._eviction_window())
        return await self._buffer.evict(Eviction(below=below))

    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether an unfinished rollout can no longer be selected."""
        return False

    @property
    def is_on_policy(self) -> bool:
        """Whether the window is 0."""
        return self._eviction_window() == 0

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return the groups the policy needs places for, ``None`` when unconstrained."""
        return None

    def _eviction_window(self) -> int:
        """Return how many versions back a ready group stays selectable."""
        return 0

    @staticmethod
    def _validate_group_bounds(min_prompt_groups: int, max_prompt_groups: int) -> None:
        """Refuse bounds that select nothing (seed name)."""
        validate_group_bounds(min_prompt_groups, max_prompt_groups)

    async def _finalize_selection(
        self, valid_group_ids: list[str], min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim the first ``max_prompt_groups`` of the ids, or nothing below the minimum.

        Takes group ids where the seed takes positions. All or none: `WrongState` or `UnknownGroup`
        when one was taken meanwhile, and then nothing is claimed.
        """
        if len(valid_group_ids) < min_prompt_groups:
            return None, 0
        chosen = valid_group_ids[:max_prompt_groups]
        return await self._buffer.claim_for_training(chosen), len(chosen)
