"""``redis-replay groups``: the live groups in buffer order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import anyio
import typer
from rich.console import RenderableType
from rich.text import Text

from redis_replay._redis.connect import Target
from redis_replay._redis.keys import Keyspace
from redis_replay.cli.failures import plain_failures
from redis_replay.cli.opening import opened_run
from redis_replay.cli.options import JsonOption, PartitionOption, RunOption, UrlOption
from redis_replay.cli.places import only_run, reach
from redis_replay.cli.screen import (
    QUIET_STYLE,
    cell,
    listing,
    open_console,
    printable,
    write_json,
)
from redis_replay.cli.survey import open_gateway, readable_records, survey_server
from redis_replay.run import RunSettings, open_run
from redis_replay.stats import read_slots
from redis_replay.types import GroupState, SlotView

_STATE_STYLES = {
    GroupState.RESERVED: "yellow",
    GroupState.READY: "green",
    GroupState.CLAIMED: "magenta",
    GroupState.QUARANTINED: "bold red",
}


def groups(
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    state: Annotated[
        GroupState | None,
        typer.Option(
            "--state",
            metavar="STATE",
            show_default="all",
            help=f"Only groups that are {', '.join(GroupState)}.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Most groups to show.")
    ] = 50,
    newest: Annotated[
        bool,
        typer.Option("--newest/--oldest", metavar="", help="Which end of the order comes first."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the live groups of a run in buffer order. A pure read."""
    with plain_failures(), reach(url) as target:
        keyspace, slots = anyio.run(_read, target, run, partition)
    matching = [slot for slot in slots if state in (None, slot.state)]
    if newest:
        matching.reverse()
    shown = matching[:limit]
    if as_json:
        write_json(
            {
                "run": keyspace.run,
                "partition": keyspace.partition,
                "matching": len(matching),
                "cut": len(shown) < len(matching),
                "groups": [asdict(slot) for slot in shown],
            }
        )
        return
    console = open_console()
    console.print(Text(printable(f"{keyspace.run} / {keyspace.partition}"), style="bold"))
    if shown:
        console.print(groups_table(shown))
    console.print(_summary(len(shown), len(matching), state, newest=newest), style=QUIET_STYLE)


async def _read(
    target: Target, run: str | None, partition: str | None
) -> tuple[Keyspace, list[SlotView]]:
    await survey_server(target)
    keyspace = await only_run(target, run=run, partition=partition)
    async with open_gateway(target, keyspace) as gateway:
        with readable_records(keyspace):
            await open_run(gateway, RunSettings(), create=False)
            return keyspace, await read_slots(gateway)


def groups_table(slots: Sequence[SlotView]) -> RenderableType:
    """Return the groups as a table; ``Weights`` is the first and the last of the generation."""
    numbers = ("Order", "Weights", "Step", "Attempt", "Batch")
    table = listing(
        *("Order", "Group", "State", "Weights", "Step", "Attempt", "Batch", "Owner"),
        numbers=numbers,
    )
    for slot in slots:
        table.add_row(
            cell(slot.order),
            cell(slot.group_id),
            cell(slot.state.value, style=_STATE_STYLES[slot.state]),
            cell(_weights(slot)),
            *map(cell, (slot.target_step, slot.attempt, slot.batch)),
            _owner(slot),
        )
    return table


def _weights(slot: SlotView) -> str:
    start, end = slot.start_weight_version, slot.end_weight_version
    return f"{start:,}" if end in (None, start) else f"{start:,}-{end:,}"


def _owner(slot: SlotView) -> Text:
    if slot.owner is None and slot.state is GroupState.RESERVED:
        return Text("to redispatch", style=QUIET_STYLE)
    return cell(slot.owner)


def _summary(shown: int, matching: int, state: GroupState | None, *, newest: bool) -> str:
    kind = f"{state.value} group" if state else "live group"
    if matching == 0:
        return f"No {kind}."
    if shown < matching:
        end = "newest" if newest else "oldest"
        return f"The {shown:,} {end} of {matching:,} {kind}s; --limit {matching} shows all."
    return f"{matching:,} {kind}{'' if matching == 1 else 's'}."


def reinstate(
    group_ids: Annotated[
        list[str], typer.Argument(metavar="GROUP...", help="Quarantined groups by id.")
    ],
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring quarantined groups back: finished ones ready, others to be generated again."""

    async def work(target: Target) -> int:
        async with opened_run(target, run, partition) as store:
            return await store.buffer.reinstate(group_ids)

    with plain_failures(), reach(url) as target:
        count = anyio.run(work, target)
    if as_json:
        write_json({"reinstated": count})
    else:
        open_console().print(Text(f"Brought {count:,} groups back."))
