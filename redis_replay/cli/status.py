"""``redis-replay status``: the server, and what every run on it is doing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import anyio
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.text import Text

from redis_replay._redis.connect import Target
from redis_replay._redis.keys import Keyspace
from redis_replay.cli.failures import failure_line, plain_failures, say
from redis_replay.cli.options import JsonOption, PartitionOption, RunOption, UrlOption
from redis_replay.cli.places import matching_runs, reach
from redis_replay.cli.screen import (
    BAD_STYLE,
    QUIET_STYLE,
    cell,
    facts,
    listing,
    open_console,
    printable,
    stacked_bar,
    write_json,
)
from redis_replay.cli.survey import OwnerSurvey, RunSurvey, ServerSurvey, survey_run, survey_server
from redis_replay.errors import ReplayError, SchemaMismatch, StoreCorrupted
from redis_replay.store import DEFAULT_PARTITION
from redis_replay.transitions import ENDS
from redis_replay.types import BufferStats

_UNGATED: Final = "windowed"
_LONGEST_BAR: Final = 60
_SHARES: Final = (("claimed", "magenta"), ("ready", "green"), ("reserved", "yellow"))
_BLOCKS: Final = "█▓░·"
_ASCII_BLOCKS: Final = "#=-."
"""What draws each share of the bar, and its rest."""


def status(
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the server, and a run's settings, gate, buffer and sessions.

    With several runs and no --run, one line for each. A pure read.
    """
    with plain_failures(), reach(url) as target:
        server, runs, unreadable = anyio.run(_survey, target, run, partition)
    for failure in unreadable:
        say(failure_line(failure))
    if as_json:
        write_json(
            {
                "server": asdict(server),
                "runs": [run_document(survey) for survey in runs],
                "unreadable": [str(failure) for failure in unreadable],
            }
        )
        return
    console = open_console()
    console.print(_server_line(server))
    if len(runs) == 1 and not unreadable:
        blocks = _ASCII_BLOCKS if console.options.ascii_only else _BLOCKS
        console.print(run_view(runs[0], width=console.width, blocks=blocks))
    elif runs:
        console.print("", _runs_table(runs), "", sep="\n")
        console.print("Name one with --run for its sessions and settings.", style=QUIET_STYLE)
    else:
        console.print("It holds no run yet.")


async def _survey(
    target: Target, run: str | None, partition: str | None
) -> tuple[ServerSurvey, list[RunSurvey], list[ReplayError]]:
    """Return the server, its runs and, where some of several cannot be read, why not."""
    server = await survey_server(target)
    matching = await matching_runs(target, run=run, partition=partition)
    runs: list[RunSurvey] = []
    unreadable: list[ReplayError] = []
    for names in matching:
        try:
            runs.append(await survey_run(target, Keyspace(*names)))
        except (SchemaMismatch, StoreCorrupted) as failure:
            if len(matching) == 1:
                raise
            unreadable.append(failure)
    return server, runs, unreadable


def run_document(survey: RunSurvey) -> dict[str, Any]:
    """Return a run as a JSON object."""
    document = asdict(survey)
    return {
        **{name: document[name] for name in ("run", "partition", "lineage", "store_epoch", "seq")},
        "policy": survey.policy,
        "windows": dict(survey.windows),
        "settings": document["settings"],
        **document["stats"],
        "occupancy": survey.stats.occupancy,
        "tickets": survey.tickets,
        "gate_open": admissible_batches(survey) != 0,
        "ended_sessions": survey.ended_sessions,
        "owners": document["owners"],
    }


def admissible_batches(survey: RunSurvey) -> int | None:
    """Return how many batches may dispatch before the trainer moves; ``None``: no gate.

    A run that no sampler was used on has no gate yet.
    """
    stats = survey.stats
    if survey.policy in (None, _UNGATED):
        return None
    return max(0, stats.trainer_version + (stats.gate_window or 0) - stats.dispatch_index)


def _server_line(server: ServerSurvey) -> RenderableType:
    grid = facts()
    name = " ".join(word for word in (server.engine, server.version) if word) or "a server"
    grid.add_row("Server", Text(printable(f"{name} at {server.address}")))
    notes = Text(server.persistence or "persistence not told")
    if server.keeps_data is False:
        notes.stylize(BAD_STYLE)
    policy = server.eviction_policy
    if policy is not None:
        drops = policy.startswith("allkeys-")
        notes.append(f"; {policy}", style=BAD_STYLE if drops else "")
        notes.append(" (drops replay data when memory is full)" if drops else "")
    if server.used_memory_bytes is not None:
        notes.append(f"; {decimal(server.used_memory_bytes)} in use")
    grid.add_row("", notes)
    return grid


def _runs_table(runs: Sequence[RunSurvey]) -> RenderableType:
    numbers = ("Trainer", "Batch", "Ready", "Claimed", "Buffer", "Trained", "Sessions")
    partitioned = any(survey.partition != DEFAULT_PARTITION for survey in runs)
    table = listing("Run", "Policy", *numbers, numbers=numbers)
    for survey in runs:
        stats = survey.stats
        table.add_row(
            cell(f"{survey.run} / {survey.partition}" if partitioned else survey.run),
            *map(cell, (survey.policy, stats.trainer_version, stats.dispatch_index)),
            *map(cell, (stats.ready, stats.claimed)),
            Text(f"{stats.occupancy:,}/{stats.capacity:,}"),
            *map(cell, (stats.trained, len(survey.owners))),
        )
    return table


def run_view(survey: RunSurvey, *, width: int, blocks: str = _BLOCKS) -> RenderableType:
    """Return everything about one run, with a bar drawn in these characters."""
    stats, settings = survey.stats, survey.settings
    grid = facts()
    grid.add_row("Run", Text(printable(f"{survey.run} / {survey.partition}")))
    grid.add_row(
        "", _quiet(f"lineage {survey.lineage}, epoch {survey.store_epoch}, mutation {survey.seq:,}")
    )
    shape = [f"{settings.group_size} samples a group"]
    if settings.groups_per_step:
        shape.append(f"{settings.groups_per_step:,} groups a step")
    shape.append(f"at most {settings.max_attempts} attempts, {settings.max_requeues} requeues")
    if settings.max_payload_bytes:
        shape.append(f"{decimal(settings.max_payload_bytes)} of payload")
    shape.append(f"journal of {settings.journal_events:,} events")
    grid.add_row("Settings", ", ".join(shape))
    grid.add_row("Policy", _policy(survey))
    grid.add_row("Trainer", f"version {stats.trainer_version:,}")
    grid.add_row("Dispatch", _dispatch(survey))
    grid.add_row("Buffer", _occupancy(stats, width=min(_LONGEST_BAR, width - 12), blocks=blocks))
    grid.add_row("", _places(survey, blocks=blocks))
    grid.add_row("Totals", _totals(stats))
    return Group(grid, _sessions(survey))


def _policy(survey: RunSurvey) -> Text:
    if survey.policy is None:
        return _quiet("none yet: no sampler has been used")
    windows = [f"{name}={value}" for name, value in survey.windows.items() if value is not None]
    return Text(printable(" ".join([survey.policy, *windows])))


def _dispatch(survey: RunSurvey) -> Text:
    stats, room = survey.stats, admissible_batches(survey)
    index = "no batch yet" if stats.dispatch_index < 0 else f"batch {stats.dispatch_index:,}"
    if room is None:
        return Text(f"{index}; no gate")
    window = stats.gate_window or 0
    if room == 0:
        opens_at = stats.dispatch_index - window + 1
        return Text(f"{index}; gate window {window}: closed until trainer version {opens_at:,}")
    return Text(f"{index}; gate window {window}: open for {_count(room, 'more batch', 'es')}")


def _occupancy(stats: BufferStats, *, width: int, blocks: str) -> Text:
    shares = zip(_SHARES, blocks, strict=False)
    parts = [(getattr(stats, name), block, style) for (name, style), block in shares]
    bar = stacked_bar(parts, total=stats.capacity, width=max(10, width - 20), empty=blocks[-1])
    share = stats.occupancy / stats.capacity
    return bar.append(f" {stats.occupancy:,} of {stats.capacity:,} ({share:.0%})")


def _places(survey: RunSurvey, *, blocks: str) -> Text:
    stats = survey.stats
    line = Text()
    for (name, style), block in zip(_SHARES, blocks, strict=False):
        line.append(block, style=style).append(f" {getattr(stats, name):,} {name}")
        if name == "reserved" and survey.tickets:
            line.append(f" ({_count(survey.tickets, 'ticket')} to redispatch)")
        line.append(", ")
    line.append(f"{decimal(stats.payload_bytes)} of payload")
    if stats.quarantined:
        line.append(f", {stats.quarantined:,} quarantined", style=BAD_STYLE)
    return line


def _totals(stats: BufferStats) -> Text:
    ended = [f"{getattr(stats, name):,} {name}" for name in ENDS if getattr(stats, name)]
    live = stats.occupancy + stats.quarantined
    reasons = [
        f"{count:,} {end} as {reason}"
        for end, _, reason in (entry.partition(":") for entry in sorted(stats.ends))
        if reason != end and (count := stats.ends[f"{end}:{reason}"])
    ]
    line = Text(f"{stats.reserved_total:,} reserved = ")
    line.append(" + ".join([f"{live:,} live", *ended]))
    notes = [*reasons, *([f"{stats.requeued:,} requeues"] if stats.requeued else [])]
    return line.append(f"; {', '.join(notes)}" if notes else "")


def _sessions(survey: RunSurvey) -> RenderableType:
    if not survey.owners:
        return Group("", Text("No session is attached." + _ended(survey)))
    numbers = ("Epoch", "Lease", "Heartbeats")
    table = listing("Session", "Role", "Holds", *numbers, "Host", numbers=numbers)
    for owner in survey.owners:
        role = f"{owner.role} x{owner.world}" if owner.world > 1 else owner.role
        table.add_row(
            *map(cell, (owner.owner, role, _holdings(owner), owner.epoch)),
            *map(cell, (f"{owner.lease_seconds:g} s", owner.heartbeats, owner.host)),
        )
    return Group("", table, *([_ended(survey).strip()] if survey.ended_sessions else []))


def _holdings(owner: OwnerSurvey) -> str | None:
    amounts = (("reserved", owner.reserved), ("claimed", owner.claimed))
    return ", ".join(f"{amount:,} {state}" for state, amount in amounts if amount) or None


def _ended(survey: RunSurvey) -> str:
    if not survey.ended_sessions:
        return ""
    return f" {_count(survey.ended_sessions, 'ended session')} still being drained."


def _quiet(text: str) -> Text:
    return Text(printable(text), style=QUIET_STYLE)


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"
