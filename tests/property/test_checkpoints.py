"""Random checkpoints, restores and drops between random work: only what is needed is on the server.

After every verb, on fakeredis and on a real server: the answer, the live groups, the trainer
version and the checkpoints are the plain model's, the payload on the server is exactly that of live
groups and of checkpoints, and the audit is clean. At the end every restored row is that of the
commit that the model names.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio.from_thread
import fakeredis
import pytest
import redis.asyncio
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from redis_replay import ReplayStore
from redis_replay._redis.checkpoint_scripts import DropCheckpoint
from redis_replay.errors import ReplayError
from redis_replay.rollout import RolloutSession
from tests.contract.keyspace import collected, send_plain
from tests.harness import Runs, rows
from tests.property.checkpoint_model import CheckpointModel, Refused

GROUPS = st.sampled_from([f"g{at}" for at in range(4)])
NAMES = st.sampled_from(["a", "b", "c"])


@dataclass
class Side:
    """One server's run."""

    portal: BlockingPortal
    runs: Runs
    contents: dict[str, int] = field(default_factory=dict)
    opened: ReplayStore = field(init=False)
    _context: AbstractContextManager[ReplayStore] = field(init=False)

    def open(self) -> None:
        self._context = self.portal.wrap_async_context_manager(self.runs.open())
        self.opened = self._context.__enter__()

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    async def commit(self, name: str, content: int) -> None:
        buffer = self.opened.buffer
        await buffer.commit(name, rows(content), start_weight_version=0, end_weight_version=0)
        [slot] = [slot for slot in await buffer.slots() if slot.group_id == name]
        keyspace = buffer.session.link.gateway.keyspace
        self.contents[keyspace.payload(name, slot.payload_fence or 0)] = content

    async def take_tickets(self) -> None:
        rollout = RolloutSession(self.opened.buffer.session)
        rollout.buffer = self.opened.buffer
        await rollout.take_tickets(max_tickets=100, weight_version=0)

    async def settle(self, version: int, checkpoint: str | None) -> None:
        claims = self.opened.buffer.claims
        await claims.settle_step(version, empty=True, checkpoint=checkpoint or "")
        if checkpoint is not None:
            await self.opened.checkpoints.finish(checkpoint)

    async def cut_short(self, name: str) -> None:
        record = await self.opened.checkpoints.record(name)
        call = DropCheckpoint(name, 1, (record.saved_id,))
        await send_plain(self.opened.buffer.session, call)

    async def check(self, model: CheckpointModel) -> None:
        """Compare with the model, nothing being left to collect."""
        await collected(self.opened)
        await self.opened.collect_garbage()
        live = {
            slot.group_id: "ticket"
            if slot.state == "reserved" and slot.owner is None
            else slot.state.value
            for slot in await self.opened.buffer.slots()
        }
        assert {name: group.state for name, group in model.groups.items()} == live
        stored = {self.contents[key] for key in await self.runs.payload_keys()}
        assert model.needed <= stored <= model.needed | model.remains
        listed = await self.opened.checkpoints.list()
        assert list(model.checkpoints) == [info.name for info in listed]
        assert model.version == (await self.opened.stats()).trainer_version
        assert () == (await self.opened.audit()).violations

    async def check_rows(self, model: CheckpointModel) -> None:
        """Restore every checkpoint once more and read all rows."""
        for name in list(model.checkpoints):
            assert (await self.opened.checkpoints.verify(name, deep=True)).is_whole
            await self.opened.checkpoints.restore(name)
            for group_id, group in model.checkpoints[name].groups.items():
                if group.content is not None:
                    [row] = await self.opened.samples.get_samples([f"{group_id}_g0"])
                    assert group.content == int(row["input_ids"][0])
            await self.opened.checkpoints.drop(name)
        await self.opened.buffer.claims.requeue_all(failed=False)
        slots = await self.opened.buffer.slots()
        if slots:
            await self.opened.buffer.remove([slot.group_id for slot in slots])
        await self.opened.checkpoints.create("last")  # which finishes what was cut short
        await self.opened.checkpoints.drop("last")
        await collected(self.opened)
        assert [] == await self.runs.payload_keys()
        assert [] == [key for key in await self.runs.keys() if ":saved:" in key]


@dataclass
class Arena:
    """One event loop for all sequences, and the real server's url."""

    portal: BlockingPortal
    url: str

    def machine(self) -> CheckpointMachine:
        return CheckpointMachine(self)


class CheckpointMachine(RuleBasedStateMachine):
    """One sequence of verbs, on the model and on both servers."""

    def __init__(self, arena: Arena) -> None:
        super().__init__()
        self._arena = arena
        self._call = arena.portal.call
        self.model = CheckpointModel()
        self.sides: list[Side] = []
        self._is_sound = True

    @initialize()
    def open(self) -> None:
        clients: list[Any] = [
            fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer()),
            redis.asyncio.Redis.from_url(self._arena.url),
        ]
        self.sides = [Side(self._arena.portal, Runs(client)) for client in clients]
        for side in self.sides:
            side.open()

    def do(self, answer: Callable[[], Any], ask: Callable[[Side], Awaitable[Any]]) -> None:
        """Ask the model and both servers, and compare the answers and what is there."""
        self._is_sound, refused = False, None
        try:
            answer()
        except Refused as refusal:
            refused = str(refusal)
        for side in self.sides:
            assert refused == self._call(_name_of_error, ask, side)
            self._call(side.check, self.model)
        self._is_sound = True

    @rule(name=GROUPS)
    def reserve(self, name: str) -> None:
        self.do(
            lambda: self.model.reserve(name),
            lambda side: side.opened.buffer.reserve(0, group_id=name, prompt_ref=b"p"),
        )

    @rule()
    def commit(self) -> None:
        for name in self.model.named("reserved"):
            content = self.model.commits + 1
            self.do(
                lambda name=name: self.model.commit(name),
                lambda side, name=name, content=content: side.commit(name, content),
            )

    @rule(name=GROUPS)
    def claim(self, name: str) -> None:
        if name in self.model.named("ready"):
            self.do(
                lambda: self.model.become([name], "claimed"),
                lambda side: side.opened.buffer.claim_for_training([name]),
            )

    @rule(checkpoint=st.none() | NAMES)
    def settle(self, checkpoint: str | None) -> None:
        version = self.model.version
        self.do(
            lambda: self.model.settle(checkpoint), lambda side: side.settle(version, checkpoint)
        )

    @rule(name=GROUPS)
    def remove(self, name: str) -> None:
        if name in self.model.named("reserved", "ticket", "ready"):
            self.do(lambda: self.model.end([name]), lambda side: side.opened.buffer.remove([name]))

    @rule()
    def take_tickets(self) -> None:
        self.do(
            lambda: self.model.become(self.model.named("ticket"), "reserved"),
            lambda side: side.take_tickets(),
        )

    @rule()
    def reopen(self) -> None:
        self.model.reopen()
        for side in self.sides:
            side.close()
            side.open()
            self._call(side.check, self.model)

    @rule(name=NAMES, replace=st.booleans(), pinned=st.booleans(), keep=st.none() | st.just(1))
    def create(self, name: str, replace: bool, pinned: bool, keep: int | None) -> None:
        self.do(
            lambda: self.model.create(name, replace_it=replace, pinned=pinned, keep=keep),
            lambda side: side.opened.checkpoints.create(
                name, replace=replace, pin=pinned, keep=keep
            ),
        )

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.do(lambda: self.model.drop(name), lambda side: side.opened.checkpoints.drop(name))

    @rule(name=NAMES)
    def cut_short(self, name: str) -> None:
        self.do(lambda: self.model.cut_short(name), lambda side: side.cut_short(name))

    @rule(name=NAMES, mode=st.sampled_from(["all", "all", "prompts_only", "none"]))
    def restore(self, name: str, mode: Any) -> None:
        self.do(
            lambda: self.model.restore(name, mode=mode),
            lambda side: side.opened.checkpoints.restore(name, mode=mode),
        )

    def teardown(self) -> None:
        with ExitStack() as stack:
            for side in self.sides:
                stack.callback(self._call, side.runs.client.aclose)
                stack.callback(self._call, side.runs.check)
                stack.callback(side.close)
            for side in self.sides if self._is_sound else ():
                self._call(side.check_rows, self.model)


async def _name_of_error(ask: Callable[[Side], Awaitable[Any]], side: Side) -> str | None:
    try:
        await ask(side)
    except ReplayError as refusal:
        return type(refusal).__name__
    return None


@pytest.fixture
def arena(real_server: str, caplog: pytest.LogCaptureFixture) -> Iterator[Arena]:
    caplog.set_level(logging.ERROR, "redis_replay")  # every restore is logged
    with anyio.from_thread.start_blocking_portal("asyncio") as portal:
        yield Arena(portal, real_server)


def check(arena: Arena, *, sequences: int, verbs: int, derandomize: bool) -> None:
    """Run the machine."""
    run_state_machine_as_test(
        arena.machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=verbs,
            derandomize=derandomize,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )


def test_random_checkpoints_keep_and_free_what_the_model_says(arena: Arena) -> None:
    check(arena, sequences=8, verbs=25, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_random_checkpoints_keep_and_free_what_the_model_says(arena: Arena) -> None:
    check(arena, sequences=300, verbs=60, derandomize=False)
