"""The audit finds each kind of damage by its number, and nothing in a sound run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from redis_replay import AuditReport, ReplayStore
from redis_replay._redis.keys import Key
from redis_replay.errors import StoreCorrupted, StoreMissing
from tests.contract.keyspace import control_key, nothing_changed
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


async def populate(store: ReplayStore) -> None:
    """Bring groups into every state and end: two of each live state, one of most ends."""
    trainer, host = store.trainer(owner="job"), store.rollout(owner="host")
    await trainer.__aenter__()
    await host.__aenter__()
    for at in range(2):
        await host.buffer.reserve(at, group_id=f"reserved{at}", target_step=at, prompt_ref=b"p")
        await commit_ready(store, at, group_id=f"ready{at}", target_step=at)
        await commit_ready(store, at, group_id=f"claimed{at}", target_step=at)
        await commit_ready(store, at, group_id=f"poison{at}")
        await store.buffer.reserve(at, group_id=f"aborted{at}")
        await store.buffer.abort(f"aborted{at}")
        await commit_ready(store, at, group_id=f"removed{at}")
        await store.buffer.remove_group(f"removed{at}")
        await commit_ready(store, at, group_id=f"trained{at}")
        await store.buffer.claim_for_training([f"trained{at}"])
        await store.buffer.release_training_claims([f"trained{at}"])
    for _ in range(2):
        await trainer.buffer.claim_for_training(["poison0", "poison1"])
        await trainer.abort_step()
    async with store.rollout(owner="gone") as gone:
        await gone.buffer.reserve(0, group_id="ticket", target_step=2)
    await trainer.buffer.claim_for_training(["claimed1", "claimed0"])


async def test_a_sound_run_has_no_violation_and_all_counts(runs: Runs) -> None:
    async with runs.open(max_requeues=1) as store:
        await populate(store)
        async with nothing_changed(runs):
            report = await store.audit()
        assert report.is_clean
        assert {"reserved": 3, "ready": 2, "claimed": 2, "quarantined": 2} == report.live
        assert 9 == report.groups_checked
        ends = {"trained": 2, "filtered": 0, "evicted": 0, "aborted": 2, "removed": 2}
        assert ends == report.ends


async def test_an_empty_run_is_sound(runs: Runs) -> None:
    async with runs.open() as store:
        report = await store.audit()
    assert (True, 0) == (report.is_clean, report.groups_checked)


Damage = Callable[[Runs, Any], Awaitable[None]]


def member_lost(key: Key) -> Damage:
    """Take the first member out of a sorted set."""

    async def damage(runs: Runs, client: Any) -> None:
        [member, *_] = await client.zrange(control_key(runs, key), 0, -1)
        await client.zrem(control_key(runs, key), member)

    return damage


def score_moved(key: Key) -> Damage:
    """Give the first member of a sorted set another score."""

    async def damage(runs: Runs, client: Any) -> None:
        [member, *_] = await client.zrange(control_key(runs, key), 0, -1)
        await client.zincrby(control_key(runs, key), 1, member)

    return damage


def stray(key: Key) -> Damage:
    """List a group in a sorted set that has no slot."""

    async def damage(runs: Runs, client: Any) -> None:
        await client.zadd(control_key(runs, key), {"0000000000009999:ghost": 0})

    return damage


def field(key: Key, name: str, value: object) -> Damage:
    """Set a field of a hash."""

    async def damage(runs: Runs, client: Any) -> None:
        await client.hset(control_key(runs, key), name, value)

    return damage


def field_lost(key: Key) -> Damage:
    """Delete the first field of a hash."""

    async def damage(runs: Runs, client: Any) -> None:
        [name, *_] = await client.hkeys(control_key(runs, key))
        await client.hdel(control_key(runs, key), name)

    return damage


def word(group_id: str, at: int, value: bytes) -> Damage:
    """Change a word of a slot's record."""

    async def damage(runs: Runs, client: Any) -> None:
        words = (await client.hget(control_key(runs, Key.SLOTS), group_id)).split(b" ")
        words[at] = value
        await client.hset(control_key(runs, Key.SLOTS), group_id, b" ".join(words))

    return damage


def payload(change: Callable[[bytes], bytes | None]) -> Damage:
    """Change the payload of a ready group."""

    async def damage(runs: Runs, client: Any) -> None:
        [key] = [key for key in await runs.payload_keys() if ":ready0:" in key]
        changed = change(await client.get(key))
        await (client.delete(key) if changed is None else client.set(key, changed))

    return damage


INDEXES = (
    *(Key.RESERVED, Key.READY, Key.CLAIMED, Key.QUARANTINED, Key.RESERVED_BY_STEP),
    *(Key.READY_BY_STEP, Key.CLAIMED_BY_STEP, Key.READY_BY_ORDER, Key.RESERVED_BY_OWNER),
    *(Key.CLAIMED_BY_OWNER, Key.TICKETS),
)
DAMAGES: dict[str, tuple[int, Damage]] = {
    **{f"{key} lost a member": (1, member_lost(key)) for key in INDEXES},
    **{f"{key} has another score": (1, score_moved(key)) for key in INDEXES},
    **{f"{key} lists a ghost": (1, stray(key)) for key in INDEXES},
    "a record is unreadable": (1, field(Key.SLOTS, "bad", b"ready 1 2")),
    "a state is unknown": (1, word("ready0", 0, b"eaten")),
    "a slot was lost": (2, field_lost(Key.SLOTS)),
    "a total is off": (2, field(Key.COUNTERS, "reserved_total", 5)),
    "capacity is exceeded": (3, field(Key.META, "capacity", 6)),
    "two share an order": (4, word("ready1", 1, b"1")),
    "an order is from the future": (4, field(Key.META, "next_order", 3)),
    "a fence is from the future": (4, field(Key.META, "next_fence", 3)),
    "a manifest was lost": (5, field_lost(Key.BATCHES)),
    "a manifest has no claim": (5, field(Key.BATCHES, "99999", b"1:11:01:15:1:abc")),
    "a holder is nobody": (6, field_lost(Key.OWNERS)),
    "a payload is gone": (7, payload(lambda _: None)),
    "a payload is short": (7, payload(lambda whole: whole[:-1])),
    "a payload is long": (7, payload(lambda whole: whole + b"x")),
    "payload_bytes is off": (7, field(Key.COUNTERS, "payload_bytes", 7)),
    "the ledger is off": (8, field(Key.ENDS, "trained:trained", 9)),
    "the ledger has a strange end": (8, field(Key.ENDS, "eaten:rats", 1)),
    "a prompt belongs to nobody": (10, field(Key.PROMPTS, "ghost", b"p")),
    "an account is of no step": (11, field(Key.STEPS, "soon:lost", 1)),
    "an account is negative": (11, field(Key.STEPS, "7:lost", -1)),
    "a tally is short": (11, field(Key.TALLY, "7", "1 0 1 2 1")),
    "a tally is not finite": (11, field(Key.TALLY, "7", "1 0 inf 2 1 2")),
    "a blob belongs to nobody": (10, field(Key.GROUPS, "77777:ghost", b"p")),
    "the capacity is no number": (12, field(Key.META, "capacity", "many")),
    "an owner is unreadable": (12, field(Key.OWNERS, "bad", b"x")),
    "a lost owner is unreadable": (12, field(Key.LOST, "bad", b"x")),
    "a manifest is unreadable": (12, field(Key.BATCHES, "99999", b"x")),
    "the ledger is no number": (12, field(Key.ENDS, "trained:trained", "x")),
    "a total is no number": (2, field(Key.COUNTERS, "reserved_total", "x")),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_damage_is_found_under_its_number(runs: Runs, name: str) -> None:
    runs.audited = False
    invariant, damage = DAMAGES[name]
    async with runs.open(max_requeues=1) as store:
        await populate(store)
        await damage(runs, runs.client)
        report = await store.audit()
        assert not report.is_clean
        assert invariant in {violation.invariant for violation in report.violations}, report
        assert all(violation.message for violation in report.violations)


async def test_a_lost_blob_is_a_violation(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        await commit_ready(store, 0)
        await runs.client.delete(control_key(runs, Key.GROUPS))
        assert {7} == {violation.invariant for violation in (await store.audit()).violations}


async def test_a_damaged_blob_is_a_violation(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        await commit_ready(store, 0)
        [name] = await runs.client.hkeys(control_key(runs, Key.GROUPS))
        await runs.client.hset(control_key(runs, Key.GROUPS), name, b"\xc1")
        assert {7} == {violation.invariant for violation in (await store.audit()).violations}


async def test_a_target_step_ahead_of_the_cursor_is_a_violation(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        await store.buffer.reserve(0, target_step=3)
        meta = control_key(runs, Key.META)
        await runs.client.hset(meta, mapping={"admitted": 1, "policy": "in_order"})
        assert {9} == {violation.invariant for violation in (await store.audit()).violations}
        await runs.client.hset(meta, "dispatch_index", 3)
        assert (await store.audit()).is_clean


@pytest.mark.parametrize("key", [Key.DEAD, Key.PINNED, Key.CONDEMNED])
async def test_a_live_group_that_is_to_be_freed_is_a_violation(runs: Runs, key: Key) -> None:
    runs.audited = False
    async with runs.open() as store:
        await commit_ready(store, 0)
        await store.checkpoints.create("c")
        assert (await store.audit()).is_clean
        [entry] = await runs.client.hkeys(control_key(runs, Key.GROUPS))
        await runs.client.zadd(control_key(runs, key), {entry: 1})
        [violation] = (await store.audit()).violations
        assert 13 == violation.invariant
        assert f"is live and {key.value}" in violation.message


async def test_a_pin_without_a_checkpoint_that_refers_to_it_is_a_violation(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        for name in ("a", "b"):
            await commit_ready(store, 0, group_id=name)
            await store.checkpoints.create(name)
        await store.buffer.remove(["a", "b"])
        assert (await store.audit()).is_clean
        record = await store.checkpoints.record("b")
        saved = store.buffer.session.link.gateway.keyspace.saved(record.saved_id, Key.SLOTS)
        words = (await runs.client.hget(saved, "b")).split(b" ")
        words[6] = b"77"  # another attempt's rows
        await runs.client.hset(saved, "b", b" ".join(words))
        for _ in range(2):
            [violation] = (await store.audit()).violations
            assert 13 == violation.invariant
            assert ":b' is pinned and in no checkpoint" in violation.message
            await runs.client.delete(saved)


async def test_an_unreadable_checkpoint_is_a_violation(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        await store.checkpoints.create("a")
        await runs.client.hset(control_key(runs, Key.CHECKPOINTS), "b", b"1:x")
        assert {13} == {violation.invariant for violation in (await store.audit()).violations}


async def test_a_group_that_is_gone_but_not_collected_is_no_violation(runs: Runs) -> None:
    async with runs.open() as store:

        async def nothing() -> int:
            return 0

        store.buffer.session.link.collector.collect = nothing  # type: ignore[method-assign]
        await commit_ready(store, 0, group_id="g")
        await store.buffer.remove(["g"])
        assert (await store.audit()).is_clean
        assert 1 == len(await runs.payload_keys())


async def test_an_audit_of_nothing_says_that_the_run_is_not_there(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        await runs.client.delete(control_key(runs, Key.META))
        with pytest.raises(StoreMissing, match=runs.name):
            await store.audit()


async def test_an_audit_of_a_key_of_another_type_says_so(runs: Runs) -> None:
    runs.audited = False
    async with runs.open() as store:
        await runs.client.set(control_key(runs, Key.READY), "text")
        with pytest.raises(StoreCorrupted):
            await store.audit()


def test_a_report_is_clean_exactly_when_it_lists_nothing() -> None:
    assert AuditReport(0, ()).is_clean
