"""Calls from ordinary threads into one event loop, and what becomes of one that is interrupted.

A caller may be interrupted at any instant, also between an answer and its receipt. What its call
still does is then cancelled, and what it had been given already goes back to the store, as it does
for a cancelled task: nothing stays claimed or reserved for nobody.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from inspect import isawaitable
from types import TracebackType
from typing import Any

import anyio

from redis_replay.errors import ConfigurationError, StoreClosed
from redis_replay.loop_thread import LoopThread
from redis_replay.processes import require_own_process
from redis_replay.tasks import RETURNS

_CLOSED = "the store is closed, or was closed while this call ran"

Reason = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


class Bridge:
    """The way into the thread in which all calls on one store run; any thread may use it."""

    def __init__(self) -> None:
        self._opener = os.getpid()
        self._thread = LoopThread("redis-replay calls")

    @property
    def is_own(self) -> bool:
        """Whether the thread is one of this process."""
        return os.getpid() == self._opener

    def require_own(self) -> None:
        """Return in the process that opened the store.

        Raises:
            ForkedStore: this is a fork of it.
        """
        require_own_process(self._opener)

    def call(self, work: Callable[[], Any]) -> Any:
        """Run a function in the loop, await what it returns if need be, and return that.

        Raises:
            ForkedStore: this process is a fork of the one that opened the store.
            StoreClosed: the store is closed, or was closed meanwhile.
            ConfigurationError: called by a callback, which runs in the loop itself.
        """
        call = Call(work)
        return self.receive(call, lambda: self.begin(call))

    def begin(self, call: Call) -> Future[Any]:
        """Start a call and return what will hold its result."""
        self.require_own()
        if self._thread.is_current:
            raise ConfigurationError(
                "a callback of the store, such as trainer_version_fn, runs in the store's own "
                "thread and can make no blocking call there; it may read properties"
            )
        try:
            return self._thread.portal.start_task_soon(call.run)
        except RuntimeError as ended:
            raise StoreClosed(_CLOSED) from ended

    def receive(self, call: Call, begin: Callable[[], Future[Any]]) -> Any:
        """Begin something of a call and wait for it; interrupted, let go of the call."""
        try:
            return begin().result()
        except CancelledError:
            raise StoreClosed(_CLOSED) from None
        except BaseException as error:
            if error is not call.error:  # not the call's own: its caller was interrupted
                self.give_up(call)
            raise

    def give_up(self, call: Call) -> None:
        """Let go of a call that nobody waits for any more."""
        if self.is_own:
            with suppress(RuntimeError):  # the loop has ended, and the call with it
                self._thread.portal.start_task_soon(call.give_up)

    def stop(self) -> None:
        """End the thread; calls under way are cancelled. Repeatable."""
        self._thread.stop()


class Call:
    """One function that runs in the loop for a caller in another thread.

    Attributes:
        error: What it raised.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._scope: anyio.CancelScope | None = None
        self._ended = False
        self._given_up = False
        self._returns: list[Callable[[], None]] = []

    async def run(self) -> Any:
        """Run to the end, in the loop."""
        if self._given_up:
            return None
        RETURNS.set(self._returns)
        value: Any = None
        try:
            with anyio.CancelScope() as self._scope:
                value = self._work()
                if isawaitable(value):
                    value = await value
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._ended = True
        if self._given_up:
            self._return_all()
        return value

    async def give_up(self) -> None:
        """Cancel the call, or return what it was given, in the loop."""
        self._given_up = True
        if self._ended:
            self._return_all()
        elif self._scope is not None:
            self._scope.cancel()

    def _return_all(self) -> None:
        while self._returns:
            self._returns.pop()()


class HeldBlock:
    """An asynchronous context manager that one task of the loop enters, holds and leaves."""

    def __init__(self, bridge: Bridge, held: AbstractAsyncContextManager[Any]) -> None:
        self._bridge = bridge
        self._held = held
        self._call = Call(self._hold)
        self._leave = anyio.Event()
        self._reason: Reason = (None, None, None)
        self._entered: Future[Any] = Future()
        self._left: Future[Any] = Future()

    def enter(self) -> Any:
        """Enter, and return what the ``async with`` would give."""

        def begin() -> Future[Any]:
            self._left = self._bridge.begin(self._call)
            return self._entered

        return self._bridge.receive(self._call, begin)

    def leave(self, *reason: Any) -> bool | None:
        """Leave for a reason, as ``__exit__`` is given it; once the loop has ended, it is left."""
        if self._left.done():
            return None

        def begin() -> Future[Any]:
            self._reason = reason
            self._bridge.begin(Call(self._leave.set))
            return self._left

        return bool(self._bridge.receive(self._call, begin))

    async def _hold(self) -> bool | None:
        try:
            value = await self._held.__aenter__()
        except anyio.get_cancelled_exc_class():
            self._entered.cancel()
            raise
        except BaseException as error:
            self._entered.set_exception(error)
            raise
        self._entered.set_result(value)
        try:
            await self._leave.wait()
        except BaseException as cancelled:
            await self._held.__aexit__(type(cancelled), cancelled, cancelled.__traceback__)
            raise
        return await self._held.__aexit__(*self._reason)
