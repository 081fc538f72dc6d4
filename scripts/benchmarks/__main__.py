"""The command line: measure, print, write JSON, plots and the page."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import anyio
from rich.console import Console

from benchmarks.bench import FULL_ROUNDS, QUICK_ROUNDS, Bench
from benchmarks.limit import build_limit
from benchmarks.machine import machine_facts, version_facts
from benchmarks.page import page_of, read_notes
from benchmarks.plots import draw_plots
from benchmarks.registry import measure_all
from benchmarks.results import Found, document_of, outcomes_of
from benchmarks.screen import show
from benchmarks.takeover import show_takeovers
from benchmarks.targets import TARGET_IDS

_DOCS = Path(__file__).parents[2] / "docs"


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments; what cannot be is an error that says what can."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything, in two minutes")
    parser.add_argument(
        "--peers", action="store_true", help="P13 and P14 too; the first time it installs them"
    )
    parser.add_argument("--rounds", type=int, help=f"{FULL_ROUNDS} by default")
    parser.add_argument("--only", type=target_ids, default=TARGET_IDS, help="such as P5,P6")
    parser.add_argument(
        "--takeover", action="store_true", help="only how long replacing a trainer takes"
    )
    parser.add_argument("--plots", type=Path, help="draw the pictures into this folder")
    parser.add_argument(
        "--write-docs", action="store_true", help="write docs/performance.md and docs/plots"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args(words)
    if arguments.rounds is None:
        arguments.rounds = QUICK_ROUNDS if arguments.quick else FULL_ROUNDS
    if arguments.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {arguments.rounds}")
    return arguments


def target_ids(text: str) -> tuple[str, ...]:
    """Return the targets that a list names.

    Raises:
        ArgumentTypeError: one is none.
    """
    named = tuple(word.strip().upper() for word in text.split(","))
    if strange := [word for word in named if word not in TARGET_IDS]:
        known = f"{TARGET_IDS[0]} to {TARGET_IDS[-1]}"
        raise argparse.ArgumentTypeError(f"there are no targets {strange}; there are {known}")
    return named


def measure(arguments: argparse.Namespace, console: Console) -> Found:
    """Make the measurements in temporary folders."""
    started = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - started:6.0f} s  {text} ...")

    with tempfile.TemporaryDirectory(prefix="rr-bench-") as name:
        folder = Path(name)
        bench = Bench(
            rounds=arguments.rounds,
            quick=arguments.quick,
            peers=arguments.peers,
            wanted=frozenset(arguments.only),
            folder=folder / "files",
            limit=build_limit(folder),
            say=say,
        )
        bench.folder.mkdir()
        gc.collect()
        gc.freeze()  # what the imports made is no business of a collection in mid-round
        return anyio.run(measure_all, bench)


def main(words: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    arguments = parsed(sys.argv[1:] if words is None else words)
    logging.getLogger("redis_replay").setLevel(logging.ERROR)
    if arguments.takeover:
        show_takeovers(arguments.rounds, arguments.json)
        return
    facts = {
        "machine": machine_facts(),
        "versions": version_facts(),
        "rounds": arguments.rounds,
        "quick": arguments.quick,
    }
    started = time.monotonic()
    found = measure(arguments, Console(stderr=True))
    facts["seconds"] = round(time.monotonic() - started)
    document, outcomes = document_of(found, facts), outcomes_of(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if arguments.plots:
        draw_plots(arguments.plots, found.details)
    if arguments.write_docs:
        pictures = draw_plots(_DOCS / "plots", found.details)
        page = page_of(outcomes, document, read_notes(), pictures)
        (_DOCS / "performance.md").write_text(page, encoding="utf-8")
    measured = [outcome for outcome in outcomes if outcome.figures]
    show(Console(width=150 if not sys.stdout.isatty() else None), measured, document)


if __name__ == "__main__":
    main()
