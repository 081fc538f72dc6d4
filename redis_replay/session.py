"""Sessions: who a call comes from. Each has an owner name, an epoch and numbered calls.

A number is drawn before a call's first attempt and kept through retries and cancellation, so each
call is applied once and a lost reply is answered again (D24, D27).
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

import anyio
import xxhash

from redis_replay._redis.events import Wakeups
from redis_replay._redis.frames import SessionScript, StoreScript, UseUp
from redis_replay._redis.gateway import Gateway, Payload, Reads
from redis_replay._redis.keys import encode_name
from redis_replay._redis.refusals import Refusal, accept
from redis_replay._redis.run_scripts import Attach
from redis_replay.attachment import TRAINER, Attachment, FencedReads
from redis_replay.call_numbers import CallNumbers, Place
from redis_replay.collector import Collector
from redis_replay.errors import ReplayError, StoreClosed, StoreError
from redis_replay.fields import FieldOptions
from redis_replay.group_record import CHUNK_BYTES
from redis_replay.groups import GroupRecords
from redis_replay.heart import Heart, Pulse, end_owner
from redis_replay.processes import OfOneProcess, require_own_process
from redis_replay.run import OpenedRun
from redis_replay.samplers.trust import Trust
from redis_replay.selected import Selected
from redis_replay.tasks import FinishingTasks

R = TypeVar("R")
_LOG = logging.getLogger(__name__)

LONGEST_STRING_BYTES: Final = 512 * 1024 * 1024
"""What a server accepts that does not say what it accepts."""

COMMITS_AT_ONCE: Final = 8
"""Groups that are encoded and on their way to the server at one time; the others wait."""

ROLLOUT_LEASE_SECONDS: Final = 60.0
TRAINER_LEASE_SECONDS: Final = 120.0
MAX_OWNER_BYTES: Final = 256
ANONYMOUS_ROLE: Final = "client"
_FINISH_SECONDS: Final = 3.0
"""How long the end of a session waits for its commits that are under way."""


@dataclass
class Link(OfOneProcess):
    """What all sessions of one store share."""

    gateway: Gateway
    run: OpenedRun
    tasks: FinishingTasks
    wakeups: Wakeups
    heart: Heart
    collector: Collector
    records: GroupRecords
    chunk_bytes: int = CHUNK_BYTES
    longest_string_bytes: int = LONGEST_STRING_BYTES
    fields: Mapping[str, FieldOptions] = field(default_factory=dict[str, FieldOptions])
    switch_policy: bool = False
    closed: bool = False
    sessions: list[Session] = field(default_factory=list)
    renewals: list[Callable[[], None]] = field(default_factory=list)
    commit_room: anyio.Semaphore = field(
        default_factory=lambda: anyio.Semaphore(COMMITS_AT_ONCE, fast_acquire=True)
    )
    opener: int = field(default_factory=os.getpid)
    restoring: anyio.Lock = field(default_factory=anyio.Lock)
    samplers: dict[str, Trust] = field(default_factory=dict[str, Trust])

    async def collect(self) -> None:
        """Free the payload of groups that are gone; what cannot be freed now is freed later."""
        try:
            await self.collector.collect()
        except ReplayError as failure:
            _LOG.warning("payload of ended groups is not freed yet: %s", failure)

    async def ask(self, call: StoreScript[R]) -> R | Refusal:
        """Run a call about the run as a whole, to its end even when the caller is cancelled."""
        self.require_open()
        return await self.tasks.finish(partial(self.gateway.call, call, self.run.frame))

    async def call(self, call: StoreScript[R]) -> R:
        """The same, raising a refusal's error."""
        reply = await self.ask(call)
        return accept(reply)

    def restored(self, store_epoch: int) -> None:
        """Go on under the store epoch of a restore, which has ended every session."""
        self.run = replace(self.run, store_epoch=store_epoch)
        self.heart.frame = self.collector.frame = self.run.frame
        for session in self.sessions:
            session.end_by_restore()
        for renew in self.renewals:
            renew()

    def require_open(self) -> None:
        """Return if the store can be used here.

        Raises:
            StoreClosed: the store is closed.
            ForkedStore: this process was forked from the one that opened it.
        """
        require_own_process(self.opener)
        if self.closed:
            raise StoreClosed("the store is closed; nothing was written")


@dataclass
class Session:
    """One attached owner. Attaches at its first call; `detach` gives back what it holds.

    Attributes:
        owner: The name under which it holds groups.
        epoch: Number of this attachment, unique in the run; 0 before it is attached.
        selected: Groups that it has selected for good and still reads.
    """

    link: Link
    owner: str
    role: str
    lease_seconds: float
    world: int = 1
    takeover: bool = False
    epoch: int = 0
    pulse: Pulse | None = None
    detached: bool = False
    selected: Selected = field(default_factory=Selected)
    _attaching: anyio.Lock = field(default_factory=anyio.Lock)
    _numbers: CallNumbers = field(default_factory=CallNumbers)
    _under_way: int = 0
    _came_to_rest: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        if not self.owner or len(self.owner.encode()) > MAX_OWNER_BYTES:
            raise ValueError(
                f"owner must be 1 to {MAX_OWNER_BYTES} UTF-8 bytes, got {self.owner[:80]!r}"
            )
        if not self.lease_seconds > 0:
            raise ValueError(f"lease_seconds must be positive, got {self.lease_seconds}")

    @property
    def attachment(self) -> Attachment:
        """What this session is to the store."""
        return Attachment(self.owner, self.epoch, self.role)

    @property
    def reads(self) -> Reads:
        """What this session reads with: a trainer's reads end with it.

        Raises:
            ClaimLost, StoreClosed: as `require_live`, for a trainer's.
        """
        if self.role == TRAINER and self.epoch:
            self.require_live()
            return FencedReads(self.link.gateway, self.attachment, self.link.run.store_epoch)
        return self.link.gateway

    async def attach(self) -> None:
        """Attach if this session is not attached yet; those that it replaces are ended.

        Raises:
            StaleOwner: this session was attached and has ended.
            StoreClosed: the store or this session is closed.
        """
        self.require_live()
        if self.epoch == 0:
            async with self._attaching:
                if self.epoch == 0:
                    await self.link.tasks.finish(self._attach)
            self.require_live()

    def require_live(self) -> None:
        """Return if this session may still make calls; sends nothing.

        Raises:
            StaleOwner: this session was attached and has ended.
            StoreClosed: the store or this session is closed.
        """
        self.link.require_open()
        if self.detached:
            raise StoreClosed(f"session {self.owner!r} was detached; open a new one")
        if self.pulse is not None and self.pulse.lost:
            raise self.attachment.ended()

    async def _attach(self) -> None:
        link = self.link
        attach = Attach(
            owner=self.owner,
            role=self.role,
            world=self.world,
            lease_ms=max(1, round(self.lease_seconds * 1000)),
            host=encode_name(f"{socket.gethostname()}.{os.getpid()}"),
            takeover=int(self.takeover),
        )
        run: OpenedRun | None = None
        epoch = 0
        while run is not link.run:  # a restore meanwhile has ended this attachment already
            run = link.run
            reply = await link.gateway.call(attach, run.frame)
            if isinstance(reply, Refusal) and reply.code == "STALE_STORE":
                async with link.restoring:  # it may be this store that restores the run
                    pass
                if run is not link.run:
                    continue
            epoch, ended = accept(reply)
            for replaced in ended:
                _LOG.warning("session %r takes over from %r", self.owner, replaced.owner)
                if replaced.holds_more:
                    await end_owner(link.gateway, run.frame, replaced.owner, replaced.epoch)
        self.epoch = epoch
        self.pulse = Pulse(self.owner, epoch, self.lease_seconds)
        await link.heart.add(self.pulse)

    async def ask(self, call: SessionScript[R]) -> R | Refusal:
        """Run a numbered call to its end, even when the caller is cancelled."""
        await self.attach()
        return await self.link.tasks.finish(partial(self.run_numbered, call))

    async def call(self, call: SessionScript[R]) -> R:
        """The same, raising a refusal's error."""
        reply = await self.ask(call)
        return accept(reply)

    async def call_now(self, call: SessionScript[R]) -> R:
        """`run_numbered`, raising a refusal's error."""
        reply = await self.run_numbered(call)
        return accept(reply)

    async def run_numbered(
        self, call: SessionScript[R], *, writes: Sequence[tuple[str, Payload]] = ()
    ) -> R | Refusal:
        """Run a numbered call in the caller's own task.

        Raises:
            StaleOwner: this session has ended.
        """
        pulse = self.pulse
        place = await self._numbers.take()
        try:
            reply = await self._send(place, call, writes)
            if place.is_doubtful:
                with suppress(StoreError):  # a later call of this place does it then
                    await self._use_up(place)
        finally:
            self._numbers.give_back(place)
        if isinstance(reply, Refusal) and reply.code == "FENCED":
            if pulse is not None:
                pulse.lost = True
            self.require_live()
            raise self.attachment.ended()
        return reply

    async def _send(
        self, place: Place, call: SessionScript[R], writes: Sequence[tuple[str, Payload]] = ()
    ) -> R | Refusal:
        number = place.next_number()
        frame = (*self.link.run.frame, self.owner, self.epoch, number, _digest(call))
        try:
            return await self.link.gateway.call(call, frame, writes=writes, on_repeat=place.doubt)
        except StoreError:
            place.doubt()
            raise

    async def _use_up(self, place: Place) -> None:
        """Leave no attempt of an earlier call of a place that could still run."""
        await self._send(place, UseUp())
        place.is_doubtful = False

    async def settle_doubts(self) -> None:
        """Leave no attempt of an earlier call that could still run, before looking what they did.

        Raises:
            StoreError: the server does not answer; an attempt may still be on its way.
        """
        while self._numbers.are_doubtful:
            place = await self._numbers.take()
            try:
                await self._use_up(place)
            finally:
                self._numbers.give_back(place)

    def end_by_restore(self) -> None:
        """Know that a restore ended this session; an anonymous one attaches anew when used."""
        if self.pulse is not None:
            self.pulse.lost = True
            self.link.heart.remove(self.pulse)
            if self.role == ANONYMOUS_ROLE:
                self.epoch, self.pulse = 0, None

    async def detach(self) -> None:
        """Give back everything this session holds and end it; no attempt is counted. Repeatable.

        Commits that are under way are finished first. Where the store cannot be reached or is gone,
        that is logged; the lease does it then. In a forked process it does nothing.
        """
        if self.detached or self.link.opener != os.getpid():
            return
        self.detached = True
        if self.pulse is not None:
            try:
                await self.link.tasks.finish(partial(self._end, self.pulse))
            except ReplayError as failure:
                _LOG.warning("session %r could not be ended: %s", self.owner, failure)

    async def _end(self, pulse: Pulse) -> None:
        with anyio.move_on_after(_FINISH_SECONDS):
            while self._under_way:
                await self._came_to_rest.wait()
        link = self.link
        link.heart.remove(pulse)
        if not pulse.lost:
            await end_owner(link.gateway, link.run.frame, self.owner, self.epoch, planned=True)

    @contextmanager
    def under_way(self) -> Generator[None]:
        """Do in the block what `detach` waits for, so that no finished rollout is refused."""
        if not self._under_way:
            self._came_to_rest = anyio.Event()
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._came_to_rest.set()


def anonymous_owner() -> str:
    """Return an owner name for a session that was not given one."""
    return f"client-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def _digest(call: SessionScript[R]) -> str:
    values = [v if isinstance(v, bytes) else str(v).encode() for v in call.argument_values()]
    return xxhash.xxh3_64_hexdigest(b"\0".join((call.SCRIPT.encode(), *values)))
