"""Knowing that a caller of a store has begun to wait, so that a test may go on."""

from __future__ import annotations

from typing import Any

import anyio.lowlevel

from redis_replay._redis.events import Topic
from tests.harness import until


class Waits:
    """Counts the waits of a store's callers for a wake-up, from now on."""

    def __init__(self, store: Any) -> None:
        self.count = 0
        self._wakeups = store.buffer.session.link.wakeups
        self._wait = self._wakeups.wait
        self._wakeups.wait = self._counted

    async def _counted(self, topic: Topic, ticket: int, *, at_most_seconds: float) -> bool:
        self.count += 1
        return bool(await self._wait(topic, ticket, at_most_seconds=at_most_seconds))

    async def begun(self, count: int = 1) -> None:
        """Return when that many waits have begun."""

        async def reached() -> bool:
            return self.count >= count

        await until(reached, what=f"{count} waits had begun")
        await anyio.lowlevel.checkpoint()
