"""A cut whose dispatcher was cancelled: applied wholly or not at all, and never stranded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redis_replay import InOrderSamplerConfig, create_sampler
from tests.contract.interruptions import Break, Interruption
from tests.contract.keyspace import collected
from tests.harness import Runs, rows

pytestmark = pytest.mark.anyio

CANCELLED = (Break.CANCELLED_BEFORE, Break.CANCELLED_AFTER)
PLACES = ("store", "trainer", "rollout")
EXCHANGES = 4
"""Of a cut at most: a look for open admissions, the admission state, the script; and one more."""

every_place = pytest.mark.parametrize("place", PLACES)
every_cancellation = pytest.mark.parametrize("kind", CANCELLED)
every_exchange = pytest.mark.parametrize("at", range(1, EXCHANGES + 1))


@asynccontextmanager
async def opened(runs: Runs, place: str) -> AsyncIterator[tuple[Any, Any, Any]]:
    """Open a store, a place of it that dispatches, and a sampler there that is bound already."""
    async with runs.open() as store, store.rollout(owner="r") as r, store.trainer(owner="t") as t:
        at = {"store": store, "trainer": t, "rollout": r}[place]
        sampler = create_sampler(at.buffer, InOrderSamplerConfig(max_lookahead_versions=1))
        await sampler.flush()
        async with at.mutation() as cut:  # so that the server knows the script
            cut.set_loader_state(b"0")
        yield store, at, sampler


async def interrupted(
    store: Any, kind: Break, at: int, work: Callable[[], Awaitable[None]]
) -> bool:
    """Cancel a piece of work at an exchange; return whether it came to its end all the same."""
    interruption = Interruption(store, at=at, kind=kind)
    with interruption.scope:
        await work()
    interruption.end()
    if at in (1, EXCHANGES):
        assert interruption.struck == (at == 1)
    await collected(store)
    return not interruption.scope.cancelled_caught


@every_place
@every_cancellation
@every_exchange
async def test_what_a_cancelled_cut_has_reserved_is_handed_out_by_its_session(
    runs: Runs, place: str, kind: Break, at: int
) -> None:
    async with opened(runs, place) as (store, host, sampler):
        cut = host.mutation()

        async def dispatch() -> None:
            async with cut:
                sampler.commit_admission(cut)
                cut.reserve(0, group_id="g", target_step=0, prompt_ref=b"prompt")
                cut.set_loader_state(b"1")

        await interrupted(store, kind, at, dispatch)
        learned = [made.group_id for made in cut.reservations]
        found = await host.buffer.take_tickets(max_tickets=9, weight_version=0)
        applied = [slot.group_id for slot in await store.buffer.slots()]
        assert applied == learned + [made.group_id for made in found]
        assert [b"prompt"] * len(found) == [made.prompt_ref for made in found]
        assert len(applied) - 1 == (await store.stats()).dispatch_index
        async with host.mutation() as later:
            assert (b"1" if applied else b"0") == later.loader_state
        for group_id in applied:
            await host.buffer.commit(group_id, rows(), start_weight_version=0, end_weight_version=0)
        assert [] == await host.buffer.take_tickets(max_tickets=9, weight_version=0)


@every_place
@every_cancellation
@every_exchange
async def test_the_index_of_a_cancelled_cut_is_dispatched_by_the_next_one(
    runs: Runs, place: str, kind: Break, at: int
) -> None:
    async with opened(runs, place) as (store, host, sampler):

        async def admit() -> None:
            async with host.mutation() as cut:
                sampler.commit_admission(cut)

        learned = await interrupted(store, kind, at, admit)
        async with host.mutation() as later:
            assert int(learned) == sampler.commit_admission(later)
        assert int(learned) == (await store.stats()).dispatch_index


@every_place
@every_cancellation
@every_exchange
async def test_an_index_that_was_kept_for_a_cancelled_cut_is_kept_for_the_next_one(
    runs: Runs, place: str, kind: Break, at: int
) -> None:
    async with opened(runs, place) as (store, host, sampler):
        assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
        host.buffer.admission.put_back(0)  # as a caller leaves it who never received it

        async def dispatch() -> None:
            async with host.mutation() as cut:
                sampler.commit_admission(cut)
                cut.reserve(0, group_id="g", target_step=0)

        await interrupted(store, kind, at, dispatch)
        dispatched = len(await store.buffer.slots())
        async with host.mutation() as later:
            assert dispatched == sampler.commit_admission(later)
