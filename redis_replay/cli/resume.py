"""``redis-replay resume``: bring a run and a model that were stopped together again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import anyio
import typer
from rich.text import Text

from redis_replay._redis.connect import Target
from redis_replay._redis.keys import Key
from redis_replay.checkpoint_info import RestoreMode
from redis_replay.cli.failures import plain_failures
from redis_replay.cli.opening import opened_run
from redis_replay.cli.options import (
    CustomSamplerOption,
    IncompleteName,
    JsonOption,
    PartitionOption,
    RestoreModeName,
    RunOption,
    SamplerName,
    UrlOption,
)
from redis_replay.cli.places import reach, require_custom_sampler
from redis_replay.cli.screen import (
    BAD_STYLE,
    QUIET_STYLE,
    cell,
    listing,
    open_console,
    printable,
    write_json,
)
from redis_replay.preview import PolicyPreview
from redis_replay.recovery import ResumeReport
from redis_replay.samplers.config import parse_sampler_config
from redis_replay.store import ReplayStore

Previews = Mapping[str, PolicyPreview]


def resume(
    url: UrlOption = None,
    run: RunOption = None,
    partition: PartitionOption = None,
    model_step: Annotated[
        int | None,
        typer.Option(
            "--model-step",
            min=0,
            metavar="STEP",
            show_default="the run's trainer version",
            help="Step of the model checkpoint: it was trained on all steps below.",
        ),
    ] = None,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", metavar="", help="End every session of the run at once."),
    ] = False,
    mode: Annotated[
        RestoreModeName, typer.Option("--mode", help="What a restore brings back.")
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
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            metavar="",
            help="Change nothing; say what would be done, and what each sampler would take.",
        ),
    ] = False,
    custom_sampler: CustomSamplerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring a run to the step of a model checkpoint, and say what was found."""

    async def work(target: Target) -> tuple[ResumeReport, Previews]:
        async with opened_run(target, run, partition) as store:
            require_custom_sampler(store, custom_sampler)
            report = await store.resume(
                model_step=model_step,
                take_over=take_over,
                mode=mode.value,
                incomplete=incomplete.value,
                regenerate_damaged=regenerate_damaged,
                dry_run=dry_run,
            )
            return report, await _previews(store, report, mode.value) if dry_run else {}

    with plain_failures(), reach(url) as target:
        report, previews = anyio.run(work, target)
    if as_json:
        write_json(_document(report, previews, dry_run=dry_run))
    else:
        _show(report, previews, dry_run=dry_run)


async def _previews(
    store: ReplayStore, report: ResumeReport, mode: RestoreMode
) -> dict[str, PolicyPreview]:
    """Return what each built-in sampler would do after the resume.

    The bound one has the run's own windows.
    """
    gateway = store.buffer.session.link.gateway
    meta = gateway.keyspace.control(Key.META)
    [[policy, windows]] = await gateway.pipeline([("HMGET", meta, "policy", "windows")])
    found: dict[str, PolicyPreview] = {}
    for name in SamplerName:
        is_bound = policy is not None and policy.decode() == name.value
        cfg = {"name": name.value, **(json.loads(windows) if is_bound and windows else {})}
        found[name.value] = await store.preview(
            parse_sampler_config(cfg), step=report.step, checkpoint=report.checkpoint, mode=mode
        )
    return found


def _document(report: ResumeReport, previews: Previews, *, dry_run: bool) -> dict[str, Any]:
    document = asdict(report)
    loader = report.loader_state
    document["loader_state"] = None if loader is None else loader.hex()
    document["dry_run"] = dry_run
    document["previews"] = {name: asdict(preview) for name, preview in previews.items()}
    return document


_DOES = {
    "continue": "go on",
    "settle": "settle the step that the model was trained on",
    "catch_up": "raise version and cursor to the model's step",
    "restore": "restore checkpoint {0!r}",
}


def _show(report: ResumeReport, previews: Previews, *, dry_run: bool) -> None:
    console = open_console()
    what = _DOES[report.action].format(report.checkpoint)
    head = "Would" if dry_run else "Did"
    console.print(Text(printable(f"{head}: {what}. Continue with step {report.step:,}.")))
    table = listing("Found", "Groups", numbers=("Groups",))
    for state, count in report.found.items():
        table.add_row(cell(state), cell(count))
    for label in ("requeued", "redispatched", "evicted"):
        table.add_row(cell(label), cell(getattr(report, label)))
    for owner, count in report.held.items():
        table.add_row(cell(f"held by {owner}"), cell(count))
    console.print(table)
    if previews:
        console.print(_preview_table(previews))
    for warning in report.warnings:
        console.print(Text(printable(f"Note: {warning}."), style=QUIET_STYLE))
    if report.blocked:
        console.print(Text(printable(f"No progress: {report.blocked}."), style=BAD_STYLE))


def _preview_table(previews: Previews) -> Any:
    table = listing("Sampler", "Would take", "Would evict", numbers=("Would take", "Would evict"))
    for name, preview in previews.items():
        table.add_row(cell(name), cell(len(preview.selected)), cell(len(preview.evicted)))
    return table
