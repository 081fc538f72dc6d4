"""The numbers of a session's calls, and which of them an attempt may still come under.

A session has 16 places for calls under way; a call's number modulo 16 is its place, and the store
keeps the last answer of each (D27). A refusal is not kept, nor is the answer of a call that found
nothing to do. So where an attempt failed, it may still be on its way and run later: its place is in
doubt until a later number of it has been used (D52).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import anyio

from redis_replay.rooms import acquire

CALLS_IN_FLIGHT: Final = 16


@dataclass
class Place:
    """One of the 16 places.

    Attributes:
        index: Its number.
        is_doubtful: Whether an attempt of an earlier call may still be on its way.
    """

    index: int
    is_doubtful: bool = False
    _uses: int = 0

    def next_number(self) -> int:
        """Return the next call number of this place."""
        self._uses += 1
        return self.index + CALLS_IN_FLIGHT * self._uses

    def doubt(self) -> None:
        """Know that an attempt has failed that may still be on its way."""
        self.is_doubtful = True


@dataclass
class CallNumbers:
    """The places of one session."""

    _free: list[Place] = field(default_factory=lambda: [Place(at) for at in range(CALLS_IN_FLIGHT)])
    _doubtful: list[Place] = field(default_factory=list[Place])
    _room: anyio.Semaphore = field(
        default_factory=lambda: anyio.Semaphore(CALLS_IN_FLIGHT, fast_acquire=True)
    )

    async def take(self) -> Place:
        """Return a place for one call, one in doubt if there is one; waits while all are taken."""
        await acquire(self._room)
        return (self._doubtful or self._free).pop()

    def give_back(self, place: Place) -> None:
        """Have a place for the next call again."""
        (self._doubtful if place.is_doubtful else self._free).append(place)
        self._room.release()

    @property
    def are_doubtful(self) -> bool:
        """Whether a place that no call holds is in doubt."""
        return bool(self._doubtful)
