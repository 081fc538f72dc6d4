"""The options that several commands share, with their help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        show_default="$REDIS_REPLAY_URL, else the folder of 'up'",
        help="Server: redis://, rediss://, unix:// or embedded:///folder.",
    ),
]
RunOption = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="NAME",
        show_default="the only one there",
        help="Training run.",
    ),
]
PartitionOption = Annotated[
    str | None,
    typer.Option(
        "--partition",
        metavar="NAME",
        show_default="the only one there",
        help="Partition of the run.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", metavar="", help="Write one JSON object to stdout, and nothing else."),
]
DirectoryArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIRECTORY]",
        show_default="the folder of --url, else ~/.local/share/redis-replay",
        help="Folder that the embedded server keeps its data in.",
    ),
]
CustomSamplerOption = Annotated[
    str | None,
    typer.Option(
        "--custom-sampler",
        metavar="MODULE:CLASS",
        help="The run's own sampler class; it must declare that groups may be restored under it.",
    ),
]


class SamplerName(StrEnum):
    """The built-in samplers."""

    IN_ORDER = "in_order"
    WINDOWED = "windowed"
    READY_FIRST = "ready_first"
    WEIGHT_FIFO = "weight_fifo"


class RestoreModeName(StrEnum):
    """What a restore brings back: groups with rows, their prompts, or only the position."""

    ALL = "all"
    PROMPTS_ONLY = "prompts_only"
    NONE = "none"


class IncompleteName(StrEnum):
    """What becomes of a restored batch with fewer groups than a full one."""

    KEEP = "keep"
    FILL = "fill"
    DROP = "drop"
