"""Staleness, selection order and eviction where other asynchronous trainers have gone wrong."""

from __future__ import annotations

import anyio
import pytest

from redis_replay import create_sampler
from redis_replay.errors import BufferFull, UnknownGroup
from redis_replay.selection import lag_metrics
from tests.contract.policies import (
    admit,
    chosen,
    finish,
    ready,
    ready_named,
    sampler_of,
    select,
    states,
)
from tests.contract.waits import Waits
from tests.harness import CAPACITY, Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

LARGEST = 2**53 - 1


async def test_a_group_of_exactly_the_window_is_kept_and_trained_at_both_ends(runs: Runs) -> None:
    """A01: window 2 at version 5, and window 3 at version 1 where the lower edge is 0."""
    async with runs.open() as store:
        weights = {f"g{weight}": weight for weight in range(1, 7)}
        await ready_named(store, weights)
        sampler = sampler_of(store, "windowed", 2)
        assert 2 == await sampler.evict(current_train_weight=5)
        assert ["g3", "g4", "g5", "g6"] == list(await states(store))
        assert 4 == len(await runs.payload_keys())
        meta, groups = await select(sampler, 5, 1, 10)
        assert meta is not None
        assert (["g3", "g4", "g5"], 3) == (meta.extra_info["group_ids"], groups)
        assert [2, 1, 0] == meta.extra_info["lags"]
        assert ["g6"] == await chosen(sampler, 6, 1, 10)
    async with runs.open(run=f"{runs.name}-early") as store:
        group_ids = await ready(store, 0, 0, 1)
        sampler = sampler_of(store, "windowed", 3)
        assert 0 == await sampler.evict(current_train_weight=1)
        assert group_ids == await chosen(sampler, 1, 1, 10)


async def test_a_group_that_aged_while_it_waited_is_not_trained_even_before_it_is_evicted(
    runs: Runs,
) -> None:
    """A02: age counts at selection, not at commit."""
    async with runs.open() as store:
        sampler = sampler_of(store, "windowed", 1)
        await commit_ready(store, 3, group_id="a")
        assert ["a"] == await chosen(sampler, 4, 1, 4)
        await store.buffer.release_training_claims(["a"])
        await commit_ready(store, 3, group_id="b")
        assert (None, 0) == await select(sampler, 5, 1, 4)
        assert 1 == await sampler.evict(current_train_weight=5)
        assert [] == await runs.payload_keys()
        assert (None, 0) == await select(sampler, 5, 1, 4)


DISPATCHED = {"a": 3, "b": 5, "c": 4, "d": 5, "e": 3}


@pytest.mark.parametrize(("freshest", "first", "rest"), [(True, "bdc", "ae"), (False, "abc", "de")])
async def test_order_is_that_of_dispatch_not_of_completion_and_the_surplus_stays(
    runs: Runs, freshest: bool, first: str, rest: str
) -> None:
    """A04: committed in the order e, c, a, d, b."""
    async with runs.open() as store:
        for group_id, weight in DISPATCHED.items():
            await store.buffer.reserve(weight, group_id=group_id)
        for group_id in "ecadb":
            await finish(store, group_id, DISPATCHED[group_id])
        sampler = sampler_of(store, "windowed", 2, sample_freshest_first=freshest)
        assert list(first) == await chosen(sampler, 5, 1, 3)
        assert list(rest) == await chosen(sampler, 5, 1, 8)
        assert (None, 0) == await select(sampler, 5, 1, 8)


ARRIVALS = ("p1", "p2", "c", "b", "a")


@pytest.mark.parametrize("version", [2**21, LARGEST])
@pytest.mark.parametrize("policy", ["windowed", "ready_first", "weight_fifo", "in_order"])
async def test_the_largest_versions_are_exact_and_never_change_the_order(
    runs: Runs, version: int, policy: str
) -> None:
    """A06: order, record, selection and eviction at 2**21 and at the largest version there is."""
    async with runs.open() as store:
        if policy == "in_order":
            await commit_ready(store, version, group_id="older", target_step=version - 1)
        else:
            await commit_ready(store, version - 1, group_id="older")
        for group_id in ARRIVALS:
            await store.buffer.reserve(
                version, group_id=group_id, target_step=version if policy == "in_order" else None
            )
        for group_id in reversed(ARRIVALS):
            await finish(store, group_id, version)
        sampler = sampler_of(store, policy, 0)
        assert (0 if policy == "ready_first" else 1) == await sampler.evict(
            current_train_weight=version
        )
        if policy == "ready_first":
            await store.buffer.remove(["older"])
        meta, _ = await select(sampler, version, 1, 8)
        assert meta is not None
        assert list(ARRIVALS) == meta.extra_info["group_ids"]
        assert [version] * 5 == meta.extra_info["start_weight_versions"]
        assert [0] * 5 == meta.extra_info["lags"]


async def test_the_largest_target_steps_read_back_exactly(runs: Runs) -> None:
    """A06: steps are numbers of the same size."""
    async with runs.open() as store:
        for step in (2**31, LARGEST - 1, LARGEST):
            await commit_ready(store, 0, group_id=f"{step}", target_step=step)
        assert [2**31, LARGEST - 1, LARGEST] == [s.target_step for s in await store.buffer.slots()]
        sampler = sampler_of(store, "in_order", 0)
        assert [f"{LARGEST - 1}"] == await chosen(sampler, LARGEST - 1)
        assert 1 == await store.buffer.count_for_target_step(LARGEST)
        assert [f"{LARGEST}"] == await chosen(sampler, LARGEST)


@pytest.mark.parametrize("number", [2**53, 2**53 + 1])
async def test_a_version_or_step_that_would_be_rounded_is_refused_at_reserve(
    runs: Runs, number: int
) -> None:
    """A06: the limit is a ``ValueError`` and never a rounding."""
    async with runs.open() as store:
        with pytest.raises(ValueError, match=rf"weight_version .*2\*\*53.*{number}"):
            await store.buffer.reserve(number)
        with pytest.raises(ValueError, match=rf"target_step .*2\*\*53.*{number}"):
            await store.buffer.reserve(0, target_step=number)
        with pytest.raises(ValueError, match=rf"current_train_weight .*2\*\*53.*{number}"):
            await chosen(sampler_of(store, "windowed", 0), number)
        assert 0 == await store.buffer.size()


async def test_the_oldest_versions_batch_is_waited_for_before_the_next_one(runs: Runs) -> None:
    """A07."""
    async with runs.open() as store:
        await _oldest_batch_half_done(store)
        sampler = sampler_of(store, "weight_fifo", 1)
        assert (None, 0) == await select(sampler, 3, 2, 2)
        await finish(store, "p2", 2)
        assert ["p1", "p2"] == await chosen(sampler, 3, 2, 2)
        assert ["q1", "q2"] == await chosen(sampler, 3, 2, 2)


async def test_an_unfinished_group_that_left_the_window_holds_the_next_batch_back_no_more(
    runs: Runs,
) -> None:
    """A07, the variant: the trainer has moved on to version 4."""
    async with runs.open() as store:
        await _oldest_batch_half_done(store)
        sampler = sampler_of(store, "weight_fifo", 1)
        assert 1 == await sampler.evict(current_train_weight=4)
        assert ["q1", "q2"] == await chosen(sampler, 4, 2, 2)
        await finish(store, "p2", 2)
        assert (None, 0) == await select(sampler, 4, 1, 2)
        assert 1 == await sampler.evict(current_train_weight=4)
        assert ["q1", "q2"] == list(await states(store))


async def _oldest_batch_half_done(store: object) -> None:
    await commit_ready(store, 2, group_id="p1")
    await store.buffer.reserve(2, group_id="p2")  # type: ignore[attr-defined]
    await ready_named(store, {"q1": 3, "q2": 3})


async def test_finished_work_is_never_thrown_away_for_its_age(runs: Runs) -> None:
    """A08."""
    async with runs.open() as store:
        group_ids = await ready(store, 4, 8, 9, 10)
        sampler = sampler_of(store, "ready_first", 1)
        assert 0 == await sampler.evict(current_train_weight=9)
        assert group_ids[:3] == await chosen(sampler, 9, 1, 4)
        assert group_ids[3:] == await chosen(sampler, 10, 1, 4)
        assert 0 == (await store.stats()).evicted


async def test_when_every_candidate_is_too_old_there_is_no_batch_and_producers_go_on(
    runs: Runs,
) -> None:
    """A09: four places, all taken by groups that the trainer cannot use."""
    async with runs.open(capacity=4) as store:
        await ready(store, 2, 3, 4, 5)
        sampler, waits = sampler_of(store, "windowed", 1), Waits(store)
        has_place, may_commit = anyio.Event(), anyio.Event()

        async def produce() -> None:
            await store.buffer.reserve_when_free(7, group_id="fresh")
            has_place.set()
            await may_commit.wait()
            await finish(store, "fresh", 7)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(produce)
            await waits.begun()
            assert not has_place.is_set()
            assert 4 == await sampler.evict(current_train_weight=7)
            assert (None, 0) == await select(sampler, 7, 1, 4)
            with anyio.fail_after(10):
                await has_place.wait()
            may_commit.set()
        assert ["fresh"] == await chosen(sampler, 7, 1, 4)
        stats = await store.stats()
        assert (4, 4, 1) == (stats.evicted, stats.ends["evicted:stale"], stats.occupancy)
        await ready(store, 7, 7, 7)
        with pytest.raises(BufferFull):
            await store.buffer.reserve(7)


@pytest.mark.parametrize(
    ("policy", "start", "version", "expected"),
    [
        ("windowed", 3, 4, False),
        ("windowed", 3, 5, True),
        ("windowed", 0, 1, False),
        ("in_order", 0, 9, False),
        ("weight_fifo", 0, 9, False),
        ("ready_first", 0, 9, False),
    ],
)
def test_only_an_ungated_rollout_is_ever_given_up(
    policy: str, start: int, version: int, expected: bool
) -> None:
    """A11: every window is 1."""
    sampler = create_sampler(object(), {"name": policy})
    assert expected is sampler.should_abort_inflight(
        start_weight_version=start, current_train_weight=version
    )


async def test_a_rollout_that_was_given_up_commits_too_late_and_leaves_nothing(runs: Runs) -> None:
    """A11: its place is free once, its rows are nowhere."""
    async with runs.open(capacity=2) as store:
        await store.buffer.reserve(3, group_id="late")
        await store.buffer.reserve(5, group_id="other")
        await store.buffer.remove_group("late")
        assert 1 == await store.buffer.size()
        with pytest.raises(UnknownGroup, match="'late'"):
            await store.buffer.commit(
                "late", rows(), start_weight_version=3, end_weight_version=5, fence=1
            )
        assert (1, 1) == (await store.buffer.size(), (await store.stats()).removed)
        await store.buffer.reserve(5, group_id="next")
        assert {"other": "reserved", "next": "reserved"} == await states(store)
        assert [] == await runs.payload_keys()


async def test_lags_are_of_the_selected_groups_and_of_no_other(runs: Runs) -> None:
    """A12: minimum, mean and maximum are three numbers; a dropped group is in none of them."""
    async with runs.open() as store:
        await ready(store, 2, 3, 4, 4, 5)
        sampler = sampler_of(store, "windowed", 2)
        assert 1 == await sampler.evict(current_train_weight=5)
        meta, groups = await select(sampler, 5, 4, 4)
        assert meta is not None
        assert 4 == groups
        assert {"lag_min": 0.0, "lag_mean": 1.0, "lag_max": 2.0} == lag_metrics(meta)
        assert 1 == (await store.stats()).evicted


async def test_a_run_under_ready_first_never_evicts_however_far_it_falls_behind(
    runs: Runs,
) -> None:
    """A08 over many steps: each group is trained exactly once."""
    async with runs.open(capacity=CAPACITY) as store, store.trainer(owner="t") as trainer:
        sampler, producer = (sampler_of(place, "ready_first", 1) for place in (trainer, store))
        trained: list[str] = []
        made: list[str] = []
        for step in range(12):
            await admit(producer, step)
            made += await ready(store, step, step)
            assert 0 == await sampler.evict(current_train_weight=step)
            if step % 3 == 2:
                trained += await chosen(sampler, step, 1, 64)
                await trainer.commit_step(step)
            else:
                await trainer.skip_step(step)
        assert made == trained
        assert (0, 24) == ((await store.stats()).evicted, (await store.stats()).trained)
