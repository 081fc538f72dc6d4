"""The dispatch cursor: how it is read, seeded, kept, and never moved backwards."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from redis_replay import create_sampler
from redis_replay._redis.run_scripts import SetCursor, SetWindow
from redis_replay.errors import CursorConflict, StoreUnavailable
from tests.contract.keyspace import nothing_changed
from tests.contract.policies import GATED, WINDOW_KEY, admit, admit_all, blocks, sampler_of
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

every_policy = pytest.mark.parametrize("policy", ["windowed", *GATED])


def fail_once(store: Any, script: type[Any]) -> None:
    """Let the next call of a script find no server."""
    gateway = store.buffer.session.link.gateway
    call, failures = gateway.call, [StoreUnavailable("no server")]

    async def failing(script_call: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(script_call, script) and failures:
            raise failures.pop()
        return await call(script_call, *arguments, **options)

    gateway.call = failing


async def stored_cursor(store: Any) -> int:
    """Return the cursor as the run holds it."""
    cursor: int = (await store.stats()).dispatch_index
    return cursor


async def test_before_the_first_admission_it_is_minus_one(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        assert -1 == sampler.dispatch_index
        await sampler.flush()
        assert (-1, -1) == (sampler.dispatch_index, await stored_cursor(store))


async def test_each_admission_moves_it_by_exactly_one(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 3)
        for expected in range(4):
            assert expected == await admit(sampler, 0)
            assert (expected, expected) == (sampler.dispatch_index, await stored_cursor(store))


async def test_a_reader_answers_from_the_newest_reply_and_is_brought_up_to_date(
    runs: Runs,
) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = sampler_of(store, "in_order", 3), sampler_of(other, "in_order", 3)
        await theirs.flush()
        await admit(mine, 0)
        assert -1 == theirs.dispatch_index
        await theirs.refresh()
        assert 0 == theirs.dispatch_index
        assert 1 == await admit(theirs, 0)
        await admit(mine, 0)
        assert (2, 1) == (mine.dispatch_index, theirs.dispatch_index)


async def test_every_reply_about_the_run_carries_the_cursor(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = sampler_of(store, "in_order", 3), sampler_of(other, "in_order", 3)
        await theirs.flush()
        await admit(mine, 0)
        await other.buffer.reserve(0)
        assert 0 == theirs.dispatch_index


@pytest.mark.parametrize(("version", "cursor"), [(0, -1), (1, 0), (100, 99)])
async def test_resuming_from_a_trainer_version_gives_the_next_batch_that_index(
    runs: Runs, version: int, cursor: int
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        sampler.set_dispatch_index(version)
        assert cursor == sampler.dispatch_index
        await sampler.flush()
        assert cursor == await stored_cursor(store)
        assert version == await admit(sampler, version)


@pytest.mark.parametrize("cursor", [-1, 0, 7])
async def test_restoring_sets_the_exact_cursor(runs: Runs, cursor: int) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        sampler.restore_dispatch_index(cursor)
        assert cursor + 1 == await admit(sampler, cursor + 1)


@every_policy
def test_impossible_seeds_are_refused_where_they_are_set(policy: str) -> None:
    sampler: Any = create_sampler(object(), {"name": policy, WINDOW_KEY[policy]: 1})
    with pytest.raises(ValueError, match=r"resume_from_trainer_version must .*got -1"):
        sampler.set_dispatch_index(-1)
    with pytest.raises(ValueError, match=r"dispatch_index must be at least -1, got -2"):
        sampler.restore_dispatch_index(-2)


@every_policy
async def test_seeding_sends_nothing_until_the_next_awaited_call(runs: Runs, policy: str) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, policy, 0)
        async with nothing_changed(runs):
            sampler.set_dispatch_index(4)
            sampler.restore_dispatch_index(6)
            assert (6, -1) == (sampler.dispatch_index, await stored_cursor(store))
        await sampler.evict(current_train_weight=0)
        assert (6, 6) == (sampler.dispatch_index, await stored_cursor(store))


@pytest.mark.parametrize("verb", ["select", "evict", "wait_until_admissible", "flush"])
async def test_a_staged_seed_is_written_before_the_next_call_does_anything_else(
    runs: Runs, verb: str
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 1)
        sampler.set_dispatch_index(5)
        sampler.set_gate_window(6)
        arguments: dict[str, dict[str, Any]] = {
            "select": {"current_train_weight": 0, "min_prompt_groups": 1, "max_prompt_groups": 1},
            "evict": {"current_train_weight": 0},
            "wait_until_admissible": {"trainer_version_fn": lambda: 0},
            "flush": {},
        }
        await getattr(sampler, verb)(**arguments[verb])
        stats = await store.stats()
        assert (4, 6) == (stats.dispatch_index, stats.gate_window)


async def test_a_run_that_never_admitted_takes_any_seed_the_last_one_wins(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await commit_ready(store, 0, target_step=50)
        for cursor in (99, 30, 98):
            sampler.restore_dispatch_index(cursor)
            await sampler.flush()
            assert cursor == await stored_cursor(store)
        sampler.set_dispatch_index(52)
        sampler.set_dispatch_index(51)
        assert 51 == await admit(sampler, 51)


async def test_after_the_first_admission_resuming_changes_nothing_and_logs_both_numbers(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 3)
        assert [0, 1] == [await admit(sampler, 0) for _ in range(2)]
        sampler.set_dispatch_index(41)
        with caplog.at_level(logging.WARNING, logger="redis_replay"):
            await sampler.flush()
        [message] = [r.getMessage() for r in caplog.records if "cursor" in r.getMessage()]
        assert "stays at 1" in message
        assert "seed 40" in message
        assert (1, 1) == (sampler.dispatch_index, await stored_cursor(store))
        assert 2 == await admit(sampler, 0)


async def test_a_seed_that_says_what_the_run_holds_is_taken_without_a_word(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 3)
        assert 0 == await admit(sampler, 0)
        async with nothing_changed(runs):
            sampler.restore_dispatch_index(0)
            await sampler.flush()
            sampler.set_dispatch_index(1)
            await sampler.flush()
        assert [] == [r for r in caplog.records if "cursor" in r.getMessage()]


@pytest.mark.parametrize("cursor", [-1, 0, 2, 9])
async def test_after_the_first_admission_another_exact_cursor_is_refused_with_both_numbers(
    runs: Runs, cursor: int
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 3)
        assert [0, 1] == [await admit(sampler, 0) for _ in range(2)]
        sampler.restore_dispatch_index(cursor)
        async with nothing_changed(runs):
            with pytest.raises(CursorConflict, match=rf"index 1.* to {cursor}") as refused:
                await sampler.flush()
        assert (cursor, 1) == (refused.value.requested, refused.value.stored)
        assert 1 == sampler.dispatch_index
        assert 2 == await admit(sampler, 0)


async def test_the_cursor_of_a_run_outlives_every_process(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 1)
        assert [0, 1] == [await admit(sampler, 0) for _ in range(2)]
        for step in range(2):
            await store.buffer.reserve(0, target_step=step)
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 1)
        await sampler.flush()
        assert 1 == sampler.dispatch_index
        assert await blocks(sampler.admit, 0)
        assert 2 == await admit(sampler, 1)


async def test_a_seed_survives_the_process_that_wrote_it(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 1)
        sampler.set_dispatch_index(20)
        await sampler.flush()
    async with runs.open() as store:
        assert [20, 21] == await admit_all(sampler_of(store, "in_order", 1), 20)


async def test_tasks_that_share_a_sampler_all_admit_after_its_seed(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        sampler.set_dispatch_index(100)
        given: list[int] = []
        gateway: Any = store.buffer.session.link.gateway
        call = gateway.call

        async def dispatch() -> None:
            given.append(await sampler.admit(trainer_version_fn=lambda: 200))

        async def late_seed(script_call: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(script_call, SetCursor):
                with anyio.move_on_after(0.2):
                    while not given:
                        await anyio.lowlevel.checkpoint()
            return await call(script_call, *arguments, **options)

        gateway.call = late_seed
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(dispatch)
        assert [100, 101, 102, 103] == sorted(given)


async def test_a_seed_that_found_no_server_is_written_by_the_next_call(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        sampler.set_dispatch_index(7)
        fail_once(store, SetCursor)
        with pytest.raises(StoreUnavailable):
            await admit(sampler, 7)
        assert 6 == sampler.dispatch_index
        assert 7 == await admit(sampler, 7)


async def test_a_window_that_found_no_server_is_written_by_the_next_call(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await sampler.flush()
        sampler.set_gate_window(2)
        fail_once(store, SetWindow)
        with pytest.raises(StoreUnavailable):
            await admit(sampler, 0)
        assert 2 == sampler.gate_window
        assert [0, 1, 2] == await admit_all(sampler, 0)
        assert 2 == (await store.stats()).gate_window


async def test_a_window_set_while_an_older_one_found_no_server_is_the_one_that_counts(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "in_order", 0)
        await sampler.flush()
        gateway: Any = store.buffer.session.link.gateway
        call = gateway.call

        async def overtaken(script_call: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(script_call, SetWindow) and script_call.gate_window == 2:
                sampler.set_gate_window(1)
                raise StoreUnavailable("no server")
            return await call(script_call, *arguments, **options)

        gateway.call = overtaken
        sampler.set_gate_window(2)
        with pytest.raises(StoreUnavailable):
            await sampler.flush()
        await sampler.flush()
        assert (1, 1) == (sampler.gate_window, (await store.stats()).gate_window)


async def test_a_staged_window_is_the_one_in_force_here_before_it_is_written(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        mine, theirs = sampler_of(store, "in_order", 1), sampler_of(other, "in_order", 1)
        await theirs.flush()
        mine.set_gate_window(3)
        assert (3, 1) == (mine.gate_window, (await other.stats()).gate_window)
        await mine.flush()
        assert 3 == (await other.stats()).gate_window
        await theirs.refresh()
        assert 3 == theirs.gate_window


async def test_windowed_takes_seeds_and_moves_no_cursor_of_its_own(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = sampler_of(store, "windowed", 1)
        sampler.set_dispatch_index(5)
        for _ in range(3):
            assert None is await admit(sampler, 0)
        async with store.mutation() as cut:
            assert None is sampler.commit_admission(cut)
            cut.reserve(0)
        assert (4, 4) == (sampler.dispatch_index, await stored_cursor(store))
