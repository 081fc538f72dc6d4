"""``redis-replay demo``: hands its options to `redis_replay.demo`, which is imported only here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redis_replay.cli.failures import plain_failures
from redis_replay.cli.options import JsonOption, SamplerName

_LEAST_WORKERS = 2


def demo(
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", show_default="40", help="Trainer steps."),
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", min=_LEAST_WORKERS, metavar="N", help="Rollout processes.")
    ] = _LEAST_WORKERS,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            show_default="an embedded server",
            help="Run against a server you have.",
        ),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="NAME", show_default="a new one", help="Name of the run."),
    ] = None,
    sampler: Annotated[
        SamplerName,
        typer.Option(
            "--sampler",
            metavar="NAME",
            help=f"Policy that picks the trained groups: {', '.join(SamplerName)}.",
        ),
    ] = SamplerName.IN_ORDER,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="N", help="Of prompts, network and kills.")
    ] = 1,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            show_default="a temporary one",
            help="Folder for logs, models and the server's data; it is kept.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Where the picture goes (PNG)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Train a small policy, kill its trainer, a worker and the server, and carry on.

    Ends with a table and an audit; exit status 1 when a group was lost or trained twice.
    """
    with plain_failures():
        from redis_replay.demo.command import run_demo
        from redis_replay.demo.options import DemoOptions

        options = DemoOptions(
            steps=steps,
            workers=workers,
            url=url,
            run=run,
            sampler=sampler.value,
            seed=seed,
            json=as_json,
            plot=plot,
            directory=directory,
        )
        raise typer.Exit(run_demo(options))
