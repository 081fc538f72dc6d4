"""``redis-replay up`` and ``down``: an embedded server that stays until it is told to stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
from rich.text import Text

from redis_replay import embedded
from redis_replay._redis.connect import Target
from redis_replay.cli.failures import plain_failures
from redis_replay.cli.options import (
    DirectoryArgument,
    JsonOption,
    PartitionOption,
    RunOption,
    UrlOption,
)
from redis_replay.cli.places import (
    default_directory,
    embedded_place,
    embedded_target,
    embedded_url,
    holds_data,
    matching_runs,
)
from redis_replay.cli.screen import QUIET_STYLE, facts, open_console, printable, write_json
from redis_replay.cli.survey import ServerSurvey, survey_server
from redis_replay.errors import ConfigurationError
from redis_replay.store_options import URL_VARIABLE


def up(
    directory: DirectoryArgument = None,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start an embedded server that stays until 'down', and print its address.

    Does nothing more when it is up already. With --run, the run must be in the folder.
    """
    with plain_failures():
        folder, options = _folder(directory, url)
        with embedded.open_embedded(folder, **options) as lease:
            lease.keep_running()
            server, runs = anyio.run(_look, embedded_target(lease), run, partition)
            pid = lease.server_pid
    document: dict[str, Any] = {
        "url": embedded_url(folder),
        "socket_url": lease.url,
        "directory": str(folder),
        "engine": server.engine,
        "version": server.version,
        "pid": pid,
        "runs": [{"run": name, "partition": part} for name, part in runs],
    }
    if as_json:
        write_json(document)
        return
    grid = facts()
    grid.add_row("Server", f"{server.engine} {server.version}, process {pid}, up until 'down'")
    grid.add_row("Folder", Text(printable(str(folder))))
    grid.add_row("Url", Text(printable(document["url"])))
    grid.add_row("", Text(f"{lease.url} for other Redis clients", style=QUIET_STYLE))
    names = ", ".join(f"{name} / {part}" for name, part in runs)
    grid.add_row("Runs", Text(printable(names or "none yet")))
    open_console().print(grid)


async def _look(
    target: Target, run: str | None, partition: str | None
) -> tuple[ServerSurvey, list[tuple[str, str]]]:
    server = await survey_server(target)
    return server, await matching_runs(target, run=run, partition=partition)


def down(
    directory: DirectoryArgument = None,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the embedded server of a folder, whoever uses it. Its data stays.

    With --run, it is stopped only if the run is in the folder.
    """
    with plain_failures():
        folder, options = _folder(directory, url)
        if (run, partition) != (None, None) and holds_data(folder):
            with embedded.open_embedded(folder, **options) as lease:
                anyio.run(_look, embedded_target(lease), run, partition)
        stopped = embedded.stop_embedded(folder)
    if as_json:
        write_json({"directory": str(folder), "stopped": stopped})
    elif stopped:
        open_console().print(Text(printable(f"The server in {folder} is stopped; its data stays.")))
    else:
        open_console().print(Text(printable(f"No server runs in {folder}.")))


def _folder(directory: Path | None, url: str | None) -> tuple[Path, embedded.EmbeddedOptions]:
    """Return the folder that is meant, and the options of its address."""
    if directory is not None:
        if url is not None:
            raise ConfigurationError("name the folder once: as DIRECTORY or in --url")
        return directory.absolute(), {}
    named = url or os.environ.get(URL_VARIABLE, "")
    if not named.startswith("embedded:"):
        if url is not None:
            raise ConfigurationError(
                "only embedded:///folder can be started and stopped here; other servers have their "
                "own ways"
            )
        return default_directory(), {}
    folder, options = embedded_place(named)
    if folder is None:
        raise ConfigurationError(f"{named} names no folder: embedded:///folder")
    return folder, options
