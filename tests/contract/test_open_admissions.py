"""Admitted batches without reservations yet: whose they are, and who dispatches them at last."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay import (
    InOrderSampler,
    InOrderSamplerConfig,
    admission,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import (
    AdmissionConflict,
)
from tests.contract.keyspace import control_key
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


def in_order(place: Any, *, lookahead: int = 2) -> InOrderSampler:
    """Return an ``in_order`` sampler on a store or session."""
    sampler = create_sampler(place.buffer, InOrderSamplerConfig(max_lookahead_versions=lookahead))
    assert isinstance(sampler, InOrderSampler)
    return sampler


async def test_an_admission_without_reservations_stays_open_until_they_are_made(
    runs: Runs,
) -> None:
    admissions = control_key(runs, Key.ADMISSIONS)
    async with runs.open() as store, store.rollout(owner="host") as host:
        sampler = in_order(host)
        await sampler.flush()
        async with host.mutation() as cut:
            sampler.commit_admission(cut)
        assert [b"0"] == await runs.client.hkeys(admissions)
        async with host.mutation() as cut:
            cut.reserve(0, target_step=0)
        assert [] == await runs.client.hkeys(admissions)


async def test_an_index_whose_admitter_was_cancelled_is_dispatched_by_the_next_cut(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.rollout(owner="host") as host:
        sampler = in_order(host, lookahead=0)
        assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
        host.buffer.admission.undelivered.append(0)  # as a cancelled caller leaves it
        await sampler.wait_until_admissible(trainer_version_fn=lambda: 0)

        async def change_of_mind() -> None:
            async with host.mutation() as cut:
                assert 0 == sampler.commit_admission(cut)
                _ = 1 // 0

        with pytest.raises(ZeroDivisionError):
            await change_of_mind()
        async with host.mutation() as cut:
            assert 0 == sampler.commit_admission(cut)
            cut.reserve(0, group_id="g", target_step=0)
        assert 0 == (await store.stats()).dispatch_index
        assert [] == await runs.client.hkeys(control_key(runs, Key.ADMISSIONS))
        await store.publish_trainer_version(1)
        async with host.mutation() as cut:
            assert 1 == sampler.commit_admission(cut)
        assert 1 == (await store.stats()).dispatch_index


async def test_a_cut_never_takes_the_index_that_another_caller_was_given(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="host") as host:
        sampler = in_order(host)
        await sampler.flush()

        async def overtaken() -> None:
            async with host.mutation() as cut:
                assert 0 == sampler.commit_admission(cut)
                cut.reserve(0, target_step=0)
                assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)

        with pytest.raises(AdmissionConflict, match="cursor"):
            await overtaken()
        assert 0 == await store.buffer.size()


async def test_an_open_admission_of_a_host_that_left_is_given_out_first(runs: Runs) -> None:
    async with runs.open() as store:
        async with store.rollout(owner="gone") as host:
            sampler = in_order(host)
            assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
            assert 1 == await sampler.admit(trainer_version_fn=lambda: 0)
        async with store.rollout(owner="next") as rollout:
            follower = in_order(rollout)
            await follower.flush()
            for expected in (0, 1, 2):
                async with rollout.mutation() as cut:
                    assert expected == follower.commit_admission(cut)
                    cut.reserve(0, target_step=expected)
        assert [0, 1, 2] == [slot.target_step for slot in await store.buffer.slots()]
        assert 2 == (await store.stats()).dispatch_index


async def test_a_step_that_is_complete_already_gets_no_group_twice(runs: Runs) -> None:
    size = 8
    async with runs.open(groups_per_step=size, capacity=64) as store:
        for _ in range(size):
            await commit_ready(store, 29, target_step=30)
        await store.publish_trainer_version(30)
        sampler = in_order(store, lookahead=1)
        sampler.set_dispatch_index(30)
        dispatched = {}
        for _ in range(2):
            await sampler.wait_until_admissible(trainer_version_fn=lambda: 30)
            async with store.mutation() as cut:
                stamp = sampler.commit_admission(cut)
                assert stamp is not None
                dispatched[stamp] = size - await store.buffer.count_for_target_step(stamp)
                for _ in range(dispatched[stamp]):
                    cut.reserve(30, target_step=stamp)
        assert {30: 0, 31: size} == dispatched
        counts = [await store.buffer.count_for_target_step(step) for step in (29, 30, 31, 32)]
        assert [0, size, size, 0] == counts


async def test_indexes_that_were_dispatched_are_not_remembered_for_ever(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "_MOST_GIVEN", 4)
    async with runs.open() as store:
        sampler = in_order(store, lookahead=99)
        for index in range(12):
            assert index == await sampler.admit(trainer_version_fn=lambda: 0)
            if index != 3:
                await store.buffer.reserve(0, target_step=index)
        assert 3 in store.buffer.admission.given
        assert len(store.buffer.admission.given) <= 6
        assert 12 == await sampler.admit(trainer_version_fn=lambda: 0)
