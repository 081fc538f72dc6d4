"""Attempts of a call that were stuck on their way and arrive after their caller has an answer."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from redis.exceptions import ConnectionError as ClientConnectionError

from redis_replay import Rule, Selection
from redis_replay._redis.frames import UseUp
from redis_replay._redis.lua import ScriptCall, load_script
from redis_replay._redis.scripts import Admit, Claim, Reserve
from redis_replay._redis.selecting_scripts import SelectForGood
from redis_replay.errors import BufferFull, StoreUnavailable
from tests.contract.keyspace import attached, nothing_changed
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


class Road:
    """Stands in for the lines of a gateway; holds requests back instead of sending them."""

    def __init__(self, store: Any, call: type[ScriptCall[Any]], *, count: int = 1) -> None:
        self._gateway = store.buffer.session.link.gateway
        self._lines, self._gateway._lines = self._gateway._lines, self
        self._script = load_script(call)
        self._left = count
        self.held: list[Any] = []

    async def run(self, commands: Any) -> Any:
        """Send commands, unless they are to be stuck: then the client loses its connection."""
        if self._left and any(self._script.sha in map(str, command[:2]) for command in commands):
            self._left -= 1
            self.held.append(commands)
            raise ClientConnectionError("the connection broke while the request was on its way")
        return await self._lines.run(commands)

    async def close(self) -> None:
        """Close the lines."""
        await self._lines.close()

    async def arrive(self) -> list[str]:
        """Let what was held back arrive at the server, and return the codes of the answers."""
        await self._lines.run([("SCRIPT", "LOAD", self._script.text)])
        replies = [(await self._lines.run(commands))[-1] for commands in self.held]
        return [reply[0].decode() for reply in replies]


class Counted:
    """Stands in for the lines of a gateway and counts the calls of a script."""

    def __init__(self, store: Any, call: type[ScriptCall[Any]]) -> None:
        gateway = store.buffer.session.link.gateway
        self._lines, gateway._lines = gateway._lines, self
        self._sha = load_script(call).sha
        self.calls = 0

    async def run(self, commands: Any) -> Any:
        """Count and send commands."""
        self.calls += sum(self._sha in map(str, command[:2]) for command in commands)
        return await self._lines.run(commands)

    async def close(self) -> None:
        """Close the lines."""
        await self._lines.close()


def one_group() -> Selection:
    """Return a selection of one ready group."""
    return Selection(Rule.BUFFER, 0, 9, 1, 1)


async def test_a_reservation_that_was_refused_does_not_happen_later(runs: Runs) -> None:
    async with runs.open(capacity=1) as store:
        await store.buffer.reserve(0, group_id="a")
        road = Road(store, Reserve)
        with pytest.raises(BufferFull):
            await store.buffer.reserve(0, group_id="b")
        await store.buffer.abort("a")
        async with nothing_changed(runs):
            assert ["EXPIRED"] == await road.arrive()


@pytest.mark.parametrize("call", [Claim, SelectForGood])
async def test_a_selection_that_found_too_few_groups_does_not_take_later_ones(
    runs: Runs, call: type[ScriptCall[Any]]
) -> None:
    async with runs.open() as store:
        await attached(store)
        buffer = store.buffer if call is Claim else store.buffer.selecting_for_good()
        road = Road(store, call)
        assert (None, 0) == await buffer.claim(one_group())
        await commit_ready(store, 0)
        async with nothing_changed(runs):
            assert ["EXPIRED"] == await road.arrive()
        assert 1 == (await buffer.claim(one_group()))[1]


async def test_an_admission_at_a_closed_gate_does_not_happen_when_it_opens(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        road = Road(store, Admit)
        await store.buffer.admission.set_gate_window(0)
        for _ in range(2):
            await store.buffer.admission.admit()
        await store.publish_trainer_version(1)
        async with nothing_changed(runs):
            assert ["EXPIRED"] == await road.arrive()


@pytest.mark.parametrize("call", [Claim, SelectForGood])
async def test_an_attempt_does_not_arrive_after_the_look_for_what_it_has_done(
    runs: Runs, call: type[ScriptCall[Any]]
) -> None:
    async with runs.open(deadline_seconds=0.001) as store, store.trainer(owner="t") as trainer:
        buffer = trainer.buffer if call is Claim else trainer.buffer.selecting_for_good()
        await commit_ready(store, 0, group_id="a")
        road = Road(store, call)
        with pytest.raises(StoreUnavailable):
            await buffer.claim(one_group())
        await store.buffer.remove_group("a")
        await trainer.buffer.claims.give_back_unseen()
        if call is SelectForGood:
            assert [] == await trainer.buffer.selections.waiting()
        await commit_ready(store, 0)
        async with nothing_changed(runs):
            assert ["EXPIRED"] == await road.arrive()


async def test_a_place_stays_in_doubt_until_a_number_of_it_was_used(runs: Runs) -> None:
    async with runs.open(capacity=1, deadline_seconds=0.1) as store:
        await store.buffer.reserve(0, group_id="a")
        road = Road(store, Reserve)
        unsent = Road(store, UseUp, count=99)
        with pytest.raises(BufferFull):
            await store.buffer.reserve(0, group_id="b")
        assert unsent.held
        await store.buffer.abort("a")
        async with nothing_changed(runs):
            assert ["EXPIRED"] == await road.arrive()


async def test_numbers_of_calls_that_were_not_repeated_are_not_used_up(runs: Runs) -> None:
    async with runs.open(capacity=1) as store:
        used_up = Counted(store, UseUp)
        await store.buffer.reserve(0, group_id="a")
        for expected in (0, 1):
            with pytest.raises(BufferFull):
                await store.buffer.reserve(0, group_id="b")
            assert expected == used_up.calls
            Road(store, Reserve)


async def test_calls_in_other_places_are_not_held_up_by_one_in_doubt(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        road = Road(store, Reserve, count=3)
        async with anyio.create_task_group() as group:
            for name in "abcdef":
                group.start_soon(lambda name=name: store.buffer.reserve(0, group_id=name))
        assert 6 == (await store.stats()).reserved
        assert ["EXPIRED"] * 3 == await road.arrive()
        assert 6 == (await store.stats()).reserved_total
