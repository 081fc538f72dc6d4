"""Groups that are damaged on purpose, for tests of what becomes of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from redis_replay._redis.keys import Key
from tests.contract.keyspace import control_key
from tests.harness import GROUP_SIZE, Runs


async def commit_tokens(store: Any, group_id: str, *, target_step: int | None = None) -> None:
    """Commit a group whose every field is a column of its own."""
    await store.buffer.reserve(0, group_id=group_id, target_step=target_step)
    rows = [{"ids": np.arange(4, dtype=np.int32), "reward": float(n)} for n in range(GROUP_SIZE)]
    await store.buffer.commit(group_id, rows, start_weight_version=0, end_weight_version=0)


async def damage(runs: Runs, *group_ids: str, how: str = "flipped") -> None:
    """Damage the payload or the record of committed groups."""
    for group_id in group_ids:
        [key] = [key for key in await runs.payload_keys() if f":{group_id}:" in key]
        whole = await runs.client.get(key)
        if how == "flipped":
            await runs.client.set(key, bytes([whole[0] ^ 1]) + whole[1:])
        elif how == "short":
            await runs.client.set(key, whole[:-5])
        elif how == "gone":
            await runs.client.delete(key)
        else:
            records = control_key(runs, Key.GROUPS)
            names = await runs.client.hkeys(records)
            [name] = [name for name in names if name.endswith(f":{group_id}".encode())]
            if how == "no record":
                await runs.client.hdel(records, name)
            else:
                record = await runs.client.hget(records, name)
                at = record.index(b"ids") + 1
                await runs.client.hset(records, name, record[:at] + b"\xc1" + record[at + 1 :])


async def states(store: Any) -> dict[str, str]:
    return {slot.group_id: slot.state.value for slot in await store.buffer.slots()}


def samples_of(*group_ids: str) -> list[str]:
    return [f"{group_id}_g{row}" for group_id in group_ids for row in range(GROUP_SIZE)]
