"""The command line ``redis-replay``.

Every command writes its result to stdout and everything else to stderr. Exit statuses are those of
`redis_replay.cli.failures`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer

from redis_replay import __version__
from redis_replay.cli.audit import audit
from redis_replay.cli.checkpoint import checkpoint
from redis_replay.cli.checkpoint_transfer import export_checkpoint, import_checkpoint
from redis_replay.cli.demo import demo
from redis_replay.cli.failures import EXIT_INTERRUPTED
from redis_replay.cli.groups import groups, reinstate
from redis_replay.cli.resume import resume
from redis_replay.cli.resume_demo import resume_demo
from redis_replay.cli.server import down, up
from redis_replay.cli.status import status

PROGRAM: Final = "redis-replay"

app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (demo, resume_demo, up, down, status, groups, reinstate, audit, resume):
    app.command()(command)
checkpoint.command(name="export")(export_checkpoint)
checkpoint.command(name="import")(import_checkpoint)
app.add_typer(checkpoint)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, metavar="", help="Show the version."
        ),
    ] = False,
) -> None:
    """A replay store for asynchronous RL post-training that outlives its processes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: Without the program's name; by default those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(args=arguments, prog_name=PROGRAM)
    except SystemExit as ended:
        return _status(ended.code)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return 0


def _status(code: Any) -> int:
    return code if isinstance(code, int) else int(code is not None)
