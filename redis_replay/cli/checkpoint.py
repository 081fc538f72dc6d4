"""``redis-replay checkpoint``: make, list, check, restore and drop the checkpoints of a run."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import anyio
import typer
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from redis_replay._redis.connect import Target
from redis_replay.checkpoint_info import CheckpointInfo, RestoreReport
from redis_replay.cli.failures import EXIT_VIOLATED, plain_failures
from redis_replay.cli.opening import opened_run
from redis_replay.cli.options import (
    CustomSamplerOption,
    IncompleteName,
    JsonOption,
    PartitionOption,
    RestoreModeName,
    RunOption,
    UrlOption,
)
from redis_replay.cli.places import reach, require_custom_sampler
from redis_replay.cli.screen import (
    BAD_STYLE,
    GOOD_STYLE,
    QUIET_STYLE,
    cell,
    facts,
    listing,
    open_console,
    printable,
    write_json,
)
from redis_replay.errors import ConfigurationError
from redis_replay.store import ReplayStore
from redis_replay.verification import CheckpointVerification

T = TypeVar("T")
Work = Callable[[ReplayStore], Awaitable[T]]

_SHOWN: int = 20

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Of the checkpoint.")]

checkpoint = typer.Typer(
    name="checkpoint",
    no_args_is_help=True,
    help="Make, list, check, restore, export and import the checkpoints of a run.",
)


@contextmanager
def usable_arguments() -> Generator[None]:
    """Turn a refused argument, or a file that cannot be used, into a plain failure.

    Raises:
        ConfigurationError: the block met one.
    """
    try:
        yield
    except (ValueError, TypeError, OSError) as refused:
        raise ConfigurationError(str(refused)) from refused


def on_run(url: str | None, run: str | None, partition: str | None, work: Work[T]) -> T:
    """Open a run, do something with it, and return what came of it; failures are one line."""

    async def opened(target: Target) -> T:
        async with opened_run(target, run, partition) as store:
            with usable_arguments():
                return await work(store)

    with plain_failures(), reach(url) as target:
        return anyio.run(opened, target)


@checkpoint.command()
def create(
    name: NameArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=0, metavar="STEP", help="Refuse if the run is at another step."),
    ] = None,
    extra: Annotated[
        str | None, typer.Option("--extra", metavar="JSON", help="A value of your own to keep.")
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", metavar="", help="Have --keep leave it alone.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", metavar="", help="Replace one of this name.")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option("--keep", min=1, metavar="N", help="Drop the oldest down to so many."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a run as it is now under a name; nobody is paused."""

    async def work(store: ReplayStore) -> CheckpointInfo:
        value = None if extra is None else json.loads(extra)
        return await store.checkpoints.create(
            name, step=step, extra=value, pin=pin, replace=replace, keep=keep
        )

    info = on_run(url, run, partition, work)
    show_or_write(info, as_json=as_json, said=f"Kept as {info.name!r}")


@checkpoint.command(name="list")
def list_checkpoints(
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the checkpoints of a run, oldest first. A pure read."""

    async def work(store: ReplayStore) -> list[CheckpointInfo]:
        return list(await store.checkpoints.list())

    known = on_run(url, run, partition, work)
    if as_json:
        write_json({"checkpoints": [info_document(info) for info in known]})
    elif known:
        open_console().print(checkpoints_table(known))
    else:
        open_console().print("No checkpoint.", style=QUIET_STYLE)


@checkpoint.command()
def show(
    name: NameArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one checkpoint. A pure read."""
    info = on_run(url, run, partition, lambda store: store.checkpoints.show(name))
    show_or_write(info, as_json=as_json, said=None)


@checkpoint.command()
def verify(
    name: NameArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    deep: Annotated[
        bool, typer.Option("--deep", metavar="", help="Read all rows and compare checksums.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that a checkpoint can be restored; exit status 1 if not all of it. A pure read."""
    found = on_run(url, run, partition, lambda store: store.checkpoints.verify(name, deep=deep))
    if as_json:
        write_json({**asdict(found), "whole": found.is_whole})
    else:
        _show_verification(found)
    if not found.is_whole:
        raise typer.Exit(EXIT_VIOLATED)


@checkpoint.command()
def restore(
    name: NameArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    mode: Annotated[
        RestoreModeName, typer.Option("--mode", help="What is brought back.")
    ] = RestoreModeName.ALL,
    incomplete: Annotated[
        IncompleteName, typer.Option("--incomplete", help="What becomes of batches with gaps.")
    ] = IncompleteName.KEEP,
    regenerate_damaged: Annotated[
        bool,
        typer.Option(
            "--regenerate-damaged", metavar="", help="Generate groups again whose rows are gone."
        ),
    ] = False,
    custom_sampler: CustomSamplerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a run what it was; newer groups are dropped, and all sessions end."""

    async def work(store: ReplayStore) -> RestoreReport:
        require_custom_sampler(store, custom_sampler)
        return await store.checkpoints.restore(
            name,
            mode=mode.value,
            incomplete=incomplete.value,
            regenerate_damaged=regenerate_damaged,
        )

    report = on_run(url, run, partition, work)
    if as_json:
        write_json(_restore_document(report))
        return
    console = open_console()
    step = report.checkpoint.step
    console.print(Text(printable(f"Restored {name!r}: continue with step {step:,}.")))
    table = listing("Groups", "", numbers=("",))
    for label in ("ready", "tickets", "quarantined"):
        table.add_row(cell(label), cell(getattr(report, label)))
    table.add_row(cell("left out"), cell(len(report.left_out)))
    table.add_row(cell("to generate again"), cell(len(report.regenerated)))
    console.print(table)


@checkpoint.command()
def drop(
    name: NameArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a checkpoint and free what nothing else needs."""
    given_back = on_run(url, run, partition, lambda store: store.checkpoints.drop(name))
    if as_json:
        write_json({"name": name, "given_back": given_back})
    else:
        open_console().print(Text(printable(f"Dropped {name!r}; {given_back:,} groups given up.")))


@checkpoint.command()
def pin(
    name: NameArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have retention leave a checkpoint alone."""
    info = on_run(url, run, partition, lambda store: store.checkpoints.pin(name))
    show_or_write(info, as_json=as_json, said=f"Pinned {name!r}")


@checkpoint.command()
def unpin(
    name: NameArgument,
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo 'pin'."""
    info = on_run(url, run, partition, lambda store: store.checkpoints.unpin(name))
    show_or_write(info, as_json=as_json, said=f"Unpinned {name!r}")


def show_or_write(info: CheckpointInfo, *, as_json: bool, said: str | None) -> None:
    """Write a checkpoint as JSON, or show it below a sentence."""
    if as_json:
        write_json(info_document(info))
        return
    console = open_console()
    if said is not None:
        console.print(Text(printable(f"{said}.")))
    console.print(_facts_of(info))


def info_document(info: CheckpointInfo) -> dict[str, Any]:
    """Return a checkpoint as a JSON object; an extra that JSON cannot hold as text."""
    document = asdict(info)
    document["groups"] = dict(info.groups)
    try:
        json.dumps(info.extra)
    except (TypeError, ValueError):
        document["extra"] = repr(info.extra)
    return document


def checkpoints_table(known: list[CheckpointInfo]) -> Table:
    """Return checkpoints as a table, oldest first."""
    numbers = ("Step", "Groups", "Rows")
    table = listing("Checkpoint", *numbers, "Made", "", numbers=numbers)
    for info in known:
        table.add_row(
            cell(info.name),
            cell(info.step),
            cell(sum(info.groups.values())),
            cell(decimal(info.payload_bytes)),
            cell(_moment(info)),
            _notes(info),
        )
    return table


def _notes(info: CheckpointInfo) -> Text:
    if not info.is_complete:
        return Text("import not ended", style=BAD_STYLE)
    return Text("pinned" if info.pinned else "", style=QUIET_STYLE)


def _moment(info: CheckpointInfo) -> str:
    made = datetime.fromtimestamp(info.created_unix_seconds, UTC)
    return made.strftime("%Y-%m-%d %H:%M:%SZ")


def _facts_of(info: CheckpointInfo) -> Table:
    grid = facts()
    states = ", ".join(f"{count:,} {state}" for state, count in info.groups.items() if count)
    grid.add_row("Checkpoint", cell(info.name))
    grid.add_row("Step", cell(f"{info.step:,}, last batch dispatched {info.dispatch_index:,}"))
    grid.add_row("Groups", cell(states or "none"))
    grid.add_row("Rows", cell(f"{decimal(info.payload_bytes)}"))
    grid.add_row("Made", cell(_moment(info)))
    grid.add_row("Of", cell(f"history {info.lineage}, schema {info.schema}"))
    grid.add_row("Digest", cell(info.digest or "not written yet"))
    if info.extra is not None:
        grid.add_row("Extra", cell(repr(info.extra)))
    grid.add_row("", _notes(info))
    return grid


def _show_verification(found: CheckpointVerification) -> None:
    console = open_console()
    for problem in found.problems:
        console.print(Text(printable(f"Checkpoint {found.name!r}: {problem}"), style=BAD_STYLE))
    for group_id, wrong in list(found.damaged.items())[:_SHOWN]:
        console.print(Text(printable(f"Group {group_id!r}: {wrong}"), style=BAD_STYLE))
    if len(found.damaged) > _SHOWN:
        console.print(f"and {len(found.damaged) - _SHOWN:,} more; --json has all")
    unfinished = f"{len(found.unfinished):,} come back as prompts to generate again"
    if found.is_whole:
        whole = f"All {found.groups_checked:,} finished groups come back; {unfinished}."
        console.print(whole, style=GOOD_STYLE)
    else:
        console.print(f"{len(found.damaged):,} of {found.groups_checked:,} groups would be lost.")


def _restore_document(report: RestoreReport) -> dict[str, Any]:
    prompts = {i: None if p is None else p.hex() for i, p in report.left_out.items()}
    return {
        "checkpoint": info_document(report.checkpoint),
        "ready": report.ready,
        "tickets": report.tickets,
        "quarantined": report.quarantined,
        "reopened": report.reopened,
        "left_out": prompts,
        "regenerated": dict(report.regenerated),
        "store_epoch": report.store_epoch,
    }
