"""``redis-replay resume-demo``: hands its options to `redis_replay.demo.resume`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from redis_replay.cli.failures import plain_failures
from redis_replay.cli.options import JsonOption


class PolicyOption(StrEnum):
    """What can be trained."""

    TORCH = "torch"
    NUMPY = "numpy"


def resume_demo(
    kill_points: Annotated[
        int, typer.Option("--kill-points", min=1, metavar="N", help="Runs that are killed.")
    ] = 20,
    lookahead: Annotated[
        int,
        typer.Option(
            "--lookahead", min=0, metavar="K", help="Versions between weights and the step."
        ),
    ] = 1,
    ranks: Annotated[
        int, typer.Option("--ranks", min=1, metavar="R", help="Trainer processes: 1, 2 or 4.")
    ] = 1,
    policy: Annotated[
        PolicyOption,
        typer.Option("--policy", metavar="NAME", help="What is trained: torch, numpy."),
    ] = PolicyOption.TORCH,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="S", help="Of prompts, network and kills.")
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
    as_json: JsonOption = False,
) -> None:
    """Kill a training run anywhere; it must end bit for bit as if it had not been killed.

    Two undisturbed runs first, then one for each kill point. Exit status 1 when one differs.
    """
    with plain_failures():
        from redis_replay.demo.resume.command import ResumeOptions, run_resume_demo

        options = ResumeOptions(
            kill_points=kill_points,
            lookahead=lookahead,
            ranks=ranks,
            policy=policy.value,
            seed=seed,
            json=as_json,
            directory=directory,
        )
        raise typer.Exit(run_resume_demo(options))
