"""Who has been silent for a whole lease, by the watcher's own monotonic clock.

Nobody's wall clock is compared with anybody's. A watcher that was itself away (its server down, its
thread paused) has observed nothing, so all its timers start anew (D45).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from redis_replay._redis.records import OwnerRecord


@dataclass
class SilenceWatch:
    """Remembers when each owner's heartbeat was last seen to change.

    Attributes:
        longest_gap_seconds: A longer pause between two observations restarts all timers.
        leases_seconds: Leases of the owners that the last look found.
    """

    longest_gap_seconds: float
    leases_seconds: list[float] = field(default_factory=list)
    _last_observation: float | None = None
    _seen: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def observe(self, owners: Mapping[str, OwnerRecord], *, now: float) -> list[str]:
        """Take one look at all owners and return the names silent for their lease.

        Args:
            owners: The records just read, by name.
            now: This process's monotonic time in seconds.
        """
        last, self._last_observation = self._last_observation, now
        if last is not None and now - last > self.longest_gap_seconds:
            self._seen.clear()
        silent: list[str] = []
        seen: dict[str, tuple[int, int, float]] = {}
        for name, record in owners.items():
            epoch, heartbeat, since = self._seen.get(name, (0, 0, now))
            if (epoch, heartbeat) != (record.epoch, record.heartbeat):
                since = now
            seen[name] = (record.epoch, record.heartbeat, since)
            if now - since >= record.lease_seconds:
                silent.append(name)
        self._seen = seen
        self.leases_seconds = [record.lease_seconds for record in owners.values()]
        return silent
