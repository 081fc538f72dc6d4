"""Admission under competition, cancellation, death and closing: no index lost, none given twice."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from redis_replay._redis.keys import Key
from redis_replay.errors import AdmissionConflict, StaleOwner, StoreClosed, StoreUnavailable
from tests.contract.keyspace import attached, collected, control_key, nothing_changed
from tests.contract.policies import (
    GATED,
    Blocked,
    admit,
    blocked,
    blocks,
    ready_for_step,
    sampler_of,
)
from tests.harness import Runs, until

pytestmark = pytest.mark.anyio

ROUNDS = 50
CANCELLATIONS = 100
LONGEST_PATIENCE_SECONDS = 0.004
SHORT_LEASE_SECONDS = 0.2


async def open_admissions(runs: Runs) -> list[int]:
    """Return the admitted indexes that no reservation has answered yet."""
    return sorted(int(at) for at in await runs.client.hkeys(control_key(runs, Key.ADMISSIONS)))


async def test_two_stores_that_admit_at_once_never_share_or_skip_an_index(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        given: list[int] = []

        async def dispatch(place: Any) -> None:
            sampler = sampler_of(place, "in_order", 1)
            for _ in range(ROUNDS):
                given.append(await sampler.admit(trainer_version_fn=lambda: 2 * ROUNDS))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatch, store)
            tasks.start_soon(dispatch, other)
        assert list(range(2 * ROUNDS)) == sorted(given)
        assert 2 * ROUNDS - 1 == (await store.stats()).dispatch_index


async def test_of_two_stores_that_race_for_one_batch_one_wins_and_one_waits(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        samplers = [sampler_of(place, "in_order", 0) for place in (store, other)]
        await admit(samplers[0], 0)
        for version in range(1, ROUNDS + 1):
            assert [version] == await race(samplers, version)
        assert ROUNDS == (await store.stats()).dispatch_index


async def race(samplers: list[Any], version: int) -> list[int]:
    """Admit from all at once at a version that opens the gate for one; return what was given."""
    given: list[int] = []
    racers = [Blocked(version) for _ in samplers]

    async def run(sampler: Any, racer: Blocked) -> None:
        given.append(await sampler.admit(trainer_version_fn=racer.look))

    async def one_is_left() -> bool:
        return bool(given) and any(racer.looks >= 3 for racer in racers)

    async with anyio.create_task_group() as tasks:
        for sampler, racer in zip(samplers, racers, strict=True):
            tasks.start_soon(run, sampler, racer)
        await until(one_is_left, what="one was admitted and the other found the gate closed")
        tasks.cancel_scope.cancel()
    return given


async def test_many_tasks_of_one_sampler_get_each_index_once(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        given: list[int] = []

        async def dispatch() -> None:
            given.append(await sampler.admit(trainer_version_fn=lambda: 40))

        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(dispatch)
        assert list(range(40)) == sorted(given)


async def test_an_admission_cancelled_at_any_instant_is_neither_lost_nor_doubled(
    runs: Runs,
) -> None:
    instants = random.Random(11)
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await sampler.flush()
        given: list[int] = []
        for _ in range(CANCELLATIONS):
            with anyio.move_on_after(instants.uniform(0, LONGEST_PATIENCE_SECONDS)):
                given.append(await sampler.admit(trainer_version_fn=lambda: CANCELLATIONS))
        await collected(store)
        kept = store.buffer.admission.undelivered
        cursor = (await store.stats()).dispatch_index
        assert list(range(cursor + 1)) == sorted(given + kept)
        held = list(kept)
        assert held == [await admit(sampler, CANCELLATIONS) for _ in held]
        assert cursor == (await store.stats()).dispatch_index
        assert cursor + 1 == await admit(sampler, CANCELLATIONS)
        assert 0 < len(given) < CANCELLATIONS


async def test_the_index_of_a_cancelled_admission_is_given_at_a_closed_gate_too(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await sampler.flush()
        gateway: Any = store.buffer.session.link.gateway
        send, sent, gone = gateway.call, anyio.Event(), anyio.Event()

        async def announced(call: Any, *arguments: Any, **options: Any) -> Any:
            if call.SCRIPT == "admit":
                sent.set()
                await gone.wait()
            return await send(call, *arguments, **options)

        gateway.call = announced
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(admit, sampler, 0)
            await sent.wait()
            tasks.cancel_scope.cancel()
        gone.set()
        await collected(store)
        assert [0] == store.buffer.admission.undelivered
        assert not await blocks(sampler.wait_until_admissible, 0)
        assert 0 == await admit(sampler, 0)
        assert await blocks(sampler.admit, 0)


async def test_an_index_whose_answer_never_came_is_found_again_at_a_closed_gate_too(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = sampler_of(store, "in_order", 2), sampler_of(other, "in_order", 2)
        assert (0, 1) == (await admit(mine, 0), await admit(theirs, 0))
        gateway: Any = store.buffer.session.link.gateway
        send = gateway.call

        async def unanswered(call: Any, *arguments: Any, **options: Any) -> Any:
            reply = await send(call, *arguments, **options)
            if call.SCRIPT == "admit":
                raise StoreUnavailable("no answer")
            return reply

        gateway.call = unanswered
        with pytest.raises(StoreUnavailable):
            await admit(mine, 0)
        gateway.call = send
        assert 2 == (await store.stats()).dispatch_index
        assert not await blocks(mine.wait_until_admissible, 0)
        assert 2 == await admit(mine, 0)
        assert await blocks(mine.admit, 0)
        assert [0, 1, 2] == await open_admissions(runs)


async def test_an_index_nobody_received_goes_to_the_next_host_when_its_own_has_left(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        async with store.rollout(owner="gone") as host:
            sampler = sampler_of(host, "in_order", 0)
            host.buffer.admission.undelivered.append(await admit(sampler, 0) or 0)
        assert 0 == await admit(sampler_of(store, "in_order", 0), 0)


async def test_a_cancelled_wait_at_the_gate_leaves_no_trace(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await admit(sampler, 0)
        async with nothing_changed(runs):
            for _ in range(5):
                assert await blocks(sampler.admit, 0)
        assert [] == store.buffer.admission.undelivered


async def test_indexes_of_a_host_that_died_are_given_out_first_lowest_first(runs: Runs) -> None:
    async with runs.open() as store:
        first = store.rollout(owner="crashing")
        await first.__aenter__()
        dying = sampler_of(first, "in_order", 4)
        assert [0, 1, 2] == [await admit(dying, 0) for _ in range(3)]
        await first.buffer.reserve(0, target_step=1)
        assert [0, 2] == await open_admissions(runs)
        async with store.rollout(owner="crashing"):
            follower = sampler_of(store, "in_order", 4)
            assert [0, 2, 3] == [await admit(follower, 0) for _ in range(3)]
        assert 3 == (await store.stats()).dispatch_index
        with pytest.raises(StaleOwner):
            await admit(dying, 0)
        assert 3 == (await store.stats()).dispatch_index


@pytest.mark.parametrize("policy", GATED)
async def test_an_orphaned_index_passes_a_closed_gate_and_moves_no_cursor(
    runs: Runs, policy: str
) -> None:
    async with runs.open() as store:
        async with store.rollout(owner="gone") as host:
            await admit(sampler_of(host, policy, 0), 0)
        sampler = sampler_of(store, policy, 0)
        await admit(sampler, 0)
        assert 0 == (await store.stats()).dispatch_index
        assert [0] == await open_admissions(runs)
        assert await blocks(sampler.admit, 0)


async def test_a_blocked_caller_is_woken_by_the_death_of_another_admitter(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        host = other.rollout(owner="gone")
        await host.__aenter__()
        assert 0 == await admit(sampler_of(host, "in_order", 0), 0)
        sampler = sampler_of(store, "in_order", 0)
        async with blocked(sampler.admit, 0) as waiting:
            await host.__aexit__(None, None, None)
            assert 0 == await waiting.ended()


async def test_an_index_of_a_living_host_is_nobody_elses(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="alive") as host:
        assert 0 == await admit(sampler_of(host, "in_order", 0), 0)
        sampler = sampler_of(store, "in_order", 0)
        assert await blocks(sampler.admit, 0)
        assert 1 == await admit(sampler, 1)


async def test_an_index_that_was_answered_by_its_groups_is_no_orphan(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.rollout(owner="gone") as host:
            assert 0 == await admit(sampler_of(host, "in_order", 0), 0)
            await host.buffer.reserve(0, target_step=0, prompt_ref=b"p")
        sampler = sampler_of(store, "in_order", 0)
        assert await blocks(sampler.admit, 0)
        assert 1 == len(await _tickets(store))


async def _tickets(store: Any) -> list[Any]:
    async with store.rollout(owner="next") as rollout:
        taken: list[Any] = await rollout.take_tickets(max_tickets=9, weight_version=0)
    return taken


async def test_a_cut_whose_orphan_was_given_away_is_a_conflict(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        async with store.rollout(owner="gone") as host:
            assert 0 == await admit(sampler_of(host, "in_order", 3), 0)
        mine, theirs = sampler_of(store, "in_order", 3), sampler_of(other, "in_order", 3)
        await mine.flush()
        await attached(store, other)

        async def overtaken() -> None:
            async with store.mutation() as cut:
                assert 0 == mine.commit_admission(cut)
                cut.reserve(0, group_id="overtaken", target_step=0)
                assert 0 == await admit(theirs, 0)

        with pytest.raises(AdmissionConflict, match="cursor moved"):
            await overtaken()
        assert (0, 0) == ((await store.stats()).dispatch_index, await store.buffer.size())
        async with store.mutation() as cut:
            assert 1 == mine.commit_admission(cut)


async def test_a_cut_whose_block_fails_gives_no_index_away(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await sampler.flush()
        await attached(store)

        async def fail() -> None:
            async with store.mutation() as cut:
                assert 0 == sampler.commit_admission(cut)
                raise KeyError("the prompt")

        async with nothing_changed(runs):
            with pytest.raises(KeyError, match="the prompt"):
                await fail()
        assert 0 == await admit(sampler, 0)


async def test_a_blocked_caller_whose_session_was_left_is_told(runs: Runs) -> None:
    async with runs.open() as store:
        host = store.rollout(owner="leaving")
        await host.__aenter__()
        sampler = sampler_of(host, "in_order", 0)
        await host.buffer.reserve(0, target_step=await admit(sampler, 0))
        async with blocked(_told(sampler.admit, StoreClosed), 0) as waiting:
            await host.__aexit__(None, None, None)
            assert "told" == await waiting.ended()


async def test_a_blocked_caller_whose_session_was_replaced_is_told(runs: Runs) -> None:
    async with runs.open() as store:
        host = store.rollout(owner="twice", lease_seconds=SHORT_LEASE_SECONDS)
        await host.__aenter__()
        sampler = sampler_of(host, "in_order", 0)
        await host.buffer.reserve(0, target_step=await admit(sampler, 0))
        async with (
            blocked(_told(sampler.admit, StaleOwner), 0) as waiting,
            store.rollout(owner="twice"),
        ):
            assert "told" == await waiting.ended()


def _told(call: Any, error: type[Exception]) -> Callable[..., Awaitable[str]]:
    """Return a call that must end in an error, as one that returns."""

    async def run(*, trainer_version_fn: Callable[[], int]) -> str:
        with pytest.raises(error):
            await call(trainer_version_fn=trainer_version_fn)
        return "told"

    return run


async def test_closing_a_store_ends_every_blocked_call_with_store_closed(runs: Runs) -> None:
    ended: dict[str, float] = {}

    async def run(name: str, call: Callable[[], Awaitable[Any]]) -> None:
        with pytest.raises(StoreClosed):
            await call()
        ended[name] = anyio.current_time()

    async with (
        anyio.create_task_group() as tasks,
        runs.open(capacity=1) as store,
        store.trainer(owner="t") as trainer,
    ):
        sampler, selects = sampler_of(store, "in_order", 0), sampler_of(trainer, "in_order", 0)
        await admit(sampler, 0)
        await ready_for_step(store, 0, 1)
        version, topics = Blocked(0), topics_waited_for(store)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "admit": lambda: sampler.admit(trainer_version_fn=version.look),
            "wait": lambda: sampler.wait_until_admissible(trainer_version_fn=version.look),
            "select": lambda: trainer.select(selects, min_prompt_groups=2, max_prompt_groups=2),
            "reserve": lambda: store.buffer.reserve_when_free(0),
        }
        for name, call in calls.items():
            tasks.start_soon(run, name, call)

        async def all_wait() -> bool:
            return len(topics) == 3 and version.looks >= 6

        await until(all_wait, what="all four calls were blocked")
        begun = anyio.current_time()
        await store.close()
    assert {*calls} == {*ended}
    assert max(ended.values()) - begun < 1.0


def topics_waited_for(store: Any) -> set[str]:
    """Return the topics that callers of a store have waited for, kept up to date."""
    wakeups = store.buffer.session.link.wakeups
    topics: set[str] = set()
    wait = wakeups.wait

    async def noted(topic: str, *arguments: Any, **options: Any) -> bool:
        topics.add(topic)
        return bool(await wait(topic, *arguments, **options))

    wakeups.wait = noted
    return topics


async def test_admission_after_the_store_was_closed_says_so(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await sampler.flush()
    with pytest.raises(StoreClosed):
        await admit(sampler, 0)
    with pytest.raises(StoreClosed):
        await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
