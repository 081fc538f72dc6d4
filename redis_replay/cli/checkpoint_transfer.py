"""``redis-replay checkpoint export`` and ``import``, with a progress bar for people."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from redis_replay._redis.connect import Target
from redis_replay._redis.runs import list_runs
from redis_replay.checkpoint_info import CheckpointInfo, OnProgress, TransferProgress
from redis_replay.cli.checkpoint import (
    NameArgument,
    info_document,
    on_run,
    show_or_write,
    usable_arguments,
)
from redis_replay.cli.failures import plain_failures
from redis_replay.cli.options import JsonOption, PartitionOption, RunOption, UrlOption
from redis_replay.cli.places import DEADLINE_SECONDS, reach
from redis_replay.cli.screen import open_console, printable, write_json
from redis_replay.cli.survey import survey_server
from redis_replay.exported import Exported
from redis_replay.exporting import ExportReport
from redis_replay.importing import checked_export, import_checked
from redis_replay.opening import open_store
from redis_replay.store import ReplayStore

_STAGES: Final = {"check": "checking", "write": "writing"}

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of the exported checkpoint.")
]


@contextmanager
def progress_bar(console: Console | None = None) -> Generator[OnProgress]:
    """Draw a bar for each stage on stderr while the block runs, if a person is looking."""
    shown = console or Console(stderr=True, file=sys.stderr)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        tasks = {stage: bar.add_task(text, visible=False) for stage, text in _STAGES.items()}

        def update(progress: TransferProgress) -> None:
            bar.update(
                tasks[progress.stage],
                total=progress.total_bytes,
                completed=progress.done_bytes,
                visible=True,
            )

        yield update


def export_checkpoint(
    name: NameArgument,
    folder: FolderArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a checkpoint to a folder while the run goes on.

    A folder that has an export already is brought up to date: only new groups are written.
    """

    async def work(store: ReplayStore) -> ExportReport:
        with progress_bar() as on_progress:
            return await store.checkpoints.export(name, folder, on_progress=on_progress)

    report = on_run(url, run, partition, work)
    if as_json:
        write_json(
            {
                "path": str(report.path),
                "groups": report.groups,
                "groups_written": report.groups_written,
                "total_bytes": report.total_bytes,
                "written_bytes": report.written_bytes,
                "checkpoint": info_document(report.checkpoint),
            }
        )
        return
    said = (
        f"Exported {name!r} to {report.path}: {report.groups:,} groups in "
        f"{decimal(report.total_bytes)}, of which {decimal(report.written_bytes)} were written now."
    )
    open_console().print(Text(printable(said)))


def import_checkpoint(
    folder: FolderArgument,
    url: UrlOption = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="NAME",
            show_default="the one that was exported",
            help="Training run; created with the settings in the files if it is not there.",
        ),
    ] = None,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            metavar="NAME",
            show_default="the one that was exported",
            help="Partition of the run.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            metavar="NAME",
            show_default="the one it had",
            help="What the checkpoint is called there.",
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            "--capacity",
            min=1,
            metavar="GROUPS",
            show_default="as it is, or was",
            help="Capacity of the run.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring an exported checkpoint into a run, on whatever server. Restoring it is another step."""

    async def work(target: Target) -> _Arrival:
        await survey_server(target)
        with usable_arguments(), progress_bar() as on_progress:
            async with checked_export(folder, on_progress=on_progress) as exported:
                header = exported.header
                place = (run or header.run, partition or header.partition)
                async with _receiving_run(target, exported, place, capacity) as store:
                    link = store.buffer.session.link
                    info = await import_checked(link, exported, name=name, on_progress=on_progress)
                    return _Arrival(info, *place, store.run.created)

    with plain_failures(), reach(url) as target:
        arrival = anyio.run(work, target)
    info = arrival.checkpoint
    if as_json:
        place = {"run": arrival.run, "partition": arrival.partition, "created": arrival.created}
        write_json({**place, "checkpoint": info_document(info)})
        return
    how = "the new run" if arrival.created else "run"
    said = f"Imported {info.name!r} into {how} {arrival.run} / {arrival.partition}"
    show_or_write(info, as_json=False, said=said)


@dataclass(frozen=True)
class _Arrival:
    checkpoint: CheckpointInfo
    run: str
    partition: str
    created: bool


@asynccontextmanager
async def _receiving_run(
    target: Target, exported: Exported, place: tuple[str, str], capacity: int | None
) -> AsyncGenerator[ReplayStore]:
    """Open the run that an export goes into; a new one gets the settings of the exported."""
    known = await list_runs(target, deadline_seconds=DEADLINE_SECONDS)
    is_new = place not in known
    asked: dict[str, Any] = asdict(exported.header.settings) if is_new else {}
    if capacity is not None:
        asked["capacity"] = capacity
    if is_new:
        asked["dataset"] = exported.meta.get(b"dataset", b"").decode() or None
    run, partition = place
    async with open_store(client=target.connect(), run=run, partition=partition, **asked) as store:
        yield store
