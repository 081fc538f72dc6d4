"""Every refusal of a script, met as a user meets it: its error, its numbers, nothing changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from redis_replay import (
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    Rule,
    Selection,
    WindowedSamplerConfig,
    create_sampler,
    errors,
)
from redis_replay._redis.checkpoint_scripts import Condemn, CreateCheckpoint, Restore
from redis_replay._redis.keys import Key
from redis_replay._redis.records import unpack_items
from redis_replay._redis.refusals import REFUSALS
from redis_replay._redis.run_scripts import EndOwner, SetDataset
from redis_replay._redis.scripts import Admit, Claim, Commit, Evict
from tests.contract.keyspace import attached, control_key, nothing_changed, send, send_plain
from tests.contract.refused import selected, tally
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio

Met = tuple[type[Exception], str, Awaitable[Any]]
"""The error to meet, what its text must say, and the call that meets it."""

Scenario = Callable[[Runs, Any], Awaitable[Met]]


async def commit(store: Any, group_id: str, **options: Any) -> None:
    """Commit the usual rows."""
    versions = {"start_weight_version": 0, "end_weight_version": 0}
    await store.buffer.commit(group_id, rows(), **{**versions, **options})


async def raised(reply: Awaitable[Any]) -> None:
    """Raise the error of a refusal that a script-level call brought back."""
    raise (await reply).error


async def missing(runs: Runs, store: Any) -> Met:
    await runs.client.delete(*await runs.keys())
    runs.audited = False
    return errors.StoreMissing, "nothing was created", store.buffer.reserve(0)


def altered(error: type[Exception], words: str, **change: Any) -> Scenario:
    """Meet a run whose control record was changed meanwhile."""

    async def scenario(runs: Runs, store: Any) -> Met:
        await runs.client.hset(control_key(runs, Key.META), mapping=change)
        runs.audited = False
        return error, words, store.buffer.reserve(0)

    return scenario


async def reused(runs: Runs, store: Any) -> Met:
    session = store.buffer.session
    await commit_ready(store, 0)
    await send(session, Evict(0, 1), number=1600, digest="one")
    call = send(session, Evict(0, 1), number=1600, digest="two")
    return errors.CallConflict, "two different calls", raised(call)


async def expired(runs: Runs, store: Any) -> Met:
    session = store.buffer.session
    await commit_ready(store, 0)
    await send(session, Evict(0, 1), number=1600)
    call = send(session, Evict(0, 1), number=1584)
    return errors.CallConflict, "no longer kept .*call 1600", raised(call)


async def fenced(runs: Runs, store: Any) -> Met:
    session = store.buffer.session
    await send_plain(session, EndOwner(session.owner, session.epoch, None, planned=1))
    return errors.StaleOwner, "attach again", store.buffer.reserve(0)


async def corrupt(runs: Runs, store: Any) -> Met:
    for key in (Key.READY, Key.READY_BY_ORDER):
        await runs.client.zadd(control_key(runs, key), {"0000000000000099:ghost": 0})
    runs.audited = False
    selection = Selection(Rule.BUFFER, 0, 9, 1, 9)
    return errors.StoreCorrupted, "'ghost' .* audit", store.buffer.claim(selection)


async def in_use(runs: Runs, store: Any) -> Met:
    await runs.client.hset(
        control_key(runs, Key.OWNERS), "elsewhere", "77 0 rollout 1 60000 another-host"
    )
    return errors.RunInUse, "rollout session 'elsewhere'", store.discard()


async def unknown(runs: Runs, store: Any) -> Met:
    return errors.UnknownGroup, "'ghost'", store.buffer.remove(["ghost"])


async def state(runs: Runs, store: Any) -> Met:
    await store.buffer.reserve(0, group_id="g")
    return errors.WrongState, "'g' is reserved", store.buffer.claim_for_training(["g"])


async def duplicate(runs: Runs, store: Any) -> Met:
    await store.buffer.reserve(0, group_id="g")
    return errors.DuplicateGroup, "'g' is live already", store.buffer.reserve(0, group_id="g")


async def attempt(runs: Runs, store: Any) -> Met:
    made = await store.buffer.reserve(0, group_id="g")
    call = commit(store, "g", fence=made.fence + 1)
    return errors.StaleAttempt, r"'g' .*attempt 1", call


async def version(runs: Runs, store: Any) -> Met:
    await store.buffer.reserve(3, group_id="g")
    call = commit(store, "g", start_weight_version=2, end_weight_version=3)
    return ValueError, "'g' was reserved with weight version 3, .* 2 ", call


async def payload(runs: Runs, store: Any) -> Met:
    made = await store.buffer.reserve(0, group_id="g")
    call = Commit("g", made.fence, 0, 0, 10, b"", samples=0, reward_sum="0", zero_variance=0)
    sent = send(store.buffer.session, call, number=1600)
    return errors.PayloadMissing, "'g' has 0 of 10 bytes", raised(sent)


async def full(runs: Runs, store: Any) -> Met:
    await store.buffer.reserve(0)
    return errors.BufferFull, "1 of 1 places", store.buffer.reserve(0)


async def full_bytes(runs: Runs, store: Any) -> Met:
    await commit_ready(store, 0)
    return errors.BufferFull, "of 1 payload bytes", store.buffer.reserve(0)


async def gate(runs: Runs, store: Any) -> Met:
    sampler = create_sampler(store.buffer, ReadyFirstSamplerConfig(max_staleness_versions=0))
    await sampler.admit(trainer_version_fn=lambda: 0)
    call = store.buffer.session.call(Admit(seen_version=0))
    return errors.AdmissionConflict, "gate is closed", call


async def conflict(runs: Runs, store: Any) -> Met:
    sampler = create_sampler(store.buffer, InOrderSamplerConfig(max_lookahead_versions=4))
    await sampler.flush()  # type: ignore[attr-defined]
    cut = await store.mutation().__aenter__()
    sampler.commit_admission(cut)  # type: ignore[attr-defined]
    await sampler.admit(trainer_version_fn=lambda: 0)
    return errors.AdmissionConflict, r"cursor moved .*now 0", cut.__aexit__(None, None, None)


async def cursor(runs: Runs, store: Any) -> Met:
    sampler = create_sampler(store.buffer, InOrderSamplerConfig())
    await sampler.admit(trainer_version_fn=lambda: 0)
    sampler.restore_dispatch_index(7)
    return errors.CursorConflict, "index 0, .* restored to 7", sampler.flush()  # type: ignore[attr-defined]


async def capacity(runs: Runs, store: Any) -> Met:
    sampler = create_sampler(store.buffer, InOrderSamplerConfig(max_lookahead_versions=2))
    return errors.CapacityTooSmall, "capacity of 8 .* needs 12", sampler.flush()  # type: ignore[attr-defined]


async def policy(runs: Runs, store: Any) -> Met:
    await create_sampler(store.buffer, WindowedSamplerConfig()).flush()  # type: ignore[attr-defined]
    other = create_sampler(store.buffer, ReadyFirstSamplerConfig())
    return errors.PolicyMismatch, "'windowed'; pass switch_policy", other.flush()  # type: ignore[attr-defined]


async def policy_live(runs: Runs, store: Any) -> Met:
    await create_sampler(store.buffer, WindowedSamplerConfig()).flush()  # type: ignore[attr-defined]
    await store.buffer.reserve(0)
    other = create_sampler(store.buffer, InOrderSamplerConfig())
    return errors.PolicyMismatch, "'windowed' and holds 1 groups", other.flush()  # type: ignore[attr-defined]


async def alive(runs: Runs, store: Any) -> Met:
    session = store.buffer.session
    call = send_plain(session, EndOwner(session.owner, session.epoch, 10**6, planned=0))
    return errors.ClaimError, "is alive", raised(call)


async def too_many(runs: Runs, store: Any) -> Met:
    session = store.buffer.session
    await commit_ready(store, 0)
    strays = {f"stray-{at}": session.epoch for at in range(1024)}
    await runs.client.zadd(control_key(runs, Key.CLAIMED_BY_OWNER), strays)
    runs.audited = False
    call = session.call(Claim("buffer", 0, 9, 1, 9))
    return errors.TooManyClaims, "1024 claims and would take 1 more", call


async def step(runs: Runs, store: Any) -> Met:
    trainer = await store.trainer(owner="job").__aenter__()
    return errors.StepMismatch, "step 4 .* version is 0", trainer.commit_step(4)


async def mismatch(runs: Runs, store: Any) -> Met:
    await commit_ready(store, 0, group_id="g")
    await store.buffer.claim_for_training(["g"])
    call = store.buffer.release_training_claims(["ghost"])
    return errors.ClaimMismatch, r"not owned here \['ghost'\], .*not named \['g'\]", call


async def nothing(runs: Runs, store: Any) -> Met:
    trainer = await store.trainer(owner="job").__aenter__()
    return errors.ClaimMismatch, "no claims", trainer.commit_step(0)


async def acks(runs: Runs, store: Any) -> Met:
    trainer = await store.trainer(owner="job", world=2).__aenter__()
    await commit_ready(store, 0, group_id="g")
    await trainer.buffer.claim_for_training(["g"])
    return errors.UnacknowledgedRanks, r"ranks \[0, 1\]", trainer.commit_step(0)


async def batch(runs: Runs, store: Any) -> Met:
    trainer = await store.trainer(owner="job").__aenter__()
    rank = store.trainer_rank(owner="job", epoch=trainer.epoch, rank=0)
    return errors.ClaimMismatch, "batch 77 is not a live claim", rank.acknowledge(77)


async def receiver(runs: Runs, store: Any) -> Met:
    trainer = await store.trainer(owner="job").__aenter__()
    return errors.ClaimError, "'ghost'", trainer.transfer_claims(to="ghost")


async def passed(runs: Runs, store: Any) -> Met:
    await store.publish_trainer_version(5)
    call = store.buffer.promote_ready_group(to_target_step=4)
    return ValueError, "step 4 has passed: the trainer version is 5", call


async def dataset(runs: Runs, store: Any) -> Met:
    call = store.buffer.session.link.call(SetDataset("b", older="a"))
    return errors.RunMismatch, "dataset '', asked was 'b'", call


async def no_checkpoint(runs: Runs, store: Any) -> Met:
    await store.checkpoints.create("a")
    seen = await store.checkpoints.record("a")
    await store.checkpoints.drop("a")

    async def as_seen(name: str) -> Any:
        return seen

    store.checkpoints.record = as_seen  # dropped after this look and before the script
    return errors.CheckpointMissing, "no checkpoint 'a'; list", store.checkpoints.pin("a")


async def checkpoint_exists(runs: Runs, store: Any) -> Met:
    await store.checkpoints.create("a")
    return errors.CheckpointExists, "'a' already.*replace=True", store.checkpoints.create("a")


async def checkpoints_full(runs: Runs, store: Any) -> Met:
    for number in range(128):
        call = CreateCheckpoint(f"c{number}", None, 0, 0, 1, b"", (f"{number}",))
        await send_plain(store.buffer.session, call)
    return errors.CheckpointExists, "128 checkpoints", store.checkpoints.create("one-more")


async def checkpoint_building(runs: Runs, store: Any) -> Met:
    await store.checkpoints.create("a")
    saved_id = (await store.checkpoints.record("a")).saved_id
    record = await runs.client.hget(control_key(runs, Key.CHECKPOINTS), "a")
    items = [b"building", *unpack_items(record)[1:]]
    packed = b"".join(b"%d:%s" % (len(item), item) for item in items)
    await runs.client.hset(control_key(runs, Key.CHECKPOINTS), "a", packed)
    sent = raised(
        send_plain(store.buffer.session, Restore("a", "all", "", "token", (saved_id,), ()))
    )
    return errors.CheckpointDamaged, "'a' is building", sent


async def checkpoint_damaged(runs: Runs, store: Any) -> Met:
    await store.checkpoints.create("a")
    record = await store.checkpoints.record("a")
    keyspace = store.buffer.session.link.gateway.keyspace
    await runs.client.delete(keyspace.saved(record.saved_id, Key.META))
    call = Restore("a", "all", "", "token", (record.saved_id,), ())
    sent = raised(send_plain(store.buffer.session, call))
    return errors.CheckpointDamaged, "record of checkpoint 'a' is not whole", sent


async def checkpoint_settings(runs: Runs, store: Any) -> Met:
    await create_sampler(store.buffer, WindowedSamplerConfig()).flush()  # type: ignore[attr-defined]
    await store.checkpoints.create("a")
    await create_sampler(store.buffer, InOrderSamplerConfig()).flush()  # type: ignore[attr-defined]
    words = "policy windowed and the run has in_order"
    return errors.CheckpointMismatch, words, store.checkpoints.restore("a")


async def checkpoint_capacity(runs: Runs, store: Any) -> Met:
    names = [await commit_ready(store, 0) for _ in range(3)]
    await store.checkpoints.create("a")
    await store.buffer.remove(names)
    async with runs.open(capacity=2):
        call = store.checkpoints.restore("a")
    return errors.CheckpointMismatch, "3 groups .* capacity of 2", call


async def checkpoint_steps(runs: Runs, store: Any) -> Met:
    await store.checkpoints.create("a")
    call = store.checkpoints.restore("a", incomplete="drop")
    return errors.CheckpointMismatch, "without groups_per_step", call


async def checkpoints_moved(runs: Runs, store: Any) -> Met:
    await store.checkpoints.create("a")
    call = raised(send_plain(store.buffer.session, Condemn(("1:g",), ())))
    return errors.CheckpointMissing, "changed meanwhile", call


SCENARIOS: Mapping[str, Scenario] = {
    "MISSING": missing,
    "SCHEMA": altered(errors.SchemaMismatch, "schema 9", min_writer=9),
    "LINEAGE": altered(errors.StoreRegressed, "lineage another", lineage="another"),
    "STALE_STORE": altered(errors.StaleStore, "store epoch 2", store_epoch=2),
    "REGRESSED": altered(errors.StoreRegressed, "mutation 0 .* it lost history", seq=0),
    "REUSED": reused,
    "EXPIRED": expired,
    "FENCED": fenced,
    "CORRUPT": corrupt,
    "UNKNOWN": unknown,
    "STATE": state,
    "DUPLICATE": duplicate,
    "ATTEMPT": attempt,
    "VERSION": version,
    "PAYLOAD": payload,
    "FULL": full,
    "FULL_BYTES": full_bytes,
    "GATE": gate,
    "CONFLICT": conflict,
    "CURSOR": cursor,
    "CAPACITY": capacity,
    "POLICY": policy,
    "POLICY_LIVE": policy_live,
    "ALIVE": alive,
    "TOO_MANY": too_many,
    "STEP": step,
    "MISMATCH": mismatch,
    "NOTHING": nothing,
    "ACKS": acks,
    "BATCH": batch,
    "RECEIVER": receiver,
    "PASSED": passed,
    "DATASET": dataset,
    "NO_CHECKPOINT": no_checkpoint,
    "CHECKPOINT_EXISTS": checkpoint_exists,
    "CHECKPOINTS_FULL": checkpoints_full,
    "CHECKPOINT_BUILDING": checkpoint_building,
    "CHECKPOINT_DAMAGED": checkpoint_damaged,
    "CHECKPOINT_SETTINGS": checkpoint_settings,
    "CHECKPOINT_CAPACITY": checkpoint_capacity,
    "CHECKPOINT_STEPS": checkpoint_steps,
    "CHECKPOINTS_MOVED": checkpoints_moved,
    "IN_USE": in_use,
    "SELECTED": selected,
    "TALLY": tally,
}


OPTIONS: Mapping[str, dict[str, Any]] = {
    "FULL": {"capacity": 1},
    "FULL_BYTES": {"max_payload_bytes": 1},
    "CAPACITY": {"capacity": 8, "groups_per_step": 4},
    "POLICY_LIVE": {"switch_policy": True},
    "CHECKPOINT_SETTINGS": {"switch_policy": True},
}
"""What the run is opened with, where a refusal needs it."""


def test_every_refusal_has_a_scenario() -> None:
    assert set(REFUSALS) == set(SCENARIOS)


@pytest.mark.parametrize("code", SCENARIOS)
async def test_a_refusal_is_its_error_and_changes_nothing(runs: Runs, code: str) -> None:
    async with runs.open(**OPTIONS.get(code, {})) as store:
        await attached(store)
        error, words, call = await SCENARIOS[code](runs, store)
        async with nothing_changed(runs):
            with pytest.raises(error, match=words) as met:
                await call
        assert error is type(met.value)
