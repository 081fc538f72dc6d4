"""``scripts/resume-demo``: kill a training run anywhere; it must end bit for bit as if it had not.

Two undisturbed runs first, which must agree. Then one run for each kill point.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console

from redis_replay import embedded
from redis_replay.demo.command import ending_in_order
from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.resume.model import digest, model_path
from redis_replay.demo.resume.outcome import ResumeOutcome, RunOutcome, Trace
from redis_replay.demo.resume.points import KillPoint, ResumePlan, draw_kill_points
from redis_replay.demo.resume.policies import create_learner
from redis_replay.demo.resume.report import RunNarrator, print_report
from redis_replay.demo.resume.settings import MAX_LOOKAHEAD, STEPS, ResumeOrders
from redis_replay.demo.resume.verdict import judge
from redis_replay.demo.settings import SUPERVISOR, log_folder
from redis_replay.demo.supervisor import Supervisor
from redis_replay.demo.tasks import MAX_SEED
from redis_replay.demo.witness import read_logs
from redis_replay.embedded import EmbeddedLease
from redis_replay.errors import ConfigurationError

UNDISTURBED_RUNS: Final = 2
_IDLE_SECONDS: Final = 10.0
"""How long the private server outlives a supervisor that was killed."""


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """What the demo is asked to do.

    Attributes:
        kill_points: How many runs are killed.
        lookahead: How many versions old the weights are that a batch is generated with.
        ranks: Trainer processes.
        policy: ``torch`` or ``numpy``.
        seed: Seed of prompts, network, sampling and kill points.
        json: Whether the outcome is printed as one JSON object on the last line.
        directory: Folder of logs, models and the server, kept afterwards; ``None`` for a temporary
            one.
    """

    kill_points: int
    lookahead: int
    ranks: int
    policy: str
    seed: int
    json: bool
    directory: Path | None = None


def run_resume_demo(options: ResumeOptions) -> int:
    """Run the demo and return the exit status: 0, or 1 when a run did not end as it should.

    With ``options.json`` the last line of standard output is the outcome as one JSON object, and
    everything else goes to standard error.

    Raises:
        ConfigurationError: an option that cannot work, or an extra that is not installed.
        StoreError: the server cannot be started or used.
    """
    console = Console(stderr=options.json, soft_wrap=True, highlight=False)
    _check(options)
    try:
        with ending_in_order(), _folder(options) as folder:
            outcome = _run_all(options, folder, console)
    except DemoFailed as failure:
        Console(stderr=True).print(f"FAILED: {failure}", markup=False, soft_wrap=True)
        return 1
    print_report(console, outcome)
    if options.json:
        sys.stdout.write(json.dumps(outcome.to_document()) + "\n")
    return 1 if outcome.faults else 0


def _check(options: ResumeOptions) -> None:
    if importlib.util.find_spec("reasoning_gym") is None:
        raise ConfigurationError("the demo needs reasoning_gym: pip install 'redis-replay[demo]'")
    if options.kill_points < 1:
        raise ConfigurationError(f"--kill-points must be at least 1, not {options.kill_points}")
    if not 0 <= options.lookahead <= MAX_LOOKAHEAD:
        raise ConfigurationError(f"--lookahead must be in 0..{MAX_LOOKAHEAD}")
    if options.ranks not in (1, 2, 4):
        raise ConfigurationError("--ranks must be 1, 2 or 4, which divide a batch of 4 groups")
    if not 0 <= options.seed < MAX_SEED:
        raise ConfigurationError(f"--seed must be in 0..{MAX_SEED - 1}")
    create_learner(options.policy, seed=0)


def _run_all(options: ResumeOptions, folder: Path, console: Console) -> ResumeOutcome:
    begun = time.monotonic()
    outcome = ResumeOutcome(
        policy=options.policy, lookahead=options.lookahead, ranks=options.ranks, seed=options.seed
    )
    points = draw_kill_points(
        seed=options.seed,
        count=options.kill_points,
        lookahead=options.lookahead,
        ranks=options.ranks,
    )
    with RunNarrator(console, outcome, kill_points=len(points)) as narrator:
        for number in range(1, UNDISTURBED_RUNS + 1):
            run = _run(options, folder / f"undisturbed-{number}", None)
            outcome.undisturbed.append(run)
            narrator.undisturbed(run)
        for number, point in enumerate(points, 1):
            run = _run(options, folder / f"kill-point-{number}", point)
            outcome.killed.append(run)
            narrator.killed(run)
    outcome.seconds = time.monotonic() - begun
    return outcome


def _run(options: ResumeOptions, folder: Path, point: KillPoint | None) -> RunOutcome:
    """Make one run, on a server of its own."""
    begun = time.monotonic()
    with _server(folder) as lease:
        orders = _orders(options, folder, lease.url)
        for needed in (log_folder(folder), orders.models, orders.weights, orders.exchange):
            needed.mkdir(parents=True)
        plan = ResumePlan(point, orders.owners)
        supervisor = Supervisor(orders, orders.owners, plan, _Silence(), server=lease)
        inventory = anyio.run(supervisor.run)
    lines = read_logs(log_folder(folder))
    return RunOutcome(
        point=point,
        struck=plan.struck,
        kills=supervisor.kills,
        trace=Trace.of(digest(model_path(orders.models, STEPS)), lines),
        verdict=judge(lines),
        inventory=inventory,
        seconds=time.monotonic() - begun,
    )


def _orders(options: ResumeOptions, folder: Path, url: str) -> ResumeOrders:
    return ResumeOrders(
        url=url,
        run=folder.name,
        owner=SUPERVISOR,
        life=0,
        folder=str(folder),
        seed=options.seed,
        steps=STEPS,
        sampler="in_order",
        lookahead=options.lookahead,
        ranks=options.ranks,
        policy=options.policy,
    )


class _Silence:
    """A voice that tells nothing: there is a line for each run."""

    def say(self, sentence: str) -> None:
        """Nothing."""

    def step(self, step: int, *, reward: float) -> None:
        """Nothing."""


@contextmanager
def _folder(options: ResumeOptions) -> Generator[Path]:
    if options.directory is not None:
        yield options.directory.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="redis-replay-resume-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(folder: Path) -> Generator[EmbeddedLease]:
    # With every write on disk before its answer, a killed server has all it acknowledged.
    with embedded.open_embedded(
        folder / "server", appendfsync="always", idle_seconds=_IDLE_SECONDS
    ) as lease:
        yield lease
