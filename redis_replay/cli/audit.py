"""``redis-replay audit``: every invariant of a run's keyspace, checked now."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import anyio
import typer
from rich.console import Console
from rich.text import Text

from redis_replay._redis.connect import Target
from redis_replay._redis.keys import Keyspace
from redis_replay.audit import AuditReport, Violation, audit_run
from redis_replay.cli.failures import EXIT_VIOLATED, plain_failures
from redis_replay.cli.options import JsonOption, PartitionOption, RunOption, UrlOption
from redis_replay.cli.places import only_run, reach
from redis_replay.cli.screen import (
    BAD_STYLE,
    GOOD_STYLE,
    QUIET_STYLE,
    cell,
    listing,
    open_console,
    printable,
    write_json,
)
from redis_replay.cli.survey import open_gateway, readable_records, survey_server
from redis_replay.errors import StoreCorrupted
from redis_replay.run import RunSettings, open_run

UNREADABLE: Final = 0
"""Number of the invariant that a run breaks whose records cannot even be read."""

INVARIANTS: Final = {
    1: "each live group is listed in exactly the sets of its state",
    2: "reserved = live + trained + filtered + evicted + aborted + removed",
    3: "no more groups hold places than the capacity allows",
    4: "orders are unique; orders and fences are below the run's counters",
    5: "claimed groups and the manifests of their batches agree",
    6: "groups that are held are held by a session that exists",
    7: "every committed group has its record and all its payload bytes",
    8: "the ledger of ends adds up to the totals",
    9: "the dispatch cursor covers every live target step",
    10: "prompts and records belong to live groups, or wait to be freed",
    11: "the accounts of steps and the reward tally are well formed",
    12: "control record, owners, manifests, ledger and totals are readable",
    13: "what is dead, pinned or condemned is not live; what is pinned is in a checkpoint",
}
"""The table of `redis_replay.audit`, in words for its reader."""

_MESSAGES_SHOWN: Final = 20


def audit(
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check every invariant of a run; exit status 1 when one is violated. A pure read."""
    with plain_failures(), reach(url) as target:
        keyspace, report = anyio.run(_check, target, run, partition)
    if as_json:
        write_json(report_document(keyspace, report))
    else:
        _show(open_console(), keyspace, report)
    if not report.is_clean:
        raise typer.Exit(EXIT_VIOLATED)


async def _check(
    target: Target, run: str | None, partition: str | None
) -> tuple[Keyspace, AuditReport]:
    await survey_server(target)
    keyspace = await only_run(target, run=run, partition=partition)
    async with open_gateway(target, keyspace) as gateway:
        try:
            with readable_records(keyspace):
                await open_run(gateway, RunSettings(), create=False)
                return keyspace, await audit_run(gateway)
        except StoreCorrupted as unreadable:
            return keyspace, AuditReport(0, (Violation(UNREADABLE, str(unreadable)),))


def report_document(keyspace: Keyspace, report: AuditReport) -> dict[str, Any]:
    """Return the audit as a JSON object."""
    return {
        "run": keyspace.run,
        "partition": keyspace.partition,
        "clean": report.is_clean,
        "groups_checked": report.groups_checked,
        "live": dict(report.live),
        "ends": dict(report.ends),
        "violations": [
            {
                "invariant": violation.invariant,
                "rule": _rule(violation.invariant),
                "message": violation.message,
            }
            for violation in report.violations
        ],
    }


def _rule(invariant: int) -> str:
    return INVARIANTS.get(invariant, "the run's records can be read")


def _show(console: Console, keyspace: Keyspace, report: AuditReport) -> None:
    console.print(Text(printable(f"{keyspace.run} / {keyspace.partition}"), style="bold"))
    broken: dict[int, list[str]] = defaultdict(list)
    for violation in report.violations:
        broken[violation.invariant].append(violation.message)
    if UNREADABLE in broken:
        verdict = "; ".join(broken[UNREADABLE])
        console.print(Text(printable(f"The audit could not be made: {verdict}"), style=BAD_STYLE))
        return
    table = listing("", "Invariant", "", numbers=("",))
    for number, rule in INVARIANTS.items():
        table.add_row(cell(number), cell(rule), _outcome(len(broken[number])))
    console.print(table)
    live = sum(report.live.values())
    console.print(_sum_of("live", live, report.live))
    console.print(_sum_of("ended", sum(report.ends.values()), report.ends))
    for number, messages in sorted(broken.items()):
        for message in messages[:_MESSAGES_SHOWN]:
            console.print(Text(printable(f"  {number}: {message}"), style=BAD_STYLE))
        more = len(messages) - _MESSAGES_SHOWN
        if more > 0:
            console.print(f"  {number}: and {more:,} more; --json has all", style=QUIET_STYLE)
    if report.is_clean:
        console.print("Every invariant holds.", style=GOOD_STYLE)
    else:
        console.print(f"{len(report.violations):,} violations.", style=BAD_STYLE)


def _outcome(violations: int) -> Text:
    if violations:
        return Text(f"violated ({violations:,})", style=BAD_STYLE)
    return Text("ok", style=GOOD_STYLE)


def _sum_of(name: str, total: int, parts: Any) -> str:
    listed = ", ".join(f"{count:,} {part}" for part, count in parts.items() if count)
    return f"{total:,} groups {name}{f': {listed}' if listed else ''}"
