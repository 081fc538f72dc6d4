"""A thread with an event loop of its own, and the way into it.

Unlike `anyio.from_thread.start_blocking_portal` it has nothing that is finalized: in a forked
process, where the thread does not exist, an object that is collected must not wait for it.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future

import anyio
from anyio.from_thread import BlockingPortal


class LoopThread:
    """Starts the thread; `stop` ends it. It does not keep the interpreter from exiting.

    Attributes:
        portal: Runs functions in the thread's event loop.
    """

    portal: BlockingPortal

    def __init__(self, name: str) -> None:
        started: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=_run, args=(started,), name=name, daemon=True)
        self._thread.start()
        self.portal = started.result()

    @property
    def is_current(self) -> bool:
        """Whether it is the thread that asks."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Cancel what still runs in the loop, and wait until the thread has ended. Repeatable."""
        if self._thread.is_alive():
            self.portal.call(self.portal.stop, True)
        self._thread.join()


def _run(started: Future[BlockingPortal]) -> None:
    try:
        anyio.run(_serve, started)
    except BaseException as failure:
        if started.done():
            raise
        started.set_exception(failure)


async def _serve(started: Future[BlockingPortal]) -> None:
    async with BlockingPortal() as portal:
        started.set_result(portal)
        await portal.sleep_until_stopped()
