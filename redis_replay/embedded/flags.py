"""The settings of the private server that are not about its place: the one list of them.

`docker-compose.yml` starts its server with the same flags; a test compares.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args

AppendFsync: TypeAlias = Literal["no", "everysec", "always"]

APPENDFSYNC: Final[tuple[AppendFsync, ...]] = get_args(AppendFsync)
"""How often the append-only file is synced, the laxest first."""


def server_flags(*, appendfsync: AppendFsync = "everysec") -> tuple[str, ...]:
    """Return the flags of a server that loses nothing it said it had.

    No preamble in the append-only file: with one, a folder of Valkey 9.1 opens in nothing else.

    Args:
        appendfsync: ``always`` answers after the disk has it, ``everysec`` may lose a second when
            the machine (not the process) dies, ``no`` leaves it to the kernel.
    """
    return (
        "--appendonly",
        "yes",
        "--appendfsync",
        appendfsync,
        "--aof-use-rdb-preamble",
        "no",
        "--save",
        "",
        "--maxmemory-policy",
        "noeviction",
    )


def stricter(one: AppendFsync, other: AppendFsync) -> AppendFsync:
    """Return the one that loses less."""
    return one if APPENDFSYNC.index(one) >= APPENDFSYNC.index(other) else other
