"""The blocking API: the same names, results and errors, from ordinary threads."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fakeredis
import numpy as np
import pytest
import redis.asyncio

import redis_replay
from redis_replay import sync
from redis_replay.errors import (
    AdmissionConflict,
    BufferFull,
    ClaimLost,
    ConfigurationError,
    CutExpired,
    DataExhausted,
    StepStarved,
    StoreClosed,
    UnacknowledgedRanks,
    UnknownGroup,
)
from tests.contract.prompt_groups import record_of
from tests.harness import GROUP_SIZE, rows

Open = Callable[..., sync.ReplayStore]
ANSWER_SECONDS = 20.0


@pytest.fixture(params=["fake", "real"])
def opened(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens blocking stores of one fresh run; it is audited at the end."""
    name = f"test-{secrets.token_hex(6)}"
    if request.param == "fake":
        client: Any = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
    else:
        client = redis.asyncio.Redis.from_url(request.getfixturevalue("real_server"))

    def open_one(**options: Any) -> sync.ReplayStore:
        wanted = {"run": name, "capacity": 64, "group_size": GROUP_SIZE, **options}
        return sync.open_store(client=client, **wanted)

    yield open_one
    with open_one(capacity=None) as store:
        assert () == store.audit().violations
        if slots := store.buffer.slots():
            store.buffer.remove([slot.group_id for slot in slots])


def own_threads() -> int:
    """Return how many threads of stores there are."""
    return sum(thread.name.startswith("redis-replay") for thread in threading.enumerate())


def commit_ready(place: Any, group_id: str, *, step: int | None = None) -> None:
    """Reserve and commit a group with the weights of version 0."""
    place.buffer.reserve(0, group_id=group_id, target_step=step)
    place.buffer.commit(group_id, rows(5), start_weight_version=0, end_weight_version=0)


def test_a_training_loop_needs_no_event_loop(opened: Open) -> None:
    with opened(groups_per_step=2) as store, store.rollout(owner="host") as host:
        with store.trainer(owner="job") as trainer:
            config = sync.InOrderSamplerConfig(max_lookahead_versions=1)
            dispatching = sync.create_sampler(host.buffer, config)
            training = sync.create_sampler(trainer.buffer, config)
            for step in range(3):
                dispatching.wait_until_admissible(
                    trainer_version_fn=lambda: trainer.trainer_version
                )
                with host.mutation() as cut:
                    assert step == dispatching.commit_admission(cut)
                    for at in range(2):
                        cut.reserve(step, target_step=step, prompt_ref=b"p%d" % at)
                    cut.set_loader_state(b"%d" % step)
                for made in cut.reservations:
                    host.buffer.commit(
                        made.group_id,
                        rows(step),
                        start_weight_version=step,
                        end_weight_version=step,
                    )
                meta, groups = trainer.select(training, min_prompt_groups=2, max_prompt_groups=2)
                trainer.samples.put_samples(
                    meta.sample_ids, fields={"advantage": [0.5] * meta.size}
                )
                read = trainer.samples.get_samples(meta, select_fields=["input_ids", "advantage"])
                np.testing.assert_array_equal([step] * 3, read[0]["input_ids"])
                assert (2, 0.5) == (groups, read[0]["advantage"])
                assert meta.extra_info["group_ids"] == [*trainer.commit_step(step).trained]
            assert step == dispatching.dispatch_index
            with store.mutation() as cut:
                assert b"2" == cut.loader_state
        assert (3, 6) == (store.trainer_version, store.stats().trained)


def test_ranks_filters_and_tickets_work_as_they_do_in_an_event_loop(opened: Open) -> None:
    with opened() as store:
        with store.rollout(owner="host") as host:
            host.buffer.reserve(0, group_id="left", prompt_ref=b"p")
            filtering = host.filter(sync.DynamicSampling())
            host.buffer.reserve(0, group_id="flat")
            outcome = filtering.commit(
                "flat", record_of([1.0, 1.0]), start_weight_version=0, end_weight_version=0
            )
            assert not outcome.kept
        with store.rollout(owner="next") as host:
            [ticket] = host.take_tickets(max_tickets=9, weight_version=0)
            assert ("left", b"p") == (ticket.group_id, ticket.prompt_ref)
            host.buffer.abort("left")
        commit_ready(store, "g")
        with store.trainer(owner="job", world=2) as trainer:
            trainer.buffer.claim_for_training(["g"])
            [batch] = trainer.batches
            ranks = [
                store.trainer_rank(owner="job", epoch=trainer.epoch, rank=at) for at in range(2)
            ]
            with pytest.raises(UnacknowledgedRanks):
                trainer.commit_step(0)
            for at, rank in enumerate(ranks):
                assert [f"g_g{at}"] == rank.read_slice(batch).sample_ids
                rank.acknowledge(batch)
            assert ("g",) == trainer.commit_step(0).trained


def test_errors_are_those_of_the_event_loop_and_deadlines_pass_through(opened: Open) -> None:
    with opened(capacity=1, groups_per_step=1) as store:
        store.buffer.reserve(0, group_id="g")
        with pytest.raises(BufferFull) as full:
            store.buffer.reserve(0)
        assert (1, 1) == (full.value.capacity, full.value.occupancy)
        with pytest.raises(UnknownGroup, match="'ghost'"):
            store.buffer.abort("ghost")
        with pytest.raises(ValueError, match="weight_version"):
            store.buffer.reserve(-1)
        with pytest.raises(TypeError):
            store.buffer.reserve()  # type: ignore[call-arg]
        with store.trainer(owner="job") as trainer:
            sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)
            with pytest.raises(StepStarved, match=r"within 0\.1 s"):
                trainer.select(
                    sampler, min_prompt_groups=1, max_prompt_groups=1, deadline_seconds=0.1
                )
            with store.trainer(owner="other", takeover=True), pytest.raises(ClaimLost):
                trainer.commit_step(0)


def test_a_cut_that_fails_leaves_nothing(opened: Open) -> None:
    def fail() -> None:
        with store.mutation() as cut:
            seen.append(cut)
            cut.reserve(0)
            raise KeyError

    def lose() -> None:
        with store.mutation() as cut:
            sampler.commit_admission(cut)
            cut.reserve(0)
            assert 0 == sampler.admit(trainer_version_fn=lambda: 0)

    seen: list[sync.DataPlaneMutationCut] = []
    with opened() as store:
        with pytest.raises(KeyError):
            fail()
        with pytest.raises(CutExpired):
            seen[0].reserve(0)
        sampler = sync.InOrderSampler(store.buffer, max_lookahead_versions=0)
        sampler.flush()
        with pytest.raises(AdmissionConflict):
            lose()
        assert 0 == store.buffer.size()


def test_one_object_stands_for_one_object(opened: Open) -> None:
    with opened() as store:
        assert store.buffer is store.buffer
        sampler = sync.create_sampler(store.buffer, {"name": "windowed"})
        assert isinstance(sampler, sync.WindowedSampler)
        assert isinstance(sampler, redis_replay.PromptGroupSampler)
        assert isinstance(store, sync.ReplayStore)
        assert sampler.supports_training_claims
        with pytest.raises(AttributeError):
            sampler.max_staleness_versions = 9


def test_calls_from_many_threads_are_safe(opened: Open) -> None:
    names = [f"g{at}" for at in range(40)]
    with opened() as store, store.rollout(owner="host") as host, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: commit_ready(host, name), names))
        with store.trainer(owner="job") as trainer:
            sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)

            def select(_: int) -> list[str]:
                meta, _ = trainer.select(sampler, min_prompt_groups=5, max_prompt_groups=5)
                return list(meta.extra_info["group_ids"])

            taken = [name for part in pool.map(select, range(8)) for name in part]
            assert sorted(names) == sorted(taken)
            assert 40 == len(trainer.commit_step(0).trained)


def test_a_wait_in_one_thread_is_ended_by_a_call_in_another(opened: Open) -> None:
    with opened() as store, store.trainer(owner="job") as trainer:
        sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(trainer.select, sampler, min_prompt_groups=1, max_prompt_groups=1)
            commit_ready(store, "g")
            meta, _ = waiting.result(ANSWER_SECONDS)
            assert ["g"] == meta.extra_info["group_ids"]


def test_closing_a_store_wakes_who_waits_in_another_thread(opened: Open) -> None:
    with ThreadPoolExecutor(1) as pool:
        with opened(capacity=1) as store:
            store.buffer.reserve(0)
            waiting = pool.submit(store.buffer.reserve_when_free, 0)
        with pytest.raises(StoreClosed):
            waiting.result(ANSWER_SECONDS)


def test_a_closed_or_unopened_store_says_so(opened: Open) -> None:
    store = opened()
    with pytest.raises(StoreClosed, match="not open"):
        store.stats()
    with store, store.trainer(owner="job") as trainer:
        store.close()
        store.close()
        for call in (store.stats, trainer.requeue, trainer.buffer.slots):
            with pytest.raises(StoreClosed):
                call()
    with pytest.raises(StoreClosed, match="opened once"), store:
        pass


def test_a_callback_may_read_properties_and_make_no_call(opened: Open) -> None:
    with opened() as store:
        sampler = sync.InOrderSampler(store.buffer, max_lookahead_versions=1)
        assert 0 == sampler.admit(trainer_version_fn=lambda: store.trainer_version)
        with pytest.raises(ConfigurationError, match="callback"):
            sampler.admit(trainer_version_fn=lambda: store.stats().trainer_version)


def test_objects_of_two_stores_are_not_mixed(opened: Open) -> None:
    with opened() as store, opened() as other:
        sampler = sync.WindowedSampler(other.buffer, max_staleness_versions=1)
        with store.trainer(owner="job") as trainer, pytest.raises(ValueError, match="another open"):
            trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)
        with pytest.raises(TypeError, match="gave out"):
            sync.WindowedSampler(None, max_staleness_versions=1)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="'with'"), store.buffer:  # type: ignore[attr-defined]
            pass


def test_a_run_that_cannot_be_opened_leaves_no_thread(opened: Open) -> None:
    before = own_threads()
    with opened():
        assert before < own_threads()
    with pytest.raises(ConfigurationError, match="group_size"), opened(group_size=9):
        pass
    assert before == own_threads()


class FirstSampler(redis_replay.WindowedSampler):
    """A sampler of a program's own."""

    supports_buffer_checkpoint = True
    supports_training_claims = True

    async def first(self) -> str:
        """Return the first live group."""
        return (await self._buffer.slots())[0].group_id


def test_a_custom_sampler_has_its_own_methods_too(opened: Open) -> None:
    with opened() as store:
        commit_ready(store, "g")
        config = sync.CustomSamplerConfig(
            name="custom", target=f"{__name__}:FirstSampler", max_staleness_versions=1
        )
        sampler: Any = sync.create_sampler(store.buffer, config)
        assert "g" == sampler.first()
        meta, _ = sampler.select(current_train_weight=0, min_prompt_groups=1, max_prompt_groups=1)
        assert ["g"] == meta.extra_info["group_ids"]
        store.buffer.release_training_claims(["g"])


def test_the_end_of_the_data_is_told(opened: Open) -> None:
    with opened(groups_per_step=2) as store, store.rollout(owner="host") as host:
        sampler = sync.create_sampler(host.buffer, sync.InOrderSamplerConfig())
        sampler.wait_until_admissible(trainer_version_fn=lambda: 0)
        with host.mutation() as cut:
            cut.reserve(0, target_step=sampler.commit_admission(cut), group_id="g")
            cut.set_loader_state(b"1", exhausted=True)
        host.buffer.commit("g", rows(), start_weight_version=0, end_weight_version=0)
        with store.trainer(owner="job") as trainer:
            training = sync.create_sampler(trainer.buffer, sync.InOrderSamplerConfig())
            meta, _ = trainer.select(training, min_prompt_groups=2, max_prompt_groups=2)
            assert ["g"] == meta.extra_info["group_ids"]
            trainer.commit_step(0)
            with pytest.raises(DataExhausted):
                trainer.select(training, min_prompt_groups=2, max_prompt_groups=2)
        assert store.resume().exhausted


class UntoldSampler(redis_replay.WindowedSampler):
    """Declares nothing."""


def test_nothing_is_kept_or_restored_under_a_sampler_that_does_not_say_so(opened: Open) -> None:
    config = {
        "name": "custom",
        "target": f"{__name__}:UntoldSampler",
        "max_staleness_versions": 1,
    }
    with opened() as store:
        store.checkpoints.create("kept")
        with pytest.raises(ConfigurationError, match="supports_buffer_checkpoint = True"):
            store.checkpoints.require_sampler(config)
        for call in (store.checkpoints.create, store.checkpoints.restore):
            with pytest.raises(ConfigurationError, match="supports_buffer_checkpoint = True"):
                call("kept")
        assert 1 == store.run.store_epoch


def test_a_run_is_deleted_at_the_end_where_it_was_asked_for(opened: Open) -> None:
    with opened(discard_on_exit=True) as store:
        commit_ready(store, "g")
        lineage = store.run.lineage
    with opened() as store:
        assert lineage != store.run.lineage
        commit_ready(store, "h")
        store.buffer.quarantine(["h"])
        assert 1 == store.buffer.reinstate(["h"])
