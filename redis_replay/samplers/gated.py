"""The base of the three gated policies: one dispatch batch per trainer step, a bounded lookahead.

A batch may dispatch while ``dispatch_index < trainer_version + gate_window``. Only the version
opens the gate; an empty buffer or a released claim never does. The rule is checked again in the
script that advances the cursor, so of two callers that both passed the wait only one advances.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from redis_replay.errors import StoreError
from redis_replay.protocols import LiveCut
from redis_replay.samplers.base import (
    _GATE_POLL_SECONDS,  # pyright: ignore[reportPrivateUsage]
    BaseSampler,
    PolicyBinding,
    SamplerBuffer,
)
from redis_replay.samplers.config import (
    _gated_required_buffer_capacity,  # pyright: ignore[reportPrivateUsage]
)
from redis_replay.selection import validate_version


class _GatedSampler(BaseSampler):
    """Admission by trainer version; the window is live and can be retuned."""

    def __init__(self, buffer: SamplerBuffer, *, gate_window: int) -> None:
        super().__init__(buffer)
        _require_window(gate_window)
        self._configured_window = gate_window
        self._staged_window: int | None = None

    @property
    def gate_window(self) -> int:
        """The window in force: staged here, else as stored, else as configured."""
        if self._staged_window is not None:
            return self._staged_window
        stored = self._buffer.admission.gate_window if self._bound else None
        return self._configured_window if stored is None else stored

    def set_gate_window(self, gate_window: int) -> None:
        """Retune the live window for every dispatcher; written before the next awaited call.

        Widening wakes blocked callers, shrinking closes the gate at once and un-admits nothing.
        Selection, eviction and required capacity stay on the configured window.

        Raises:
            ValueError: negative.
        """
        _require_window(gate_window)
        self._staged_window = gate_window

    async def _write_staged(self) -> None:
        await super()._write_staged()
        if self._staged_window is not None:
            staged, self._staged_window = self._staged_window, None
            try:
                await self._buffer.admission.set_gate_window(staged)
            except StoreError:
                if self._staged_window is None:
                    self._staged_window = staged
                raise

    async def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Wait until the gate is open; changes nothing and may be cancelled at any instant."""
        await self.flush()
        await self._buffer.admission.wait_until_open(
            trainer_version_fn, poll_seconds=_GATE_POLL_SECONDS
        )

    def commit_admission(self, cut: LiveCut) -> int | None:
        """Record the advance in a live cut and return the stamp (synchronous).

        Raises:
            CutExpired: the cut is no longer active; nothing was recorded.
        """
        cut.require_live()
        return self._commit_admission(cut)

    def _commit_admission(self, cut: LiveCut) -> int | None:
        return self._stamp(cut.record_admission(seen_version=self._buffer.admission.seen_version))

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Wait for the gate, advance the cursor by exactly one and return the stamp.

        A cancelled call has either not advanced, or its index is returned by this session's next
        call.
        """
        while True:
            await self.wait_until_admissible(trainer_version_fn=trainer_version_fn)
            index = await self._buffer.admission.admit()
            if index is not None:
                return self._stamp(index)

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return places for one live batch plus each lookahead batch."""
        return _gated_required_buffer_capacity(groups_per_step, gate_window=self._capacity_window())

    def _capacity_window(self) -> int:
        return self._configured_window

    def _eviction_window(self) -> int:
        return self._configured_window

    def _stamp(self, index: int) -> int | None:
        """Return the target step of an admitted batch; only ``in_order`` stamps."""
        return None

    def _binding(self) -> PolicyBinding:
        return replace(super()._binding(), gate_window=self._configured_window)


def _require_window(gate_window: int) -> None:
    if gate_window < 0:
        raise ValueError(f"gate_window must be non-negative, got {gate_window}")
    validate_version("gate_window", gate_window)
