"""What the person who runs the demo reads: progress, sentences, the table at the end."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from redis_replay.demo.outcome import Outcome, Staleness
from redis_replay.demo.verdict import End


class Narrator:
    """A progress bar over the steps, with sentences above it."""

    def __init__(self, console: Console, *, steps: int) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[reward]}"),
            console=console,
        )
        self._bar = self._progress.add_task("steps", total=steps, reward="")

    def __enter__(self) -> Narrator:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self._console.print(sentence)

    def step(self, step: int, *, reward: float) -> None:
        """Show that a step was committed, with the mean reward of its batch."""
        self._progress.update(self._bar, completed=step, reward=f"batch reward {reward:.2f}")


def print_report(console: Console, outcome: Outcome) -> None:
    """Print the table and the audit."""
    verdict, staleness = outcome.verdict, Staleness.of(outcome.verdict)
    table = Table(title="What the run came to", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    kills = ", ".join(f"{kill.what} at step {kill.at_step}" for kill in outcome.kills)
    rows = {
        "steps": str(len(verdict.steps)),
        "held-out reward, before": f"{outcome.reward_first:.3f}",
        "held-out reward, after": f"{outcome.reward_last:.3f}",
        "groups dispatched": str(verdict.dispatched),
        **{f"  {end.value}": str(verdict.ends[end]) for end in End},
        "  still live": str(verdict.live),
        "redispatched after a kill": str(verdict.redispatched),
        "staleness, min / mean / max": (
            f"{staleness.least} / {staleness.mean:.2f} / {staleness.most}"
        ),
        "groups trained per second": f"{outcome.groups_per_second:.0f}",
        "killed": kills or "nothing",
        "seconds": f"{outcome.seconds:.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    for sentence in _audit_lines(outcome):
        console.print(sentence)


def _audit_lines(outcome: Outcome) -> list[str]:
    verdict, stats = outcome.verdict, outcome.inventory.stats
    trained, evicted, aborted = (verdict.ends[end] for end in End)
    total = trained + evicted + aborted + verdict.live
    balance = "=" if total == verdict.dispatched else "!="
    lines = [
        "Audit, from the logs of the processes:",
        f"  dispatched {verdict.dispatched} {balance} trained {trained} + evicted {evicted} + "
        f"aborted {aborted} + live {verdict.live}",
        f"  lost {verdict.lost}, trained twice {verdict.trained_twice}, generated again after a "
        f"commit {verdict.regenerated_committed}, steps trained again {verdict.retrained_steps}",
        f"  calls cut off by a kill and explained afterwards: {verdict.explained}",
        f"The store itself says: dispatched {stats.reserved_total}, trained {stats.trained}, "
        f"evicted {stats.evicted}, aborted {stats.aborted}; its audit is "
        f"{'clean' if outcome.inventory.audit.is_clean else 'not clean'}.",
    ]
    if outcome.faults:
        return [*lines, "FAILED:", *(f"  {fault}" for fault in outcome.faults)]
    return [*lines, "Nothing was lost and nothing was trained twice."]
