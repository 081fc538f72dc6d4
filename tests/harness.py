"""What contract tests are written with: fresh runs, rows of a known shape, conditions."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import numpy as np
import pytest

import redis_replay
from redis_replay import ReplayStore
from redis_replay import run as opening
from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Keyspace
from redis_replay.audit import audit_run
from redis_replay.store import DEFAULT_PARTITION

GROUP_SIZE = 2
CAPACITY = 64


class Runs:
    """Opens stores of fresh runs on one server and audits them all at the end."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.name = f"test-{secrets.token_hex(6)}"
        self.opened: set[tuple[str, str]] = set()
        self.audited = True

    def open(self, **options: Any) -> ReplayStore:
        """Return a store of this test's run; a second one is another host of the same run."""
        wanted = {"run": self.name, "capacity": CAPACITY, "group_size": GROUP_SIZE, **options}
        self.opened.add((wanted["run"], wanted.get("partition", DEFAULT_PARTITION)))
        return redis_replay.open_store(client=self.client, **wanted)

    async def check(self) -> None:
        """Fail with every violated invariant of every run that was opened, and delete them.

        Other tests look at every run of the server, those that were damaged on purpose included.
        """
        for run, partition in sorted(self.opened) if self.audited else ():
            gateway = Gateway(Target.from_client(self.client), Keyspace(run, partition))
            try:
                report = await audit_run(gateway)
            finally:
                await gateway.close()
            assert () == report.violations
        for key in await self.keys():
            await self.client.delete(key)

    async def keys(self) -> list[str]:
        """Return every key of this test's run, control and payload."""
        found = [key.decode() async for key in self.client.scan_iter(match="rr:*")]
        return sorted(key for key in found if self.name in key)

    async def payload_keys(self) -> list[str]:
        """Return the payload keys of this test's run."""
        return [key for key in await self.keys() if key.startswith("rr:p:")]


def rows(value: float = 0.0, *, size: int = GROUP_SIZE, length: int = 3) -> list[dict[str, Any]]:
    """Return the rows of a group: ``input_ids`` filled with a value, and rewards that differ."""
    return [
        {
            "input_ids": np.full(length, int(value), dtype=np.int32),
            "reward": float(value) + row,
        }
        for row in range(size)
    ]


async def commit_ready(
    store: Any, weight: int, *, group_id: str | None = None, target_step: int | None = None
) -> str:
    """Reserve and commit one group under a store or session, and return its id."""
    reservation = await store.buffer.reserve(weight, group_id=group_id, target_step=target_step)
    await store.buffer.commit(
        reservation.group_id,
        rows(weight % 1000),
        start_weight_version=weight,
        end_weight_version=weight,
    )
    return str(reservation.group_id)


async def until(
    condition: Callable[[], Awaitable[bool]], *, what: str, seconds: float = 10.0
) -> None:
    """Wait until a condition holds; fail saying what never happened."""
    with anyio.move_on_after(seconds):
        while not await condition():
            await anyio.sleep(0.005)
        return
    raise AssertionError(f"within {seconds} s it never happened that {what}")


@contextmanager
def fences_from_the_beginning() -> Iterator[None]:
    """Have runs that are made in the block draw fences from 1 on, so that they can be compared."""

    async def zero(gateway: Gateway) -> int:
        del gateway
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "first_fence", zero)
        yield
