"""The mutation cut: a unit of work whose parts become visible together or not at all.

Opened with one read of the control record; what is recorded in the block is applied by ONE script
at exit, guarded by the cursor and the loader revision it was opened with. An exception in the
block, or a conflict, leaves nothing. So the dispatch cursor, the reserved slots with their prompt
references and the position of the data loader move together: a resumed run neither skips nor
repeats a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType

from redis_replay._redis.scripts import ApplyCut
from redis_replay.admission import AdmissionState, read_admission
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.errors import CutExpired, DuplicateGroup, ReplayError
from redis_replay.reservations import as_columns, draft_reservation, with_fence
from redis_replay.types import MAX_GROUPS_PER_CALL, Reservation


class DataPlaneMutationCut:
    """One unit of work; ``async with store.mutation() as cut``.

    Recording is synchronous. Fences are in `reservations` after the block has ended; nothing
    computed in the block may be used before that. From the ``async with``: `AdmissionConflict` when
    the cursor, the gate or the loader moved, `BufferFull` or `DuplicateGroup` when a reservation
    cannot be made, `CutExpired` when this store restored the run; then nothing was applied.
    """

    def __init__(self, buffer: RedisReplayBuffer) -> None:
        self._buffer = buffer
        self._state: AdmissionState | None = None
        self._live = False
        self._index: int | None = None
        self._takes_kept = False
        self._seen_version = 0
        self._loader_state: bytes | None = None
        self._exhausted = False
        self._drafts: dict[str, Reservation] = {}
        self._reservations: tuple[Reservation, ...] = ()

    async def __aenter__(self) -> DataPlaneMutationCut:
        if self._state is not None:
            raise CutExpired("this mutation cut is no longer active; open a new one")
        session = self._buffer.session
        await session.attach()
        await self._buffer.admission.find_unseen()
        self._state = await read_admission(session.reads)
        self._buffer.admission.require_epoch(self._state.store_epoch)
        self._buffer.admission.require_policy(self._state.policy)
        self._live = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live = False
        if kind is None and self._has_content():
            await self._apply()
        else:
            self._put_back()

    def _put_back(self) -> None:
        """Let a kept index, which this cut has not dispatched after all, be found again."""
        if self._takes_kept and self._index is not None:
            self._buffer.admission.put_back(self._index)

    def require_live(self) -> None:
        """Return if the cut still records.

        Raises:
            CutExpired: it is no longer active; nothing was recorded.
        """
        if not self._live:
            raise CutExpired("this mutation cut is no longer active; nothing was recorded")

    @property
    def dispatch_index(self) -> int:
        """The dispatch cursor as the cut was opened with it."""
        return self._opened().control.dispatch_index

    @property
    def loader_state(self) -> bytes | None:
        """The loader state as the cut was opened with it, ``None`` when none was ever set."""
        return self._opened().loader_state

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The reservations with their fences, after the block has ended."""
        return self._reservations

    def record_admission(self, *, seen_version: int) -> int:
        """Record the advance of the dispatch cursor and return the admitted index.

        Raises:
            CutExpired: the cut is no longer active.
            ValueError: it has recorded an admission already.
        """
        self.require_live()
        if self._index is not None:
            raise ValueError(
                "a mutation cut records one admission; open another for the next batch"
            )
        kept = self._buffer.admission.keep_for_cut()
        self._takes_kept = kept is not None
        self._index = self._opened().next_index if kept is None else kept
        self._seen_version = seen_version
        return self._index

    def reserve(
        self,
        weight_version: int,
        *,
        target_step: int | None = None,
        group_id: str | None = None,
        prompt_ref: bytes | None = None,
        replacement_index: int = 0,
    ) -> str:
        """Record a reservation and return its group id; arguments as `RedisReplayBuffer.reserve`.

        Raises:
            CutExpired: the cut is no longer active.
            DuplicateGroup: this cut has reserved the id already.
            ValueError: a version, step or id outside its limits, or more reservations than one
                script makes.
        """
        self.require_live()
        if len(self._drafts) == MAX_GROUPS_PER_CALL:
            raise ValueError(f"a mutation cut reserves at most {MAX_GROUPS_PER_CALL} groups")
        draft = draft_reservation(
            weight_version,
            target_step=target_step,
            group_id=group_id,
            prompt_ref=prompt_ref,
            replacement_index=replacement_index,
        )
        if draft.group_id in self._drafts:
            raise DuplicateGroup(
                f"group {draft.group_id!r} is reserved twice in this cut", group_id=draft.group_id
            )
        self._drafts[draft.group_id] = draft
        return draft.group_id

    @property
    def is_exhausted(self) -> bool:
        """Whether the data had ended, as the cut was opened."""
        return self._opened().is_exhausted

    def set_loader_state(self, state: bytes, *, exhausted: bool = False) -> None:
        """Record the data loader's position; it conflicts if somebody moved it since.

        Args:
            state: The position behind what this cut dispatches.
            exhausted: Whether the data ends there: nothing more will be dispatched, and who waits
                for a batch is told. A later position without it takes that back.

        Raises:
            CutExpired: the cut is no longer active.
            TypeError: not bytes.
        """
        self.require_live()
        if not isinstance(state, bytes):
            raise TypeError(f"the loader state must be bytes, got {type(state).__name__}")
        self._loader_state, self._exhausted = state, exhausted

    def _opened(self) -> AdmissionState:
        if self._state is None:
            raise CutExpired("this mutation cut was never entered; use 'async with'")
        return self._state

    def _has_content(self) -> bool:
        return bool(self._drafts) or self._index is not None or self._loader_state is not None

    async def _apply(self) -> None:
        columns = as_columns([*self._drafts.values()])
        sets_loader = self._loader_state is not None
        call = ApplyCut(
            index=self._index,
            kept=int(self._takes_kept),
            seen_version=self._seen_version,
            loader_revision=self._opened().loader_revision if sets_loader else None,
            loader_state=self._loader_state or b"",
            exhausted=int(self._exhausted),
            group_ids=columns.group_ids,
            weights=columns.weights,
            targets=columns.targets,
            prompt_refs=columns.prompt_refs,
            replacements=columns.replacements,
        )
        session = self._buffer.session
        try:
            await session.attach()
            self._require_epoch(session.link.run.store_epoch)
        except BaseException:  # a cancellation too: nothing was sent
            self._put_back()
            raise
        self._reservations = await session.link.tasks.finish(
            partial(self._run, call), unclaimed=self._keep_undelivered
        )

    def _require_epoch(self, store_epoch: int) -> None:
        if self._opened().store_epoch != store_epoch:
            raise CutExpired("the run was restored since this cut was opened; nothing was applied")

    async def _run(self, call: ApplyCut) -> tuple[Reservation, ...]:
        buffer = self._buffer
        asking = buffer.admission.asking(leaves_open=self._leaves_open)
        try:
            with buffer.holdings.asking(*call.group_ids), asking:
                fence = await buffer.session.call_now(call) or 0
                if self._leaves_open and self._index is not None:
                    buffer.admission.give(self._index)
                return tuple(
                    buffer.holdings.hold(with_fence(draft, fence))
                    for draft in self._drafts.values()
                )
        except ReplayError:
            self._put_back()
            raise

    @property
    def _leaves_open(self) -> bool:
        """Whether it admits a batch without reserving anything for it."""
        return self._index is not None and not self._drafts

    async def _keep_undelivered(self, reservations: Sequence[Reservation]) -> None:
        """Leave applied reservations whose dispatcher was cancelled for the session's next look."""
        await self._buffer.holdings.keep(reservations)
        if self._leaves_open and self._index is not None:
            self._buffer.admission.undelivered.append(self._index)
