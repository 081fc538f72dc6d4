"""How a command ends when it cannot do its work: one plain line on stderr and an exit status.

====  ==================================================================
 0    done
 1    the audit found a violation, or the demo did not hold its promises
 2    wrong usage, or the server, folder or run cannot be used
130   interrupted
====  ==================================================================
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import typer

from redis_replay.cli.screen import printable
from redis_replay.errors import ReplayError, StoreCorrupted, StoreRefused, StoreUnavailable

EXIT_VIOLATED: Final = 1
EXIT_UNUSABLE: Final = 2
EXIT_INTERRUPTED: Final = 130

_ADVICE: Final[dict[type[ReplayError], str]] = {
    StoreUnavailable: "Is it running, and is --url right? 'redis-replay up' starts a private one",
    StoreRefused: "Check user, password and permissions: redis://user:password@host:port/0",
    StoreCorrupted: "'redis-replay audit' lists what is wrong",
}


@contextmanager
def plain_failures() -> Generator[None]:
    """End the command with a line instead of a traceback when this package raises its error."""
    try:
        yield
    except ReplayError as failure:
        say(failure_line(failure))
        raise typer.Exit(EXIT_UNUSABLE) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def failure_line(failure: ReplayError) -> str:
    """Return what went wrong and what to do, in one line."""
    sentences = [" ".join(str(failure).split()), _ADVICE.get(type(failure), "")]
    return " ".join(f"{text.rstrip('.')}." for text in sentences if text)


def say(line: str) -> None:
    """Write one line to stderr."""
    typer.echo(f"redis-replay: {printable(line)}", err=True)
