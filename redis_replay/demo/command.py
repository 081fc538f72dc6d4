"""``redis-replay demo``: train a small policy through the store, kill its processes, take stock.

One process, the supervisor, starts a private server, two or more rollout processes and a trainer.
In the middle it kills the trainer while it holds claims, then a rollout process, then the server.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from rich.console import Console

from redis_replay import embedded
from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.kills import KillPlan, draw_kill_points
from redis_replay.demo.options import DemoOptions
from redis_replay.demo.outcome import Outcome
from redis_replay.demo.plot import draw
from redis_replay.demo.policy import Policy
from redis_replay.demo.report import Narrator, print_report
from redis_replay.demo.rows import evaluate
from redis_replay.demo.settings import (
    DEFAULT_STEPS,
    GROUPS_PER_STEP,
    LEAST_STEPS,
    LEAST_WORKERS,
    SUPERVISOR,
    TRAINER,
    WorkerOrders,
    log_folder,
    model_folder,
    rollout_owner,
    sampler_config,
)
from redis_replay.demo.supervisor import Inventory, Supervisor
from redis_replay.demo.tasks import MAX_SEED, held_out_prompts
from redis_replay.demo.verdict import judge
from redis_replay.demo.witness import read_logs
from redis_replay.embedded import EmbeddedLease
from redis_replay.errors import ConfigurationError

_NEEDED: Final = ("reasoning_gym", "matplotlib")
_IDLE_SECONDS: Final = 10.0
"""How long the private server outlives a supervisor that was killed."""


@dataclass(frozen=True)
class _Place:
    """Where a run happens: its folder, its server and where to look at it afterwards."""

    folder: Path
    picture: Path
    url: str
    lease: EmbeddedLease | None
    is_kept: bool


def run_demo(options: DemoOptions) -> int:
    """Run the demo and return the exit status: 0, or 1 when the run did not hold its promises.

    With ``options.json`` the last line of standard output is the outcome as one JSON object, and
    everything else goes to standard error.

    Raises:
        ConfigurationError: an option that cannot work, or the extra ``demo`` is not installed.
        StoreError: the server cannot be started or used.
    """
    console = Console(stderr=options.json, soft_wrap=True, highlight=False)
    begun = time.monotonic()
    _check(options)
    run = options.run or f"demo-{secrets.token_hex(4)}"
    try:
        with ending_in_order(), _place(options, run, console) as place:
            outcome = _run(options, run, place, console, begun)
            draw(place.picture, outcome)
            print_report(console, outcome)
            console.print(f"Reward and staleness: {place.picture}")
            _say_what_stays(console, run, place)
    except DemoFailed as failure:
        Console(stderr=True).print(f"FAILED: {failure}", markup=False, soft_wrap=True)
        return 1
    if options.json:
        sys.stdout.write(json.dumps(outcome.to_document()) + "\n")
    return 1 if outcome.faults else 0


def _check(options: DemoOptions) -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the demo needs {' and '.join(missing)}: pip install 'redis-replay[demo]'"
        )
    sampler_config(options.sampler)
    if options.steps is not None and options.steps < LEAST_STEPS:
        raise ConfigurationError(
            f"--steps must be at least {LEAST_STEPS}, so that there is a middle to kill in"
        )
    if options.workers < LEAST_WORKERS:
        raise ConfigurationError(f"--workers must be at least {LEAST_WORKERS}")
    if not 0 <= options.seed < MAX_SEED:
        raise ConfigurationError(f"--seed must be in 0..{MAX_SEED - 1}")


def _run(options: DemoOptions, run: str, place: _Place, console: Console, begun: float) -> Outcome:
    steps = DEFAULT_STEPS if options.steps is None else options.steps
    orders = WorkerOrders(
        url=place.url,
        run=run,
        owner=SUPERVISOR,
        life=0,
        folder=str(place.folder),
        seed=options.seed,
        steps=steps,
        sampler=options.sampler,
    )
    log_folder(place.folder).mkdir(parents=True)
    model_folder(place.folder).mkdir()
    points = draw_kill_points(seed=options.seed, steps=steps, server=place.lease is not None)
    reward_first = _held_out_reward(Policy.create(seed=options.seed))
    with Narrator(console, steps=steps) as narrator:
        narrator.say(
            f"Training for {steps} steps of {GROUPS_PER_STEP} groups with {options.workers} "
            f"rollout processes and a trainer, sampler {options.sampler}, seed {options.seed}."
        )
        if place.lease is None:
            narrator.say("The server is yours, so it is not killed; the processes are.")
        owners = [TRAINER, *(rollout_owner(number + 1) for number in range(options.workers))]
        supervisor = Supervisor(orders, owners, KillPlan(points), narrator, server=place.lease)
        inventory: Inventory = anyio.run(supervisor.run)
        narrator.say("All processes have left. Reading their logs.")
    verdict = judge(read_logs(log_folder(place.folder)))
    return Outcome(
        sampler=options.sampler,
        seed=options.seed,
        reward_first=reward_first,
        reward_last=_held_out_reward(Policy.load(orders.model_path(steps))),
        verdict=verdict,
        kills=tuple(supervisor.kills),
        seconds=time.monotonic() - begun,
        inventory=inventory,
    )


def _held_out_reward(policy: Policy) -> float:
    return evaluate(policy, prompts=held_out_prompts())


@contextmanager
def ending_in_order() -> Generator[None]:
    """Turn SIGTERM into an interrupt, so that processes and folders are cleared away."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _place(options: DemoOptions, run: str, console: Console) -> Generator[_Place]:
    """Set up the folder and the server; leave no process, and no folder nobody asked for."""
    kept = options.directory
    folder = (
        Path(tempfile.mkdtemp(prefix="redis-replay-demo-")) if kept is None else kept.absolute()
    )
    default = folder / run / "demo.png"
    if kept is None:
        default = Path(tempfile.gettempdir()) / f"redis-replay-{run}.png"
    place = partial(
        _Place,
        folder=folder / run,
        picture=default if options.plot is None else options.plot,
        is_kept=kept is not None,
    )
    try:
        if options.url is not None and not _is_temporary(options.url):
            yield place(url=options.url, lease=None)
            return
        console.print("Starting a private server.")
        # With every write on disk before its answer, a killed server has all it acknowledged.
        with embedded.open_embedded(
            folder / "server", appendfsync="always", idle_seconds=_IDLE_SECONDS
        ) as lease:
            yield place(url=lease.url, lease=lease)
    finally:
        if kept is None:
            shutil.rmtree(folder, ignore_errors=True)


def _is_temporary(url: str) -> bool:
    """Return whether an address names a new private server, which all processes are to share."""
    return url.startswith("embedded:") and embedded.parse_embedded_url(url)[0] is None


def _say_what_stays(console: Console, run: str, place: _Place) -> None:
    if place.lease is None:
        console.print(
            f"The run {run} stays on your server: redis-replay status --url ... --run {run}"
        )
    elif place.is_kept:
        url = f"embedded://{place.lease.directory}"
        console.print(f"Logs and models: {place.folder}")
        console.print(f"The store stays: redis-replay status --url {url} --run {run}")
