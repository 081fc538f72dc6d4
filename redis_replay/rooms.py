"""Room for so many at once, taken without the event loop where there is some."""

from __future__ import annotations

import anyio


async def acquire(room: anyio.Semaphore) -> None:
    """Acquire a semaphore whose waiters take turns.

    Where there is room this is no point at which the caller may be cancelled, which costs as much
    as a short exchange with the server.
    """
    try:
        room.acquire_nowait()
    except anyio.WouldBlock:
        await room.acquire()
