"""Damaged groups are taken out of training by the call that finds them, and named."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from redis_replay import InOrderSamplerConfig, Rule, Selection, create_sampler
from redis_replay._redis.keys import Key
from redis_replay.errors import (
    ClaimMismatch,
    PayloadCorrupted,
    PayloadDamaged,
    PayloadMissing,
    SchemaMismatch,
    StepStarved,
    UnknownGroup,
)
from redis_replay.types import GroupState
from tests.contract.damaging import commit_tokens, damage, samples_of, states
from tests.contract.keyspace import control_key, session_of
from tests.harness import GROUP_SIZE, Runs, commit_ready

pytestmark = pytest.mark.anyio


HOW = {
    "flipped": PayloadCorrupted,
    "short": PayloadMissing,
    "gone": PayloadMissing,
    "no record": PayloadMissing,
    "record": PayloadCorrupted,
}


@pytest.mark.parametrize(
    ("how", "claimed"),
    [*((how, False) for how in HOW), *((how, True) for how in ("flipped", "short", "gone"))],
)
async def test_a_damaged_group_is_quarantined_by_the_read_that_finds_it(
    runs: Runs, how: str, claimed: bool
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        for name in ("first", "bad", "last"):
            await commit_tokens(store, name)
        if claimed:
            await trainer.buffer.claim_for_training(["first", "bad", "last"])
        await damage(runs, "bad", how=how)
        with pytest.raises(HOW[how], match="quarantined: bad") as refused:
            await trainer.samples.get_samples(samples_of("first", "bad", "last"))
        error = refused.value
        assert isinstance(error, PayloadDamaged)
        assert ("bad", ("bad",)) == (error.group_id, error.quarantined)
        assert ("ids" if how == "flipped" else None) == error.field
        found = await states(store)
        assert {"first", "last"} == {name for name in found if found[name] != "quarantined"}
        rest = await trainer.samples.get_samples(samples_of("first", "last"))
        assert 2 * GROUP_SIZE == len(rest)
        if claimed:
            assert ("first", "last") == (await trainer.commit_step(0)).trained
        await store.buffer.remove(["bad"])


async def test_all_damaged_groups_of_a_read_are_quarantined_and_named(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        names = ["a", "b", "c", "d"]
        for name in names:
            await commit_tokens(store, name)
        batch = await trainer.buffer.claim_for_training(names)
        await damage(runs, "b")
        await damage(runs, "d", how="gone")
        with pytest.raises(PayloadDamaged) as refused:
            await trainer.samples.get_samples(batch)
        assert {"b", "d"} == set(refused.value.quarantined)
        rest = batch.drop(samples_of(*refused.value.quarantined))
        assert rest is not None
        assert 2 * GROUP_SIZE == len(await trainer.samples.get_samples(rest))
        assert ("a", "c") == (await trainer.commit_step(0)).trained
        await store.buffer.remove(["b", "d"])


async def test_groups_without_records_are_quarantined_by_the_claim_that_needs_them(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        names = ["a", "b", "c", "d"]
        for name in names:
            await commit_tokens(store, name)
        await damage(runs, "a", how="record")
        await damage(runs, "c", how="no record")
        with pytest.raises(PayloadDamaged, match="quarantined: a, c") as refused:
            await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 0, 4, 4))
        assert ("a", "c") == refused.value.quarantined
        meta, groups = await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 0, 1, 4))
        assert meta is not None
        assert (["b", "d"], 2) == (meta.extra_info["group_ids"], groups)
        assert ("b", "d") == (await trainer.commit_step(0)).trained
        await store.buffer.remove(["a", "c"])


async def test_a_claim_of_damaged_groups_alone_is_over(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        await trainer.buffer.claim_for_training(["a"])
        await damage(runs, "a")
        with pytest.raises(PayloadCorrupted):
            await trainer.samples.get_samples(["a_g0", "a_g1"])
        assert [] == await trainer.buffer.training_owned_group_ids()
        with pytest.raises(ClaimMismatch, match="no claims"):
            await trainer.commit_step(0)
        await trainer.skip_step(0)
        await commit_tokens(store, "b")
        meta, _ = await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 1, 1, 1))
        assert meta is not None
        assert ["b"] == meta.extra_info["group_ids"]


async def test_an_unread_column_may_be_damaged_and_a_row_read_alone_is_unverified(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await commit_tokens(store, "a")
        await damage(runs, "a")
        await store.samples.get_samples(["a_g0", "a_g1"], select_fields=["reward"])
        await store.samples.get_samples(["a_g0"])
        assert {"a": "ready"} == await states(store)


async def test_another_one_s_claim_is_reported_and_left_to_its_holder(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        store.trainer(owner="a") as trainer,
        second.trainer(owner="b") as other,
    ):
        await commit_tokens(store, "a")
        await trainer.buffer.claim_for_training(["a"])
        await damage(runs, "a")
        with pytest.raises(PayloadCorrupted) as refused:
            await other.samples.get_samples(samples_of("a"))
        assert () == refused.value.quarantined
        assert {"a": "claimed"} == await states(store)
        with pytest.raises(PayloadCorrupted) as found:
            await trainer.samples.get_samples(samples_of("a"))
        assert ("a",) == found.value.quarantined


async def test_a_quarantined_group_is_reported_again_and_stays_so(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        await damage(runs, "a")
        for quarantined in (("a",), (), ()):
            with pytest.raises(PayloadCorrupted) as refused:
                await trainer.samples.get_samples(samples_of("a"))
            assert quarantined == refused.value.quarantined
        assert {"a": "quarantined"} == await states(store)


async def test_a_rank_quarantines_what_its_trainer_has_claimed(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as elsewhere,
        store.trainer(owner="job", world=2) as trainer,
    ):
        for name in ("a", "b"):
            await commit_tokens(store, name)
        await trainer.buffer.claim_for_training(["a", "b"])
        [batch] = trainer.batches
        rank = elsewhere.trainer_rank(owner="job", epoch=trainer.epoch, rank=1)
        part = await rank.read_slice(batch)
        await damage(runs, "b")
        with pytest.raises(PayloadCorrupted) as refused:
            await rank.samples.get_samples(part)
        assert ("b",) == refused.value.quarantined
        with pytest.raises(ClaimMismatch, match="not whole"):
            await rank.read_slice(batch)
        assert 1 == await trainer.requeue()
        assert {"a": "ready", "b": "quarantined"} == await states(store)


async def test_a_step_learns_of_the_loss_at_once(runs: Runs) -> None:
    async with (
        runs.open(groups_per_step=2) as store,
        store.trainer(owner="job", min_batch_fraction=0.5) as trainer,
    ):
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=1))
        await sampler.admit(trainer_version_fn=lambda: 0)
        for name in ("a", "b"):
            await commit_tokens(store, name, target_step=0)
        await damage(runs, "b")
        bounds: Any = {"min_prompt_groups": 2, "max_prompt_groups": 2, "deadline_seconds": 20.0}
        batch, groups = await trainer.select(sampler, **bounds)
        assert 2 == groups
        with pytest.raises(PayloadCorrupted):
            await trainer.samples.get_samples(batch)
        target = await store.step_target(0)
        assert (1, 1) == (target.lost, target.claimed)
        await trainer.requeue()
        _, groups = await trainer.select(sampler, **bounds)
        assert 1 == groups
        await trainer.buffer.quarantine(["a"])
        with pytest.raises(StepStarved):
            await trainer.select(sampler, **bounds)
        await store.buffer.remove(["a", "b"])
        assert 2 == (await store.step_target(0)).lost


async def test_what_a_claim_wrote_back_ends_with_its_quarantine(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        await trainer.buffer.claim_for_training(["a"])
        await trainer.samples.put_samples(["a_g0"], fields={"x": [1]})
        await trainer.buffer.quarantine(["a"])
        await store.collect_garbage()
        assert 1 == len(await runs.payload_keys())
        [row] = await store.samples.get_samples(["a_g0"])
        assert "x" not in row


async def test_a_damaged_cell_that_was_written_back_is_named_and_its_group_kept(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        await trainer.buffer.claim_for_training(["a"])
        await trainer.samples.put_samples(["a_g1"], fields={"x": [1]})
        [written] = [key for key in await runs.payload_keys() if key.rpartition(":")[2][0] == "w"]
        await runs.client.hset(written, "1:x", b"\xc1")
        with pytest.raises(PayloadCorrupted, match="write it again or requeue") as refused:
            await trainer.samples.get_samples(samples_of("a"))
        error = refused.value
        assert ("a", 1, "x", ()) == (error.group_id, error.row, error.field, error.quarantined)
        assert {"a": "claimed"} == await states(store)


async def test_a_group_from_a_newer_version_is_refused_and_not_quarantined(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        records = control_key(runs, Key.GROUPS)
        [(name, record)] = (await runs.client.hgetall(records)).items()
        await runs.client.hset(records, name, record[:1] + b"\x09" + record[2:])
        with pytest.raises(SchemaMismatch, match="format 9"):
            await trainer.samples.get_samples(samples_of("a"))
        with pytest.raises(SchemaMismatch, match="format 9"):
            await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 0, 1, 1))
        assert GroupState.QUARANTINED not in {s.state for s in await store.buffer.slots()}
        await runs.client.hset(records, name, record)
        await trainer.buffer.claims.give_back_unseen()
        assert {"a": "ready"} == await states(store)


async def test_a_group_that_ends_while_it_is_read_is_unknown_and_not_damaged(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open() as store:
        await commit_tokens(store, "a")
        gateway = session_of(store).link.gateway
        read = gateway.read

        async def read_after_the_end(ranges: Any, attempt: Any) -> Any:
            await store.buffer.remove(["a"])
            return await read(ranges, attempt)

        monkeypatch.setattr(gateway, "read", read_after_the_end)
        with pytest.raises(UnknownGroup, match="'a'"):
            await store.samples.get_samples(samples_of("a"))


async def test_a_place_that_a_quarantine_gives_back_is_taken_by_who_waits(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with runs.open(capacity=1) as store, store.rollout(owner="host") as host:
        await commit_ready(store, 0, group_id="a")
        wakeups, waiting = session_of(host).link.wakeups, anyio.Event()
        wait = wakeups.wait

        async def wait_for_long(topic: Any, ticket: int, *, at_most_seconds: float) -> bool:
            waiting.set()
            return await wait(topic, ticket, at_most_seconds=60 * at_most_seconds)

        monkeypatch.setattr(wakeups, "wait", wait_for_long)
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(host.buffer.reserve_when_free, 0)
                await waiting.wait()
                await store.buffer.quarantine(["a"])
        assert 1 == (await store.stats()).reserved
