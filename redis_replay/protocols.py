"""What a sampler must offer, as the store and the drivers use it.

`PromptGroupSampler` owns the whole staleness contract: when a batch may dispatch, which groups may
be trained, which are dropped. `TransactionalAdmissionSampler` is the optional second half that
splits ``admit`` into a wait and a record inside a mutation cut. Write a sampler of your own against
the first (or on `redis_replay.samplers.base.BaseSampler`) and name it ``module:ClassName`` in a
`CustomSamplerConfig`; both built-ins and custom ones are used through these protocols only.

Source: names and signatures of NeMo RL's ``staleness_sampler``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

if TYPE_CHECKING:
    from redis_replay.meta import KVBatchMeta


@runtime_checkable
class LiveCut(Protocol):
    """The side of a mutation cut that admission sees: it is either live or refuses.

    `redis_replay.cut.DataPlaneMutationCut` is the one that the store hands out.
    """

    def require_live(self) -> None:
        """Return if the cut still records.

        Raises:
            CutExpired: The cut is no longer active (also a ``RuntimeError``).
        """
        ...

    def record_admission(self, *, seen_version: int) -> int:
        """Record the advance of the dispatch cursor and return the admitted index.

        Args:
            seen_version: Largest trainer version the sampler has seen while it waited.

        Raises:
            CutExpired: The cut is no longer active.
            ValueError: It has recorded an admission already.
        """
        ...


@runtime_checkable
class PromptGroupSampler(Protocol):
    """Staleness policy shared by the rollout hosts and the trainer of a run."""

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Block until the next prompt batch may dispatch, then advance the cursor by one.

        Args:
            trainer_version_fn: Returns the live trainer version; read again at every wake-up.

        Returns:
            The target step to stamp on the batch, or ``None`` when the policy does not stamp.
        """
        ...

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim up to ``max_prompt_groups`` eligible groups for training; never wait.

        Returns:
            The concatenated metas in selection order and the number of groups, or ``(None, 0)``
            with nothing changed when fewer than ``min_prompt_groups`` are eligible.

        Raises:
            ValueError: The minimum is below 1 or above the maximum; nothing was touched.
        """
        ...

    async def evict(self, *, current_train_weight: int) -> int:
        """Drop ready groups that can never be selected again; return how many."""
        ...

    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether an unfinished rollout can no longer be selected."""
        ...

    @property
    def is_on_policy(self) -> bool:
        """Whether the policy admits no staleness at all."""
        ...

    supports_buffer_checkpoint: ClassVar[bool]
    """Whether completed groups that wait in the buffer may be restored; a plain class attribute."""

    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return the places the policy needs, in groups, or ``None`` if any number will do."""
        ...

    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch, ``-1`` before the first."""
        ...

    def set_dispatch_index(self, resume_from_trainer_version: int) -> None:
        """Resume from a trainer version: the next admitted batch gets this index.

        Raises:
            ValueError: The version is negative.
        """
        ...

    def restore_dispatch_index(self, dispatch_index: int) -> None:
        """Set the exact cursor, before the first admission.

        Raises:
            ValueError: The index is below ``-1``.
        """
        ...


@runtime_checkable
class TransactionalAdmissionSampler(Protocol):
    """Sampler whose wait is separate from the step that records the admission."""

    async def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Wait until one admission can be recorded; change nothing."""
        ...

    def commit_admission(self, cut: LiveCut) -> int | None:
        """Record the advance of the cursor in a live cut and return the stamp.

        Raises:
            CutExpired: The cut is no longer active; nothing was recorded.
        """
        ...
