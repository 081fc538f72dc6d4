"""The supervisor: starts the processes, kills some, starts them again, and takes stock at the end.

A process is killed when the line that says what it holds arrives; its own log then tells whether
it still held it. Everything that happens between the processes happens in the store.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import anyio
from anyio.abc import TaskGroup

from redis_replay.audit import AuditReport
from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.kills import Kill, Strike, Victim, held_groups, note_held
from redis_replay.demo.observation import SEEN_STORE, look_at
from redis_replay.demo.processes import Worker, start_worker
from redis_replay.demo.settings import SUPERVISOR, TRAINER, WorkerOrders
from redis_replay.demo.witness import Line, Result, Witness, read_log
from redis_replay.errors import ConfigurationError, EmbeddedServerError
from redis_replay.types import BufferStats

_PATIENCE_SECONDS: Final = 40.0
_FIRST_ANSWER_SECONDS: Final = 3.0
_SERVER_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.02


class PrivateServer(Protocol):
    """A server that may be killed: it comes back by itself, or when it is opened again."""

    @property
    def server_pid(self) -> int:
        """Its process as it runs now."""
        ...


class Plan(Protocol):
    """What is killed when."""

    def aim(self, line: Line, *, step: int, held: int) -> Strike | None:
        """Return what to kill now that a process wrote this line.

        Args:
            line: What it wrote.
            step: The step being trained.
            held: Groups that this process holds beside that of the line.
        """
        ...

    def note_death(self, owner: str, *, step: int, held: int) -> None:
        """Learn what a killed process held, by its own log."""
        ...


class Voice(Protocol):
    """Who is told what happens."""

    def say(self, sentence: str) -> None:
        """Tell what happened."""
        ...

    def step(self, step: int, *, reward: float) -> None:
        """Tell that a step was committed, with the mean reward of its batch."""
        ...


@dataclass(frozen=True)
class Inventory:
    """The store's own account at the end."""

    stats: BufferStats
    audit: AuditReport


@dataclass
class Supervisor:
    """One run of the demo.

    Attributes:
        orders: Orders of a worker, whose owner and life are filled in for each.
        owners: Owner names of the workers.
        server: The server to kill, ``None`` when it is not ours to kill.
        kills: What was killed.
    """

    orders: WorkerOrders
    owners: Sequence[str]
    plan: Plan
    voice: Voice
    server: PrivateServer | None
    kills: list[Kill] = field(default_factory=list[Kill])
    _alive: dict[str, Worker] = field(default_factory=dict[str, Worker])
    _held: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set[str]))
    _rewards: dict[int, float] = field(default_factory=dict[int, float])
    _step: int = 0
    _patience: anyio.CancelScope = field(init=False)

    async def run(self) -> Inventory:
        """Run all processes until the last step is committed, and take stock.

        Raises:
            DemoFailed: a process ended that nobody killed, or no step was committed for too long.
            ConfigurationError: the run exists already.
            StoreError: the server cannot be used.
        """
        await self._create_run()
        with anyio.move_on_after(_PATIENCE_SECONDS) as self._patience:
            try:
                async with anyio.create_task_group() as group:
                    for owner in self.owners:
                        group.start_soon(self._keep, owner, group)
            except ExceptionGroup as errors:
                failures, others = errors.split(DemoFailed)
                if failures is None or others is not None:
                    raise
                raise failures.exceptions[0] from None
        if self._patience.cancelled_caught:
            raise DemoFailed(
                f"no step was committed for {_PATIENCE_SECONDS:g} s after step {self._step}; "
                f"the logs are in {self.orders.log_path.parent}"
            )
        return await self._take_stock()

    async def _create_run(self) -> None:
        async with self.orders.open_store(deadline_seconds=_FIRST_ANSWER_SECONDS) as store:
            if not store.run.created:
                raise ConfigurationError(
                    f"run {self.orders.run!r} is on the server already; the demo begins a new one, "
                    "so choose another name"
                )

    async def _keep(self, owner: str, group: TaskGroup) -> None:
        """Keep a process of the owner running until one has done its work."""
        for life in range(1_000_000):
            orders = replace(self.orders, owner=owner, life=life)
            self._held[owner].clear()
            async with start_worker(orders) as worker:
                self._alive[owner] = worker
                await worker.listen(lambda line: self._heard(line, group))
                if not worker.killed:
                    worker.raise_for_status()
                    return
            self._account_for(worker)

    def _heard(self, line: Line, group: TaskGroup) -> None:
        held = self._held[line.who]
        note_held(held, line)
        if line.call == "commit_step" and line.who == TRAINER:
            self._heard_of_step(line)
        if self._alive[line.who].killed:
            return
        strike = self.plan.aim(line, step=self._step, held=len(held))
        if strike is None:
            return
        if strike.delay_seconds:
            group.start_soon(self._execute_later, strike, group)
        else:
            self._execute(strike, group)

    async def _execute_later(self, strike: Strike, group: TaskGroup) -> None:
        await anyio.sleep(strike.delay_seconds)
        self._execute(strike, group)

    def _execute(self, strike: Strike, group: TaskGroup) -> None:
        if strike.server:
            assert self.server is not None
            pid = self.server.server_pid
            os.kill(pid, signal.SIGKILL)
            group.start_soon(self._await_server, pid)
        for owner in strike.owners:
            self._alive[owner].kill()

    def _heard_of_step(self, line: Line) -> None:
        if "reward" in line.facts:
            self._rewards[line.facts["step"]] = line.facts["reward"]
        if line.result is Result.OK:
            step = int(line.facts["step"])
            self._step = step + 1
            self._patience.deadline = anyio.current_time() + _PATIENCE_SECONDS
            self.voice.step(step + 1, reward=self._rewards.get(step, 0.0))

    def _account_for(self, worker: Worker) -> None:
        """Read in its own log what a killed process held; if nothing, it will be tried again."""
        owner = worker.orders.owner
        held = len(held_groups(read_log(worker.orders.log_path)))
        self.kills.append(Kill(owner, self._step, held))
        verb = "had claimed and not trained" if owner == TRAINER else "was generating"
        state = f"while it {verb} {held} groups" if held else "too late: it held no group any more"
        self.voice.say(
            f"Killed {owner} (process {worker.pid}) with SIGKILL at step {self._step}, {state}. "
            "Starting it again under the same name."
        )
        self.plan.note_death(owner, step=self._step, held=held)

    async def _await_server(self, pid: int) -> None:
        held, begun = sum(map(len, self._held.values())), time.monotonic()
        self.kills.append(Kill(Victim.SERVER.value, self._step, held))
        self.voice.say(
            f"Killed the server (process {pid}) with SIGKILL at step {self._step}, while {held} "
            "groups were claimed or being generated."
        )
        with anyio.move_on_after(_SERVER_SECONDS):
            while self._server_pid() in (None, pid):
                await anyio.sleep(_LOOK_SECONDS)
            seconds = time.monotonic() - begun
            self.voice.say(
                f"The server is back after {seconds:.2f} s (process {self._server_pid()}), "
                "from its append-only file."
            )
            return
        raise DemoFailed(f"the server did not come back within {_SERVER_SECONDS:g} s")

    def _server_pid(self) -> int | None:
        assert self.server is not None
        try:
            return self.server.server_pid
        except EmbeddedServerError:
            return None

    async def _take_stock(self) -> Inventory:
        """Write down what is left in the store, now that nobody works on it."""
        orders = replace(self.orders, owner=SUPERVISOR, life=0)
        witness = Witness(orders.log_path, who=SUPERVISOR)
        try:
            async with orders.open_store() as store:
                witness.saw(SEEN_STORE, **await look_at(store, store))
                return Inventory(await store.stats(), await store.audit())
        finally:
            witness.close()
