"""The tally in the store is that of the pure functions, bit for bit, in commit order.

Random groups go through both; every number that leaves is compared for equality, doubles included.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import fakeredis
import pytest
import redis.asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import redis_replay
from redis_replay import (
    StepRewardStats,
    drain_step_reward_metrics,
    record_group_rewards,
    rewards_carry_no_signal,
)
from tests.contract.prompt_groups import record_of

STEPS = range(4)


@dataclass(frozen=True)
class Group:
    """One generated group: its rewards, its step, and whether it is a replacement."""

    rewards: tuple[float, ...]
    step: int | None
    attempt: int
    filtered: bool


@dataclass(frozen=True)
class Drained:
    """The trainer drains a step in between."""

    step: int


REWARDS = st.one_of(
    st.floats(-1e300, 1e300, allow_nan=False),
    st.sampled_from([0.0, -0.0, 0.1, 0.3, 0.1 + 0.2, 1 / 3, 5e-324, 1e16, -1e16, 2.0**-1074]),
)
GROUPS = st.builds(
    Group,
    rewards=st.one_of(st.tuples(REWARDS, REWARDS), REWARDS.map(lambda reward: (reward, reward))),
    step=st.one_of(st.none(), st.sampled_from(STEPS)),
    attempt=st.sampled_from([0, 0, 1, 2]),
    filtered=st.booleans(),
)
HISTORIES = st.lists(st.one_of(GROUPS, GROUPS, GROUPS, st.builds(Drained, st.sampled_from(STEPS))))


def on_fake(_: str) -> Any:
    """Return a client of a fresh fake server."""
    return fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())


def on_real(url: str) -> Any:
    """Return a client of the session's real server."""
    return redis.asyncio.Redis.from_url(url)


@pytest.mark.parametrize("connect", [on_fake, on_real])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=HISTORIES)
@example([Group((0.1, 0.2), 1, 0, True), Group((0.7, 0.3), 1, 0, True), Drained(1)])
@example([Group((1e16, 1.0), 0, 0, False), Group((-1e16, 0.0), 0, 1, False)])
@example([Drained(2), Group((0.0, 1.0), 2, 0, True), Group((0.0, 1.0), 3, 0, True)])
@example([Group((0.0, 1.0), 3, 0, True), Drained(1), Drained(0), Group((1.0, 1.0), 1, 0, True)])
def test_the_stored_tally_is_that_of_the_pure_functions(
    real_server: str, connect: Callable[[str], Any], history: list[Group | Drained]
) -> None:
    anyio.run(check, connect, real_server, history)


async def check(connect: Callable[[str], Any], url: str, history: list[Group | Drained]) -> None:
    """Run a history on a fresh run and on the pure functions."""
    client = connect(url)
    known: dict[int, StepRewardStats] = {}
    drained = -1
    async with redis_replay.open_store(
        client=client, run=f"tally-{secrets.token_hex(6)}", capacity=256, group_size=2
    ) as store:
        for event in [*history, *map(Drained, STEPS)]:
            if isinstance(event, Drained):
                expected = drain_step_reward_metrics(known, event.step)
                assert repr(expected) == repr(await store.drain_step_reward_metrics(event.step))
                drained = max(drained, event.step)
                continue
            slot = await store.buffer.reserve(
                0, target_step=event.step, replacement_index=event.attempt
            )
            commit: Any = store.filter().commit if event.filtered else store.buffer.commit
            await commit(
                slot.group_id,
                record_of(event.rewards),
                start_weight_version=0,
                end_weight_version=0,
            )
            if event.step is None or event.step > drained:
                record_group_rewards(
                    known,
                    event.step,
                    event.rewards,
                    replacement_index=event.attempt,
                    zero_variance=rewards_carry_no_signal(event.rewards),
                )
    await client.aclose()
