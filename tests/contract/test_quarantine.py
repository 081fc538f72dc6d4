"""Groups are taken out of training by name, or nothing changes."""

from __future__ import annotations

import pytest

from redis_replay._redis.keys import Key
from redis_replay._redis.quarantine_scripts import Quarantine
from redis_replay.errors import (
    ClaimMismatch,
    StaleAttempt,
    StaleOwner,
    UnknownGroup,
    WrongState,
)
from redis_replay.heart import end_owner
from tests.contract.damaging import commit_tokens, samples_of
from tests.contract.keyspace import control_key, nothing_changed, send_plain, session_of
from tests.harness import Runs

pytestmark = pytest.mark.anyio


async def test_groups_are_quarantined_by_name_and_give_their_places_back(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        for name in ("a", "b", "c"):
            await commit_tokens(store, name)
        await trainer.buffer.claim_for_training(["b", "c"])
        assert 2 == await trainer.buffer.quarantine(["a", "b"], reason="odd")
        stats = await store.stats()
        assert (2, 1, 0, 1) == (stats.quarantined, stats.claimed, stats.ready, stats.occupancy)
        async with nothing_changed(runs):
            assert 0 == await trainer.buffer.quarantine(["b", "a"])
        assert ("c",) == (await trainer.commit_step(0)).trained
        read = await store.samples.get_samples(samples_of("a", "b"))
        assert [0.0, 1.0] * 2 == [row["reward"] for row in read]
        assert 2 == await store.buffer.remove(["a", "b"])
        assert {"trained:trained": 1, "removed:removed": 2} == (await store.stats()).ends
    assert [] == await runs.payload_keys()


async def test_the_journal_says_who_quarantined_what_and_why(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        await trainer.buffer.quarantine(["a"], reason="a wrong tokenizer")
        [(_, entry)] = await runs.client.xrevrange(control_key(runs, Key.EVENTS), count=1)
        assert (b"quarantine", b"job", b"1:a", b"a wrong tokenizer") == (
            *(entry[b"kind"], entry[b"owner"], entry[b"groups"]),
            entry[b"reason"],
        )
        await store.buffer.remove(["a"])
        [(_, entry)] = await runs.client.xrevrange(control_key(runs, Key.EVENTS), count=1)
        assert b"reason" not in entry


@pytest.mark.parametrize("state", ["absent", "reserved", "foreign", "twice", "none"])
async def test_what_is_not_the_caller_s_to_quarantine_is_refused(runs: Runs, state: str) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        store.trainer(owner="a") as trainer,
        second.trainer(owner="b") as other,
    ):
        await commit_tokens(store, "good")
        named = ["good"] if state != "none" else []
        if state == "reserved":
            await trainer.buffer.reserve(0, group_id="bad")
        if state == "foreign":
            await commit_tokens(store, "bad")
            await other.buffer.claim_for_training(["bad"])
        if state != "none":
            named.append("good" if state == "twice" else "bad")
        error = {"absent": UnknownGroup, "reserved": WrongState, "foreign": ClaimMismatch}
        async with nothing_changed(runs):
            with pytest.raises(error.get(state, ValueError)):
                await trainer.buffer.quarantine(named)


async def test_a_session_that_has_ended_quarantines_nothing(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        link = session_of(store).link
        await end_owner(link.gateway, link.run.frame, "job", trainer.epoch)
        async with nothing_changed(runs):
            with pytest.raises(StaleOwner):
                await trainer.buffer.quarantine(["a"])


async def test_a_group_that_was_committed_anew_is_not_taken_for_the_damaged_one(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_tokens(store, "a")
        [slot] = await store.buffer.slots()
        await store.buffer.remove(["a"])
        await commit_tokens(store, "a")
        call = Quarantine("job", trainer.epoch, "damaged", ("a",), (str(slot.payload_fence),))
        async with nothing_changed(runs):
            refused = await send_plain(session_of(trainer), call)
        assert StaleAttempt is type(refused.error)
