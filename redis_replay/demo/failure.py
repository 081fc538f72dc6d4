"""The demo's own error."""

from __future__ import annotations

from redis_replay.errors import ReplayError


class DemoFailed(ReplayError):
    """The run could not be finished. The message says what ended, or what never happened."""
