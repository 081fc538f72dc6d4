"""The command line ``redis-replay``; see `redis_replay.cli.app`."""

from redis_replay.cli.app import main

__all__ = ["main"]
