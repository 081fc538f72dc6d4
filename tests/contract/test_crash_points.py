"""Each exchange of each verb is broken off in each way; repeating the verb then sets it right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio.lowlevel
import pytest

from redis_replay import (
    InOrderSampler,
    InOrderSamplerConfig,
    ReplayStore,
    Reservation,
    RolloutSession,
    TrainerSession,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import DuplicateGroup, StoreUnavailable, UnknownGroup
from redis_replay.filtering import Replacement
from tests.contract.interruptions import DOWN, Break, Interruption
from tests.contract.keyspace import collected
from tests.contract.prompt_groups import record_of
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

MOST_EXCHANGES = 12
MOST_TICKS = 2_000
PATIENCE_SECONDS = 20.0
"""How long a verb, its repetition and its check may take together: none waits for ever."""

EVERY_TICK = 25
"""Up to here a verb is cancelled at every turn of the event loop, then at every fifth."""


@dataclass
class Play:
    """A run in which step 0 has two ready groups, ``d`` is in flight and one place is free."""

    store: ReplayStore
    trainer: TrainerSession
    host: RolloutSession
    sampler: InOrderSampler
    dispatcher: InOrderSampler

    async def states(self) -> dict[str, tuple[str, str | None]]:
        """Return state and holder of every group."""
        slots = await self.store.buffer.slots()
        return {slot.group_id: (slot.state.value, slot.owner) for slot in slots}


Act = Callable[[Play], Awaitable[Any]]
Check = Callable[[Play, Any], Awaitable[None]]


async def reserve(play: Play) -> str:
    try:
        made = await play.host.buffer.reserve_when_free(0, group_id="n", target_step=1)
    except DuplicateGroup:
        assert ("reserved", "host") == (await play.states())["n"]
        return "n"
    return made.group_id


async def check_reserved(play: Play, result: str) -> None:
    assert "n" == result
    assert ("reserved", "host") == (await play.states())["n"]
    await play.host.buffer.commit("n", rows(), start_weight_version=0, end_weight_version=0)
    assert 4 == await play.store.buffer.size()


async def commit(play: Play) -> None:
    await play.host.buffer.commit("d", rows(7), start_weight_version=0, end_weight_version=1)


async def check_committed(play: Play, _: None) -> None:
    assert ("ready", None) == (await play.states())["d"]
    read = await play.store.samples.get_samples(["d_g0", "d_g1"])
    assert [7.0, 8.0] == [row["reward"] for row in read]
    assert 3 == (await play.store.stats()).ready


async def select(play: Play) -> list[str]:
    meta, _ = await play.trainer.select(play.sampler, min_prompt_groups=2, max_prompt_groups=2)
    return list(meta.extra_info["group_ids"])


async def check_selected(play: Play, result: list[str]) -> None:
    assert ["a", "b"] == result
    assert ["a", "b"] == await play.trainer.buffer.training_owned_group_ids()
    assert ("a", "b") == (await play.trainer.commit_step(0)).trained
    assert 2 == (await play.store.stats()).trained


async def admit(play: Play) -> int | None:
    return await play.dispatcher.admit(trainer_version_fn=lambda: 0)


async def admit_first(play: Play) -> None:
    assert 2 == await admit(play)


async def check_admitted(play: Play, result: int | None) -> None:
    assert (3, 3) == (result, (await play.store.stats()).dispatch_index)
    assert 4 == await admit(play)


async def dispatch(play: Play) -> str:
    """Dispatch the next prompt as a host does: first what was lost, then anew, from the loader."""
    lost = await play.host.take_tickets(max_tickets=4, weight_version=0)
    if lost:
        return lost[0].group_id
    async with play.host.mutation() as cut:
        stamp = play.dispatcher.commit_admission(cut)
        position = int(cut.loader_state or b"0")
        cut.reserve(0, group_id=f"prompt {position}", target_step=stamp, prompt_ref=b"p")
        cut.set_loader_state(b"%d" % (position + 1))
    return cut.reservations[0].group_id


async def check_dispatched(play: Play, result: str) -> None:
    assert "prompt 0" == result
    assert ("reserved", "host") == (await play.states())["prompt 0"]
    assert 2 == (await play.store.stats()).dispatch_index
    await play.host.buffer.commit("prompt 0", rows(), start_weight_version=0, end_weight_version=0)


async def admit_by_cut(play: Play) -> int | None:
    """Admit a batch in a cut, and leave its reservations for later."""
    async with play.host.mutation() as cut:
        stamp = play.dispatcher.commit_admission(cut)
    return stamp


async def admit_by_cut_first(play: Play) -> None:
    assert 2 == await admit_by_cut(play)


async def check_open(play: Play, result: int | None) -> None:
    assert (3, 3) == (result, (await play.store.stats()).dispatch_index)
    await play.host.buffer.reserve(0, group_id="n", target_step=3)
    assert 4 == await admit(play)
    assert 5 == await admit_by_cut(play)
    gateway = play.store.buffer.session.link.gateway
    [still_open] = await gateway.pipeline([("HKEYS", gateway.keyspace.control(Key.ADMISSIONS))])
    assert [b"2", b"4", b"5"] == sorted(still_open)


async def take_ticket(play: Play) -> list[Reservation]:
    return await play.host.take_tickets(max_tickets=4, weight_version=0)


async def leave_ticket(play: Play) -> None:
    async with play.store.rollout(owner="gone") as gone:
        await gone.buffer.reserve(0, group_id="t", target_step=1, prompt_ref=b"p")


async def check_ticket(play: Play, result: list[Reservation]) -> None:
    assert ["t"] == [ticket.group_id for ticket in result]
    assert b"p" == result[0].prompt_ref
    assert ("reserved", "host") == (await play.states())["t"]
    await play.host.buffer.commit("t", rows(), start_weight_version=0, end_weight_version=0)


async def train(play: Play) -> tuple[str, ...]:
    return (await play.trainer.commit_step(0)).trained


async def select_first(play: Play) -> None:
    assert ["a", "b"] == await select(play)


async def check_trained(play: Play, result: tuple[str, ...]) -> None:
    assert ("a", "b") == result
    stats = await play.store.stats()
    assert (2, 1, 0) == (stats.trained, stats.trainer_version, stats.claimed)


async def write_back(play: Play) -> None:
    await play.trainer.samples.put_samples(["a_g0", "b_g1"], fields={"x": [1, 2]})


async def check_written(play: Play, _: None) -> None:
    read = await play.store.samples.get_samples(["a_g0", "b_g1"], select_fields=["x"])
    assert [{"x": 1}, {"x": 2}] == read
    await play.trainer.commit_step(0)
    await collected(play.store)


async def drop(play: Play) -> Reservation | None:
    """Commit a group without signal, for which a replacement is to be generated."""
    try:
        outcome = await play.host.filter().commit(
            "d",
            record_of([1, 1]),
            start_weight_version=0,
            end_weight_version=0,
            replacement=Replacement(0, group_id="again", prompt_ref=b"q"),
        )
    except UnknownGroup:
        [found] = await play.host.take_tickets(max_tickets=4, weight_version=0)
        return found
    return outcome.replacement


async def check_dropped(play: Play, result: Reservation | None) -> None:
    assert result is not None
    assert ("again", 1, 1, b"q") == (
        *(result.group_id, result.replacement_index, result.target_step),
        result.prompt_ref,
    )
    stats = await play.store.stats()
    assert (1, 3) == (stats.filtered, stats.occupancy)
    assert ("reserved", "host") == (await play.states())["again"]
    await play.host.buffer.commit("again", rows(), start_weight_version=0, end_weight_version=0)


async def call_first(play: Play) -> str:
    """Make the first call of a session, which attaches it."""
    owner = play.store.buffer.session.owner
    try:
        made = await play.store.buffer.reserve(0, group_id="f")
    except DuplicateGroup:
        assert ("reserved", owner) == (await play.states())["f"]
        return "f"
    return made.group_id


async def check_attached(play: Play, result: str) -> None:
    session = play.store.buffer.session
    assert ("f", ("reserved", session.owner)) == (result, (await play.states())["f"])
    assert session.pulse is not None
    assert session.epoch == session.pulse.epoch
    await play.store.buffer.abort("f")


async def nothing(play: Play) -> None:
    """Prepare nothing."""


VERBS: dict[str, tuple[Act, Act, Check]] = {
    "reserve_when_free": (nothing, reserve, check_reserved),
    "commit": (nothing, commit, check_committed),
    "select": (nothing, select, check_selected),
    "admit": (admit_first, admit, check_admitted),
    "cut": (nothing, dispatch, check_dispatched),
    "cut without reservations": (admit_by_cut_first, admit_by_cut, check_open),
    "take_tickets": (leave_ticket, take_ticket, check_ticket),
    "commit_step": (select_first, train, check_trained),
    "put_samples": (select_first, write_back, check_written),
    "drop": (nothing, drop, check_dropped),
    "first call": (nothing, call_first, check_attached),
}


@dataclass
class Outcome:
    """How far a verb came: whether it was disturbed at all, whether it returned, and what."""

    disturbed: bool
    returned: bool = False
    result: Any = None


async def break_exchange(play: Play, act: Act, *, kind: Break, at: int) -> Outcome:
    """Break off one exchange of a verb."""
    interruption = Interruption(play.store, at=at, kind=kind)
    outcome = Outcome(disturbed=False)
    with interruption.scope:
        try:
            outcome.result = await act(play)
            outcome.returned = True
        except StoreUnavailable:
            assert kind in DOWN
    interruption.end()
    outcome.disturbed = interruption.struck
    return outcome


async def cancel_at_tick(play: Play, act: Act, *, tick: int) -> Outcome:
    """Cancel a verb after the event loop went round that often."""
    outcome = Outcome(disturbed=False)

    async def run() -> None:
        outcome.result = await act(play)
        outcome.returned = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(tick):
            await anyio.lowlevel.checkpoint()
        outcome.disturbed = not outcome.returned
        tasks.cancel_scope.cancel()
    return outcome


async def play_once(
    runs: Runs, verb: str, name: str, disturb: Callable[[Play, Act], Awaitable[Outcome]]
) -> bool:
    """Disturb a verb, repeat it unless it returned, and check; return whether it was disturbed."""
    prepare, act, check = VERBS[verb]
    with anyio.fail_after(PATIENCE_SECONDS):
        async with (
            runs.open(run=f"{runs.name}-{name}", capacity=4) as store,
            store.trainer(owner="job") as trainer,
            store.rollout(owner="host") as host,
        ):
            config = InOrderSamplerConfig(max_lookahead_versions=8)
            samplers = [create_sampler(place.buffer, config) for place in (trainer, host)]
            sampler, dispatcher = samplers
            assert isinstance(sampler, InOrderSampler)
            assert isinstance(dispatcher, InOrderSampler)
            sampler.restore_dispatch_index(1)
            await sampler.flush()
            await dispatcher.flush()
            for group_id in ("a", "b"):
                await commit_ready(host, 0, group_id=group_id, target_step=0)
            await host.buffer.reserve(0, group_id="d", target_step=1)
            play = Play(store, trainer, host, sampler, dispatcher)
            await prepare(play)
            outcome = await disturb(play, act)
            await collected(store)
            assert () == (await store.audit()).violations
            result = outcome.result if outcome.returned else await act(play)
            await check(play, result)
            await collected(store)
    return outcome.disturbed


@pytest.mark.parametrize("kind", Break)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_broken_off_anywhere_is_set_right_by_repeating_it(
    runs: Runs, verb: str, kind: Break
) -> None:
    at = 1
    while await play_once(runs, verb, str(at), partial(break_exchange, kind=kind, at=at)):
        at += 1
        assert at < MOST_EXCHANGES, "the verb never ends"
    assert at > 1, "the verb has no exchange"


@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_cancelled_at_any_tick_is_set_right_by_repeating_it(
    runs: Runs, verb: str
) -> None:
    tick = 0
    while await play_once(runs, verb, str(tick), partial(cancel_at_tick, tick=tick)):
        tick += 1 if tick < EVERY_TICK else 5
        assert tick < MOST_TICKS, "the verb never ends"
