"""What the person who runs the resume demo reads: a line for each run, the sums at the end."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from redis_replay.demo.resume.outcome import ResumeOutcome, RunOutcome
from redis_replay.demo.resume.settings import GROUP_SIZE, GROUPS_PER_STEP, HOSTS, STEPS


class RunNarrator:
    """A progress bar over the kill points, with a line above it for each run."""

    def __init__(self, console: Console, outcome: ResumeOutcome, *, kill_points: int) -> None:
        self._console, self._outcome = console, outcome
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._bar = self._progress.add_task("kill points", total=kill_points)

    def __enter__(self) -> RunNarrator:
        outcome = self._outcome
        self._progress.start()
        self._console.print(
            f"Each run: {STEPS} steps of {GROUPS_PER_STEP} groups of {GROUP_SIZE}, policy "
            f"{outcome.policy}, {outcome.ranks} trainer process(es), {HOSTS} rollout hosts, "
            f"lookahead {outcome.lookahead}, seed {outcome.seed}."
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def undisturbed(self, run: RunOutcome) -> None:
        """Tell of a run that was not killed."""
        self._console.print(
            f"Undisturbed run: {run.trace.final[:16]}, {self._result(run)}, {run.seconds:.1f} s."
        )

    def killed(self, run: RunOutcome) -> None:
        """Tell of a run that was killed."""
        assert run.point is not None
        struck = run.struck[0] if run.struck else None
        where = f"at step {struck.step}, {struck.in_flight} groups in flight" if struck else "never"
        verdict = run.verdict
        self._console.print(
            f"{len(self._outcome.killed):2}. {run.point.victim.value}, {run.point.describe()}, "
            f"{where}; resumed: {', '.join(verdict.resumptions) or 'no trainer'}; "
            f"steps replayed {verdict.replayed_steps}, groups redispatched {verdict.redispatched}; "
            f"{self._result(run)}, {run.seconds:.1f} s."
        )
        self._progress.advance(self._bar)

    def _result(self, run: RunOutcome) -> str:
        wrong = [*self._outcome.differences(run), *run.faults]
        return f"NOT AS IT SHOULD BE: {'; '.join(wrong)}" if wrong else "identical"


def print_report(console: Console, outcome: ResumeOutcome) -> None:
    """Print the sums."""
    document = outcome.to_document()
    table = Table(title="What the runs came to", show_header=False, title_justify="left")
    table.add_column()
    table.add_column(justify="right")
    agree = "bit for bit" if document["undisturbed_agree"] else "NO"
    rows = {
        "undisturbed runs agree": agree,
        "kill points": document["kill_points"],
        "  while groups were claimed or in flight": document["in_flight"],
        "  of them by the killed process itself": document["while_holding"],
        "identical to the undisturbed run": document["identical"],
        "different": document["different"],
        "prompts skipped": document["skipped_prompts"],
        "prompts repeated": document["repeated_prompts"],
        "committed groups generated again": document["regenerated_committed"],
        "steps trained again below the model": document["retrained_steps"],
        "stores restored to a checkpoint": document["restores"],
        "steps replayed after a lost model": document["replayed_steps"],
        "  their groups that came back with their rows": document["replayed_groups"],
        "groups redispatched": document["redispatched"],
        "seconds": f"{outcome.seconds:.1f}",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    console.print(table)
    if outcome.faults:
        console.print("FAILED:", *(f"\n  {fault}" for fault in outcome.faults))
