"""The heartbeat thread: signs of life for a store's sessions, and the watch over everybody else's.

It runs in an OS thread with an event loop and a connection of its own, so a trainer whose loop is
blocked by an optimizer step keeps its claims. Every attached process watches, at the pace of the
shortest lease in the run, so that an owner is missed when its own lease is over and not when the
watcher's is; any one of them ends a silent owner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import anyio

from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.lua import Argument
from redis_replay._redis.records import OwnerRecord
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import EndOwner, Heartbeat
from redis_replay.errors import StoreError
from redis_replay.loop_thread import LoopThread
from redis_replay.silence import SilenceWatch

_LOG = logging.getLogger(__name__)
_BEATS_PER_LEASE = 4
_SHORTEST_PAUSE_SECONDS = 0.05

Seen = tuple[dict[str, bytes], dict[int, bytes]]


@dataclass
class Pulse:
    """One session's sign of life. ``lost`` is set when the store no longer knows the session."""

    owner: str
    epoch: int
    lease_seconds: float
    lost: bool = False


@dataclass
class Heart:
    """Beats for any number of sessions of one store."""

    target: Target
    keyspace: Keyspace
    frame: Sequence[Argument]
    _pulses: list[Pulse] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _thread: LoopThread | None = None
    _starting: bool = False
    _added: anyio.Event = field(default_factory=anyio.Event)

    async def add(self, pulse: Pulse) -> None:
        """Beat for a session from now on; the first one starts the thread."""
        with self._lock:
            self._pulses.append(pulse)
        if not self._starting:
            self._starting = True
            self._thread = await anyio.to_thread.run_sync(LoopThread, "redis-replay heartbeat")
            self._thread.portal.start_task_soon(self._beat_forever)
        elif self._thread is not None:
            self._thread.portal.start_task_soon(self._hasten)

    async def _hasten(self) -> None:
        """Beat now: the session just added may have a shorter lease than those before it."""
        self._added.set()

    def remove(self, pulse: Pulse) -> None:
        """Stop beating for a session."""
        with self._lock:
            if pulse in self._pulses:
                self._pulses.remove(pulse)

    async def stop(self) -> None:
        """End the thread."""
        thread, self._thread, self._starting = self._thread, None, False
        if thread is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(thread.stop)

    def _current(self) -> list[Pulse]:
        with self._lock:
            return [pulse for pulse in self._pulses if not pulse.lost]

    async def _beat_forever(self) -> None:
        gateway = Gateway(self.target, self.keyspace, deadline_seconds=1.0)
        watch, pause = SilenceWatch(longest_gap_seconds=1.0), 0.0
        try:
            while True:
                self._added = anyio.Event()
                pulses = self._current()
                watch.longest_gap_seconds = 2 * pause + 1.0
                seen: Seen | None = None
                for pulse in pulses:
                    with _heard("the heartbeat of %r waits", pulse.owner):
                        seen = await self._beat(gateway, pulse) or seen
                if seen is not None:
                    await self._watch(gateway, watch, *seen)
                leases = [*(pulse.lease_seconds for pulse in pulses), *watch.leases_seconds]
                pause = max(_SHORTEST_PAUSE_SECONDS, min(leases, default=1.0) / _BEATS_PER_LEASE)
                with anyio.move_on_after(pause):
                    await self._added.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await gateway.close()

    async def _beat(self, gateway: Gateway, pulse: Pulse) -> Seen | None:
        """Beat for a session and return all owners and all lost epochs, as records."""
        reply = await gateway.call(Heartbeat(pulse.owner, pulse.epoch), self.frame)
        if isinstance(reply, Refusal):
            if pulse in self._current():  # else it was detached while this beat was under way
                pulse.lost = reply.code == "FENCED"  # else the run itself is gone or another one
                _LOG.warning("session %r cannot beat: %s", pulse.owner, reply.error)
            return None
        return reply

    async def _watch(
        self,
        gateway: Gateway,
        watch: SilenceWatch,
        records: Mapping[str, bytes],
        lost: Mapping[int, bytes],
    ) -> None:
        """End who is silent and drain who is lost; one that cannot be ended keeps nobody else."""
        owners: dict[str, OwnerRecord] = {}
        for name, record in records.items():
            with _heard("owner %r cannot be watched", name):
                owners[name] = OwnerRecord.parse(record)
        own = {known.owner for known in self._current()}
        for name in watch.observe(owners, now=anyio.current_time()):
            if name not in own:
                epoch, beats = owners[name].epoch, owners[name].heartbeat
                _LOG.warning("owner %r was silent for its lease and is ended", name)
                with _heard("owner %r cannot be ended", name):
                    await end_owner(gateway, self.frame, name, epoch, heartbeat=beats)
        for epoch, record in lost.items():
            name = record[2:].decode()
            with _heard("what owner %r held cannot be given back", name):
                await end_owner(gateway, self.frame, name, epoch)


@contextmanager
def _heard(what: str, owner: str) -> Generator[None]:
    """Log a failure of the block, so that it stops nothing else."""
    try:
        yield
    except StoreError as failure:
        _LOG.warning(what + ": %s", owner, failure)


async def end_owner(
    gateway: Gateway,
    frame: Sequence[Argument],
    owner: str,
    epoch: int,
    *,
    heartbeat: int | None = None,
    planned: bool = False,
) -> None:
    """End a session and give back all it holds, 256 groups a call.

    May be repeated. With a heartbeat it is a compare-and-set: a session that has beaten since is
    left alone.
    """
    more = True
    while more:
        reply = await gateway.call(EndOwner(owner, epoch, heartbeat, int(planned)), frame)
        if isinstance(reply, Refusal):
            if reply.code == "ALIVE":
                return
            raise reply.error
        more = reply[3]
