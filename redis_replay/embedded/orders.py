"""What an opener tells the keeper that it starts, as one argument of a command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from redis_replay.embedded.record import ServerRecord


@dataclass(frozen=True, slots=True)
class KeeperOrders:
    """One folder, and the server to run in it.

    Attributes:
        folder: Absolute path of the data.
        record: The server as it should be; its socket is the earlier one, or empty.
        idle_seconds: How long the server stays after its users were killed.
    """

    folder: Path
    record: ServerRecord
    idle_seconds: float

    def to_argument(self) -> str:
        """Return the orders as text."""
        parts = {"folder": str(self.folder), "record": asdict(self.record)}
        return json.dumps({**parts, "idle_seconds": self.idle_seconds})

    @classmethod
    def from_argument(cls, argument: str) -> KeeperOrders:
        """Read what `to_argument` wrote."""
        parts: dict[str, Any] = json.loads(argument)
        record = ServerRecord.from_parts(parts["record"])
        return cls(Path(parts["folder"]), record, float(parts["idle_seconds"]))
