"""The sorted sets after a restore: changed where groups differ, made anew where they are wrong."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from redis_replay import ReplayStore
from redis_replay._redis.keys import Key
from tests.contract.keyspace import control_key
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio

READY = (Key.READY, Key.READY_BY_STEP, Key.READY_BY_ORDER)


async def ready_sets(runs: Runs) -> Mapping[str, list[tuple[bytes, float]]]:
    """Return the sets of ready groups with their scores."""
    return {
        key.value: await runs.client.zrange(control_key(runs, key), 0, -1, withscores=True)
        for key in READY
    }


async def fill(store: ReplayStore) -> None:
    """Make groups ready, half of them with a target step, and keep a checkpoint."""
    for number in range(12):
        target = 3 + number // 4 if number % 2 else None
        await commit_ready(store, number % 3, group_id=f"g{number}", target_step=target)
    await store.checkpoints.create("kept")


async def change(store: ReplayStore, ended: int) -> None:
    """End groups, hold one, lend one, give one's id to another group, and add one."""
    await store.buffer.remove([f"g{number}" for number in range(ended)])
    await store.buffer.claim_for_training(["g9"])
    await store.buffer.promote_ready_group(to_target_step=1)
    await store.buffer.remove_group("g8")
    await commit_ready(store, 1, group_id="g8", target_step=9)
    await commit_ready(store, 2, group_id="new", target_step=4)


@pytest.mark.parametrize("ended", [1, 7], ids=["few differ", "most differ"])
async def test_ready_groups_are_listed_as_when_they_were_kept(runs: Runs, ended: int) -> None:
    async with runs.open() as store:
        await fill(store)
        before, payload_bytes = await ready_sets(runs), (await store.stats()).payload_bytes
        await change(store, ended)
        assert before != await ready_sets(runs)
        report = await store.checkpoints.restore("kept")
        assert before == await ready_sets(runs)
        stats = await store.stats()
        assert (12, 12, payload_bytes) == (report.ready, stats.ready, stats.payload_bytes)
        await store.checkpoints.drop("kept")
        assert 12 == len(await runs.payload_keys())


@pytest.mark.parametrize("key", READY)
@pytest.mark.parametrize("harm", ["a member is gone", "a member is of no group"])
async def test_sets_that_were_not_in_step_are_made_anew(runs: Runs, key: Key, harm: str) -> None:
    async with runs.open() as store:
        await fill(store)
        before = await ready_sets(runs)
        name = control_key(runs, key)
        if harm == "a member is gone":
            await runs.client.zpopmin(name)
        else:
            await runs.client.zadd(name, {"0000000000000099:nobody": 3})
        assert not (await store.audit()).is_clean
        await store.checkpoints.restore("kept")
        assert before == await ready_sets(runs)
