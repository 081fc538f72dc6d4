"""What a demo run is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Settings of one demo run.

    Attributes:
        steps: Trainer steps, or ``None`` for the demo's own choice.
        workers: Rollout processes.
        url: A server to run on, or ``None`` for an embedded one.
        run: Name of the training run, or ``None`` for a new one.
        sampler: Name of a built-in sampler.
        seed: Seed of prompts, network and kill points.
        json: Whether the outcome is printed as one JSON object on the last line.
        plot: Where the picture is written, or ``None`` for a file in the folder.
        directory: Folder of logs, models and the embedded server, kept afterwards; ``None`` for a
            temporary one.
    """

    steps: int | None
    workers: int
    url: str | None
    sampler: str
    seed: int
    json: bool
    plot: Path | None
    directory: Path | None
    run: str | None = None
