"""Where a command looks: the server of ``--url`` and the run of ``--run`` and ``--partition``.

Commands that read never create a run, attach a session or write a key; an embedded folder in which
nothing was ever kept is not started either.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from redis_replay import embedded
from redis_replay._redis.connect import Target
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.runs import list_runs
from redis_replay.embedded.record import RECORD
from redis_replay.errors import (
    ConfigurationError,
    EmbeddedServerError,
    StoreMissing,
    UnsupportedUrl,
)
from redis_replay.store import ReplayStore
from redis_replay.store_options import URL_VARIABLE

DEADLINE_SECONDS: Final = 3.0
"""How long a command waits for a server that does not answer."""

_RUNS_NAMED: Final = 20


def default_directory() -> Path:
    """Return the folder of an embedded server that was not given one."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "redis-replay"


def holds_data(directory: Path) -> bool:
    """Return whether an embedded server ever kept something in a folder."""
    try:
        return (directory / RECORD).is_file()
    except OSError:
        return False


def embedded_place(url: str) -> tuple[Path | None, embedded.EmbeddedOptions]:
    """Return folder and options of an ``embedded:`` address.

    Raises:
        UnsupportedUrl: it is malformed.
    """
    try:
        return embedded.parse_embedded_url(url)
    except ValueError as malformed:
        raise UnsupportedUrl(f"the address {url!r} is malformed: {malformed}") from None


@contextmanager
def reach(url: str | None) -> Generator[Target]:
    """Find the server that a command reads; an embedded one is held, and started if it rests.

    Raises:
        ConfigurationError: no server is named, or the address is no good.
        EmbeddedServerError: the folder holds no data, or its server cannot be started.
    """
    named = url or os.environ.get(URL_VARIABLE)
    if named is None and holds_data(default_directory()):
        named = embedded_url(default_directory())
    if not named:
        raise ConfigurationError(
            f"no server was named: pass --url redis://host:port/0 or --url embedded:///folder, set "
            f"{URL_VARIABLE}, or start a private server with 'redis-replay up'"
        )
    if not named.startswith("embedded:"):
        yield Target.from_url(named)
        return
    directory, options = embedded_place(named)
    if directory is None:
        raise ConfigurationError(
            f"{named} would be a new, empty server; name the folder of one that holds runs: "
            "embedded:///folder"
        )
    if not holds_data(directory):
        raise EmbeddedServerError(
            f"no embedded server has kept anything in {directory}; 'redis-replay up {directory}' "
            "starts one there"
        )
    with embedded.open_embedded(directory, **options) as lease:
        yield embedded_target(lease)


def embedded_target(lease: embedded.EmbeddedLease) -> Target:
    """Return the server of a lease, named by its folder in messages."""
    return replace(Target.from_url(lease.url), address=embedded_url(lease.directory))


def embedded_url(directory: Path) -> str:
    """Return the address of the embedded server that keeps its data in a folder."""
    return f"embedded://{quote(str(directory))}"


async def matching_runs(
    target: Target, *, run: str | None, partition: str | None
) -> list[tuple[str, str]]:
    """Return run and partition of every run that the options allow.

    Raises:
        StoreMissing: a run or partition was named and is not there; the message lists what is.
        StoreError: the server cannot be read.
    """
    found = await list_runs(target, deadline_seconds=DEADLINE_SECONDS)
    matching = [
        (name, part) for name, part in found if run in (None, name) and partition in (None, part)
    ]
    if not matching and (run, partition) != (None, None):
        wanted = " / ".join(name for name in (run, partition) if name is not None)
        there = f"there are: {_names(found)}" if found else "it holds no run"
        raise StoreMissing(f"{wanted!r} is not on {target.address}; {there}")
    return matching


async def only_run(target: Target, *, run: str | None, partition: str | None) -> Keyspace:
    """Return the keys of the one run that the options allow.

    Raises:
        ConfigurationError: they allow several, which are listed.
        StoreMissing: they allow none.
        StoreError: the server cannot be read.
    """
    matching = await matching_runs(target, run=run, partition=partition)
    if not matching:
        raise StoreMissing(f"there is no run on {target.address}")
    if len(matching) > 1:
        raise ConfigurationError(
            f"{target.address} holds several runs; choose one with --run and --partition: "
            f"{_names(matching)}"
        )
    return Keyspace(*matching[0])


def require_custom_sampler(store: ReplayStore, target: str | None) -> None:
    """Tell a store of the run's custom sampler class, if one was named.

    Raises:
        ConfigurationError: it is no sampler, or is not trusted with checkpoints.
    """
    if target is None:
        return
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it
    try:
        store.checkpoints.require_sampler({"name": "custom", "target": target})
    except (ImportError, ValueError, TypeError) as refused:
        raise ConfigurationError(str(refused)) from refused


def _names(runs: Sequence[tuple[str, str]]) -> str:
    named = [f"{run} / {partition}" for run, partition in runs[:_RUNS_NAMED]]
    more = len(runs) - len(named)
    return ", ".join([*named, *([f"and {more} more"] if more else [])])
