"""Work that finishes although its caller was cancelled.

A mutation that has been sent cannot be taken back, so it runs in a task of the store: the cancelled
caller leaves at once, the task ends wholly applied or wholly refused, and closing the store waits
for it (D7). What a cancelled caller would have received is handed to
``unclaimed``, so that nothing is owned by nobody.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import anyio
from anyio.abc import TaskGroup

T = TypeVar("T")
_LOG = logging.getLogger(__name__)

Work = Callable[[], Awaitable[T]]

RETURNS: ContextVar[list[Callable[[], None]] | None] = ContextVar("RETURNS", default=None)
"""Set by a caller whose own caller may yet be interrupted: how to return what it was given."""


class Outcome(Generic[T]):
    """A value or an error that one task leaves for another."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.abandoned = False
        self._value: T | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Outcome[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._error = error
        self.done.set()
        if self.abandoned and isinstance(error, Exception):
            _LOG.warning("a call whose caller was cancelled ended in an error: %s", error)
        return isinstance(error, Exception)

    @property
    def succeeded(self) -> bool:
        """Whether the value is there."""
        return self.done.is_set() and self._error is None

    def put(self, value: T) -> None:
        """Leave the value."""
        self._value = value

    def take(self) -> T:
        """Return the value or raise the error."""
        if self._error is not None:
            raise self._error
        return cast(T, self._value)


class FinishingTasks:
    """Runs calls to their end in a task group that outlives their callers."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._running: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()
        self._idle.set()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        while self._running:
            await self._idle.wait()

    def cancel(self) -> None:
        """Give up what still runs; the outcome of such a call is open."""
        if self._running:
            _LOG.warning("%d calls were still under way at the end", len(self._running))
        for scope in self._running:
            scope.cancel()

    async def finish(
        self, work: Work[T], *, unclaimed: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        """Run the work to its end and return its value; a cancellation leaves it running.

        Args:
            work: What to run.
            unclaimed: Given the value when the caller was cancelled before it could receive it.
        """
        outcome: Outcome[T] = Outcome()
        self._group.start_soon(self._complete, work, outcome, unclaimed)
        received = False
        try:
            await outcome.done.wait()
            received = True
        finally:
            outcome.abandoned = not received
            if not received and outcome.succeeded and unclaimed is not None:
                self.start(partial(unclaimed, outcome.take()))
        value = outcome.take()
        returns = RETURNS.get()
        if returns is not None and unclaimed is not None:
            returns.append(partial(self.start, partial(unclaimed, value)))
        return value

    def start(self, work: Work[None]) -> None:
        """Run work in the background; its error is logged."""
        outcome: Outcome[None] = Outcome()
        outcome.abandoned = True
        self._group.start_soon(self._complete, work, outcome, None)

    async def _complete(
        self,
        work: Work[T],
        outcome: Outcome[T],
        unclaimed: Callable[[T], Awaitable[None]] | None,
    ) -> None:
        with anyio.CancelScope(shield=True) as scope:
            self._running.add(scope)
            if self._idle.is_set():
                self._idle = anyio.Event()
            try:
                with outcome:
                    outcome.put(await work())
                if outcome.abandoned and outcome.succeeded and unclaimed is not None:
                    left: Outcome[None] = Outcome()
                    left.abandoned = True
                    with left:
                        await unclaimed(outcome.take())
            finally:
                self._running.discard(scope)
                if not self._running:
                    self._idle.set()


class QuietTaskGroup:
    """A task group that is left by finishing its tasks, whatever the block raised.

    A block's own error then leaves the ``async with`` as it is, not inside an exception group.
    """

    def __init__(self) -> None:
        self._group = anyio.create_task_group()

    async def __aenter__(self) -> TaskGroup:
        return await self._group.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._group.cancel_scope.shield = True
        await self._group.__aexit__(None, None, None)


class SideThread(Generic[T]):
    """Blocking work in a thread, a piece at a time, beside what its user does meanwhile.

    Used as an async context manager; leaving it waits for the piece that runs.
    """

    def __init__(self) -> None:
        self._tasks = QuietTaskGroup()
        self._group: TaskGroup | None = None
        self._outcome: Outcome[T] | None = None

    async def __aenter__(self) -> SideThread[T]:
        self._group = await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._tasks.__aexit__(kind, error, trace)

    def start(self, work: Callable[[], T]) -> None:
        """Start a piece; the last one's `result` must have been taken."""
        assert self._group is not None
        self._outcome = Outcome()
        self._group.start_soon(self._run, work, self._outcome)

    @staticmethod
    async def _run(work: Callable[[], T], outcome: Outcome[T]) -> None:
        with outcome:
            outcome.put(await anyio.to_thread.run_sync(work))

    async def result(self) -> T | None:
        """Wait for the piece that was started and return its value or raise its error.

        ``None`` if there is none.
        """
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return None
        await outcome.done.wait()
        return outcome.take()


async def shielded(work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
    """Run work that a cancellation does not stop."""
    with anyio.CancelScope(shield=True):
        await work(*arguments)
