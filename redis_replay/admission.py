"""Admission for samplers: the mirrored control record, the wait at the gate, the advance.

Readers answer from the newest control record any reply has carried. A waiter is woken by the event
stream; while it waits it re-reads ``trainer_version_fn``, a local call, every few milliseconds
without any command.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import anyio

from redis_replay._redis.events import Topic
from redis_replay._redis.frames import StoreScript
from redis_replay._redis.gateway import Reads
from redis_replay._redis.keys import Key
from redis_replay._redis.records import CONTROL_FIELDS, ControlRecord, OwnerRecord
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import BindPolicy, SetCursor, SetWindow
from redis_replay._redis.scripts import Admit
from redis_replay.errors import BufferFull, StoreError, StoreMissing
from redis_replay.samplers.base import NOTHING_DISPATCHED, PolicyBinding
from redis_replay.selection import validate_version
from redis_replay.session import Session

R = TypeVar("R")
_LOG = logging.getLogger(__name__)
_RECHECK_SECONDS: Final = 4.0
_MOST_GIVEN: Final = 256
"""Indexes that are remembered before the store is asked which of them are still open."""

_ADMISSION_FIELDS: Final = (
    *("loader_revision", "loader_state", "policy", "store_epoch", "exhausted"),
)


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """What a dispatch decision needs, read in one instant.

    Attributes:
        orphan: Lowest admitted index whose admitter is gone; it is given out before any advance
            (under ``in_order`` unless its step has passed).
    """

    control: ControlRecord
    orphan: int | None
    loader_revision: int
    loader_state: bytes | None
    store_epoch: int
    is_exhausted: bool = False
    policy: bytes | None = None

    @property
    def next_index(self) -> int:
        """The index that the next admission gets."""
        return self.control.dispatch_index + 1 if self.orphan is None else self.orphan

    def is_open(self, seen_version: int) -> bool:
        """Return whether a batch may dispatch: the rule of the admission script."""
        reach = max(self.control.trainer_version, seen_version) + (self.control.gate_window or 0)
        return self.orphan is not None or self.control.dispatch_index < reach


async def read_admission(reads: Reads) -> AdmissionState:
    """Read the admission state. Atomic; a pure read.

    Raises:
        StoreMissing: the run is not there.
    """
    control = reads.keyspace.control
    meta, admissions, owners = await reads.pipeline(
        [
            ("HMGET", control(Key.META), *CONTROL_FIELDS, *_ADMISSION_FIELDS),
            ("HGETALL", control(Key.ADMISSIONS)),
            ("HGETALL", control(Key.OWNERS)),
        ],
        atomic=True,
    )
    record = ControlRecord.parse(meta[:4]) if meta[0] is not None else None
    if record is None:
        raise _missing(reads)
    reads.observe(record)
    live = {b"%d %s" % (OwnerRecord.parse(r).epoch, name) for name, r in owners.items()}
    first = record.trainer_version if meta[6] == b"in_order" else 0
    orphans = [int(index) for index, holder in admissions.items() if holder not in live]
    orphan = min((index for index in orphans if index >= first), default=None)
    is_exhausted = meta[8] == b"1"
    return AdmissionState(
        record, orphan, int(meta[4]), meta[5], int(meta[7]), is_exhausted, meta[6]
    )


def _missing(reads: Reads) -> StoreMissing:
    return StoreMissing(f"run {reads.keyspace.run!r} is not on {reads.target.address}")


@dataclass
class Admission:
    """Admission under one session.

    Attributes:
        seen_version: Largest trainer version that ``trainer_version_fn`` has returned.
        undelivered: Indexes admitted for callers that were cancelled before they received them.
        given: Indexes that callers have received, as long as they may be open.
        policy: What a sampler on this buffer has bound the run to; another host may switch it.
    """

    session: Session
    policy: str = ""
    seen_version: int = 0
    undelivered: list[int] = field(default_factory=list)
    given: set[int] = field(default_factory=set)
    _may_hold_unseen: bool = False
    _turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))

    def forget(self) -> None:
        """Know nothing of earlier admissions, which a restore has ended."""
        self.seen_version = 0
        self.policy = ""
        self.undelivered.clear()
        self.given.clear()
        self._may_hold_unseen = False

    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch in the newest reply."""
        control = self.session.link.gateway.control
        return control.dispatch_index if control else NOTHING_DISPATCHED

    @property
    def trainer_version(self) -> int:
        """The trainer version in the newest reply."""
        control = self.session.link.gateway.control
        return control.trainer_version if control else 0

    @property
    def gate_window(self) -> int | None:
        """The gate window in the newest reply."""
        control = self.session.link.gateway.control
        return control.gate_window if control else None

    @property
    def groups_per_step(self) -> int | None:
        """Groups in one training batch, as the run was opened."""
        return self.session.link.run.settings.groups_per_step

    async def refresh(self) -> None:
        """Read the control record anew; one command, which a server without free memory serves too.

        Raises:
            StoreMissing: the run is not there.
            StaleStore: the run was restored meanwhile.
        """
        reads = self.session.reads
        meta = reads.keyspace.control(Key.META)
        [stored] = await reads.pipeline([("HMGET", meta, *CONTROL_FIELDS, "store_epoch", "policy")])
        if stored[0] is None:
            raise _missing(reads)
        self.require_epoch(int(stored[4]))
        self.require_policy(stored[5])
        if (control := ControlRecord.parse(stored[:4])) is not None:
            reads.observe(control)

    def require_epoch(self, stored: int) -> None:
        """Return if the run was not restored since this store was opened.

        For waiters, which may send no script for long and would not learn of it otherwise.

        Raises:
            StaleStore: it was.
        """
        if stored != self.session.link.run.store_epoch:
            raise Refusal("STALE_STORE", None, (b"%d" % stored,)).error

    def require_policy(self, stored: bytes | None) -> None:
        """Return if the run still has the policy that a sampler on this buffer has bound it to.

        Raises:
            PolicyMismatch: another host has switched it since.
        """
        if self.policy and stored is not None and stored.decode() != self.policy:
            raise Refusal("POLICY", None, (stored,)).error

    async def bind(self, binding: PolicyBinding) -> None:
        """Write the policy into the run, or compare; other windows are accepted and logged.

        Raises:
            PolicyMismatch: the run is bound to another policy.
            CapacityTooSmall: the run's capacity is below what the policy needs.
        """
        session, link = self.session, self.session.link
        outcome, policy, windows = await self._ask(
            BindPolicy(
                owner=session.owner,
                epoch=session.epoch,
                policy=binding.name,
                windows=binding.windows,
                gate_window=binding.gate_window,
                required_capacity=binding.required_capacity,
                switch=int(link.switch_policy),
            )
        )
        self.policy = binding.name
        if outcome in ("windows", "switched"):
            _LOG.warning(
                "run %r: sampler changed from %s %s to %s %s",
                link.gateway.keyspace.run,
                *(policy, windows, binding.name, binding.windows),
            )

    async def seed(self, dispatch_index: int, *, exact: bool) -> None:
        """Seed the cursor of a run that never admitted; see `SetCursor`.

        Raises:
            CursorConflict: an exact seed differs from the cursor of a run that has admitted.
        """
        session = self.session
        taken = await self._ask(
            SetCursor(session.owner, session.epoch, dispatch_index, exact=int(exact))
        )
        if not taken:
            _LOG.warning(
                "the dispatch cursor stays at %d, as stored; the seed %d was not applied",
                *(self.dispatch_index, dispatch_index),
            )

    async def set_gate_window(self, gate_window: int) -> None:
        """Write the live gate window."""
        await self._ask(SetWindow(self.session.owner, self.session.epoch, gate_window))

    async def _ask(self, call: StoreScript[R]) -> R:
        """Run a call about the run that a session which has ended may not make."""
        reply = await self.session.link.ask(call)
        return self.session.attachment.accept(reply)

    async def wait_until_open(
        self, trainer_version_fn: Callable[[], int], *, poll_seconds: float
    ) -> None:
        """Wait until a batch may dispatch. Changes nothing; may be cancelled at any instant.

        Raises:
            StoreClosed: the store or the session was closed while waiting.
            StaleOwner: the session has ended while waiting (`ClaimLost` for a trainer's).
            StaleStore: the run was restored while waiting.
        """
        link = self.session.link
        while True:
            ticket = await link.wakeups.ticket(Topic.ADMISSION)
            self.session.require_live()
            state = await read_admission(self.session.reads)
            self.require_epoch(state.store_epoch)
            self.require_policy(state.policy)
            await self.find_unseen()
            recheck = anyio.current_time() + _RECHECK_SECONDS
            while not self.undelivered:
                self._look(trainer_version_fn)
                if state.is_open(self.seen_version):
                    return
                moved = await link.wakeups.wait(
                    Topic.ADMISSION, ticket, at_most_seconds=poll_seconds
                )
                if moved or anyio.current_time() > recheck:
                    break
            else:
                return

    def _look(self, trainer_version_fn: Callable[[], int]) -> None:
        version = trainer_version_fn()
        validate_version("the value of trainer_version_fn", version)
        self.seen_version = max(self.seen_version, version)

    async def admit(self) -> int | None:
        """Advance the cursor by one and return the index, ``None`` when the gate is closed.

        Atomic. An index that a call admitted for a caller who never learned it is returned first.
        While the payload is at ``max_payload_bytes`` it waits a moment for room and returns
        ``None``.
        """
        ticket = await self.session.link.wakeups.ticket(Topic.SPACE)
        await self.session.attach()
        try:
            return await self.session.link.tasks.finish(
                partial(self._admit), unclaimed=self._keep_undelivered
            )
        except BufferFull:
            await self.session.link.wakeups.wait(
                Topic.SPACE, ticket, at_most_seconds=_RECHECK_SECONDS
            )
            return None

    async def _admit(self) -> int | None:
        async with self._turn:
            await self._find_unseen()
            if self.undelivered:
                return self.undelivered.pop(0)
            with self.asking(leaves_open=True):
                reply = await self.session.run_numbered(Admit(seen_version=self.seen_version))
            if not isinstance(reply, Refusal):
                self.give(reply)
                return reply
            if reply.code == "GATE":
                return None
            raise reply.error

    def keep_for_cut(self) -> int | None:
        """Return an admitted index that no caller has received, for a cut to dispatch."""
        return self.undelivered.pop(0) if self.undelivered else None

    def give(self, index: int) -> None:
        """Remember an index that a caller receives; now and then, forget those dispatched since."""
        self.given.add(index)
        self._may_hold_unseen |= len(self.given) > _MOST_GIVEN

    def put_back(self, index: int) -> None:
        """Let an index be found again, if it is still open."""
        self.given.discard(index)
        self._may_hold_unseen = True

    @contextmanager
    def asking(self, *, leaves_open: bool) -> Generator[None]:
        """Admit in the block; without an answer an index may be open that nobody knows of."""
        try:
            yield
        except StoreError:
            self._may_hold_unseen |= leaves_open
            raise

    async def find_unseen(self) -> None:
        """Look for open admissions of this session that no caller has received."""
        async with self._turn:
            await self._find_unseen()

    async def _find_unseen(self) -> None:
        if not self._may_hold_unseen:
            return
        await self.session.settle_doubts()
        gateway = self.session.link.gateway
        [listed] = await gateway.pipeline([("HGETALL", gateway.keyspace.control(Key.ADMISSIONS))])
        own = f"{self.session.epoch} {self.session.owner}".encode()
        still_open = {int(index) for index, holder in listed.items() if holder == own}
        self.given &= still_open
        self.undelivered.extend(sorted(still_open - self.given))
        self.given |= still_open
        self._may_hold_unseen = False

    async def _keep_undelivered(self, index: int | None) -> None:
        if index is not None:
            self.undelivered.append(index)
