"""The gate: a batch may dispatch while the cursor is below trainer version plus window."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import anyio
import pytest

from redis_replay import create_sampler
from redis_replay.admission import AdmissionState, read_admission
from redis_replay.errors import AdmissionConflict
from tests.contract.keyspace import nothing_changed
from tests.contract.policies import (
    GATED,
    WINDOW_KEY,
    Blocked,
    admit,
    admit_all,
    blocked,
    blocks,
    chosen,
    ready_for_step,
    sampler_of,
)
from tests.harness import Runs

pytestmark = pytest.mark.anyio

LARGEST = 6
every_policy = pytest.mark.parametrize("policy", GATED)


def is_open(cursor: int, trainer_version: int, window: int) -> bool:
    """The rule of the gate."""
    return cursor < trainer_version + window


async def try_to_admit(store: Any, seen_version: int) -> int | None:
    """Ask the admission script alone, without the wait before it."""
    admission = store.buffer.admission
    admission.seen_version = seen_version
    index: int | None = await admission.admit()
    return index


async def read_state(store: Any) -> AdmissionState:
    """Return what the wait decides by."""
    return await read_admission(store.buffer.session.link.gateway)


@pytest.mark.parametrize("published", [True, False], ids=["published", "seen"])
async def test_wait_and_script_follow_the_rule_at_every_cursor_version_and_window(
    runs: Runs, published: bool
) -> None:
    """Each fresh run is asked at every closed cursor, then filled from -1 through the open ones."""
    for version, window in product(range(LARGEST + 1), repeat=2):
        seen = 0 if published else version
        async with runs.open(run=f"{runs.name}-{version}-{window}") as store:
            sampler = sampler_of(store, "in_order", window)
            await sampler.flush()
            await store.publish_trainer_version(version if published else 0)
            for cursor in range(LARGEST, -2, -1):
                place = (cursor, version, window)
                sampler.restore_dispatch_index(cursor)
                await sampler.flush()
                assert (place, is_open(*place)) == (place, (await read_state(store)).is_open(seen))
                if not is_open(*place):
                    assert (place, None) == (place, await try_to_admit(store, seen))
                    assert cursor == (await store.stats()).dispatch_index
            for cursor in range(-1, version + window):
                assert cursor + 1 == await try_to_admit(store, seen)
            assert None is await try_to_admit(store, seen)


@pytest.mark.parametrize(
    ("stored", "seen", "admitted"), [(3, 1, 4), (1, 3, 4), (3, 3, 4), (0, 0, 1), (0, 5, 6)]
)
async def test_the_larger_of_the_stored_version_and_the_callers_counts(
    runs: Runs, stored: int, seen: int, admitted: int
) -> None:
    async with runs.open() as store:
        await store.publish_trainer_version(stored)
        sampler = sampler_of(store, "in_order", 0)
        assert list(range(admitted)) == await admit_all(sampler, seen)


async def test_the_stored_version_only_rises(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await store.publish_trainer_version(2)
        await store.publish_trainer_version(1)
        assert 2 == store.trainer_version
        assert [0, 1, 2] == await admit_all(sampler, 0)


async def test_what_a_caller_saw_once_is_not_forgotten_when_its_function_falls(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        assert 0 == await admit(sampler, 2)
        assert [1, 2] == await admit_all(sampler, 0)


@every_policy
async def test_with_window_zero_the_second_batch_waits_for_the_first_step(
    runs: Runs, policy: str
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, policy, 0)
        await admit(sampler, 0)
        assert 0 == sampler.dispatch_index
        async with blocked(sampler.admit, 0) as waiting:
            waiting.version = 1
            await waiting.ended()
        assert (1, 1) == (sampler.dispatch_index, (await store.stats()).dispatch_index)


@every_policy
async def test_waiting_alone_changes_nothing(runs: Runs, policy: str) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, policy, 0)
        await sampler.flush()
        async with nothing_changed(runs):
            await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
            assert -1 == sampler.dispatch_index
        await admit(sampler, 0)
        async with nothing_changed(runs):
            assert await blocks(sampler.wait_until_admissible, 0)


async def test_only_the_version_opens_the_gate(runs: Runs) -> None:
    """An empty buffer, a released claim, an eviction, an abort or a removal never does."""
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await admit(sampler, 0)
        stale = await ready_for_step(store, 0, 1)
        gone = await ready_for_step(store, 0, 1)
        claimed = await ready_for_step(store, 0, 1)
        await store.buffer.reserve(0, group_id="reserved", target_step=0)
        async with blocked(sampler.admit, 0) as waiting:
            await store.buffer.claim_for_training(claimed)
            await store.buffer.release_training_claims(claimed)
            await store.buffer.remove(gone)
            await store.buffer.abort("reserved")
            assert 1 == await sampler.evict(current_train_weight=1)
            assert 1 == len(stale)
            assert 0 == await store.buffer.size()
            seen = waiting.looks
            while waiting.looks < seen + 3:
                await anyio.lowlevel.checkpoint()
            assert not waiting.done.is_set()
            assert await blocks(sampler.admit, 0)
            await store.publish_trainer_version(1)
            assert 1 == await waiting.ended()


async def test_a_committed_step_opens_the_gate_of_another_store(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other, store.trainer(owner="t") as trainer:
        sampler = sampler_of(other, "in_order", 0)
        await admit(sampler, 0)
        await ready_for_step(other, 0, 2)
        assert 2 == len(await chosen(sampler_of(trainer, "in_order", 0), 0))
        async with blocked(sampler.admit, 0) as waiting:
            await trainer.commit_step(0)
            assert 1 == await waiting.ended()


async def fastest(attempts: int, attempt: Callable[[int], Any]) -> float:
    """Return the shortest of several durations, so that a busy machine proves nothing."""
    seconds: list[float] = []
    for at in range(attempts):
        seconds.append(await attempt(at))
    return min(seconds)


async def time_to_open(waiting: Blocked, open_gate: Callable[[], Any]) -> float:
    """Open the gate under a blocked caller and return how long it took to return."""
    begun = anyio.current_time()
    await open_gate()
    await waiting.ended()
    return anyio.current_time() - begun


async def test_a_callers_own_larger_version_opens_the_gate_in_milliseconds(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await admit(sampler, 0)

        async def attempt(at: int) -> float:
            async with blocked(sampler.admit, at) as waiting:

                async def rise() -> None:
                    waiting.version = at + 1

                return await time_to_open(waiting, rise)

        assert await fastest(5, attempt) < 0.05


async def test_looking_at_the_callers_version_costs_no_command(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await admit(sampler, 0)
        gateway: Any = store.buffer.session.link.gateway
        reads: list[int] = []
        pipeline = gateway.pipeline

        async def counted(*commands: Any, **options: Any) -> Any:
            reads.append(len(commands))
            return await pipeline(*commands, **options)

        gateway.pipeline = counted
        async with blocked(sampler.wait_until_admissible, 0) as waiting:
            begun = len(reads)
            while waiting.looks < 20:
                await anyio.lowlevel.checkpoint()
            assert len(reads) - begun <= 1


@pytest.mark.parametrize("cause", ["wider window", "published version", "another step seeded"])
async def test_what_opens_the_gate_wakes_a_caller_that_is_blocked_in_another_store(
    runs: Runs, cause: str
) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = sampler_of(store, "in_order", 0), sampler_of(other, "in_order", 0)
        mine.restore_dispatch_index(0)
        await mine.flush()
        await theirs.flush()

        async def attempt(at: int) -> float:
            async def open_gate() -> None:
                if cause == "wider window":
                    theirs.set_gate_window(at + 1)
                elif cause == "published version":
                    await other.publish_trainer_version(at + 1)
                else:
                    theirs.restore_dispatch_index(-1)
                await theirs.flush()

            async with blocked(mine.wait_until_admissible, 0) as waiting:
                seconds = await time_to_open(waiting, open_gate)
            if cause == "another step seeded":
                mine.restore_dispatch_index(0)
            else:
                await admit(mine, 0)
            await mine.flush()
            return seconds

        assert await fastest(3, attempt) < 0.5


@every_policy
async def test_shrinking_closes_the_gate_at_once_and_takes_no_admission_back(
    runs: Runs, policy: str
) -> None:
    async with runs.open() as store, runs.open() as other:
        sampler, elsewhere = sampler_of(store, policy, 3), sampler_of(other, policy, 3)
        for _ in range(3):
            await admit(sampler, 0)
        await elsewhere.flush()
        sampler.set_gate_window(0)
        assert await blocks(sampler.admit, 0)
        assert await blocks(elsewhere.admit, 0)
        assert (2, 0) == (elsewhere.dispatch_index, elsewhere.gate_window)
        assert await blocks(sampler.admit, 2)
        await admit(sampler, 3)
        assert 3 == (await store.stats()).dispatch_index


async def test_a_window_that_shrank_after_the_wait_is_seen_by_the_script(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = sampler_of(store, "in_order", 1), sampler_of(other, "in_order", 1)
        await admit(mine, 0)
        await mine.wait_until_admissible(trainer_version_fn=lambda: 0)
        theirs.set_gate_window(0)
        await theirs.flush()
        assert None is await try_to_admit(store, 0)
        assert 0 == (await store.stats()).dispatch_index


@every_policy
def test_a_negative_window_is_refused_where_it_is_set(policy: str) -> None:
    sampler: Any = create_sampler(object(), {"name": policy, WINDOW_KEY[policy]: 1})
    with pytest.raises(ValueError, match="gate_window must be non-negative, got -1"):
        sampler.set_gate_window(-1)


@pytest.mark.parametrize(
    ("value", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
async def test_a_version_function_that_returns_no_version_is_refused(
    runs: Runs, value: Any, error: type[Exception]
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        with pytest.raises(error, match="trainer_version_fn"):
            await sampler.admit(trainer_version_fn=lambda: value)
        assert -1 == (await store.stats()).dispatch_index


async def test_an_error_of_the_version_function_comes_out_as_it_is(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        with pytest.raises(ZeroDivisionError):
            await sampler.admit(trainer_version_fn=lambda: 1 // 0)
        assert 0 == await admit(sampler, 0)


async def test_a_cut_carries_the_version_its_caller_saw(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await admit(sampler, 0)
        await sampler.wait_until_admissible(trainer_version_fn=lambda: 1)
        async with store.mutation() as cut:
            assert 1 == sampler.commit_admission(cut)
        assert 1 == (await store.stats()).dispatch_index


async def test_a_cut_at_a_closed_gate_is_a_conflict_and_leaves_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await admit(sampler, 0)

        async def rush() -> None:
            async with store.mutation() as cut:
                assert 1 == sampler.commit_admission(cut)
                cut.reserve(0, target_step=1)

        async with nothing_changed(runs):
            with pytest.raises(AdmissionConflict, match="gate moved"):
                await rush()
