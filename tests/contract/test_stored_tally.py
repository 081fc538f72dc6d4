"""The reward tally of the store: recorded in the commit, shared, drained at once, bounded."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from redis_replay import InOrderSamplerConfig, create_sampler
from redis_replay._redis.keys import Key
from redis_replay._redis.scripts import Drain
from redis_replay.errors import StaleOwner
from redis_replay.heart import end_owner
from tests.contract.keyspace import attached, control_key, nothing_changed, send
from tests.contract.prompt_groups import record_of
from tests.harness import Runs, rows

pytestmark = pytest.mark.anyio


async def generate(
    place: Any, target: int | None, rewards: Sequence[float], *, attempt: int = 0
) -> str:
    """Reserve a group and commit it under the filter of the store or session."""
    slot = await place.buffer.reserve(0, target_step=target, replacement_index=attempt)
    await place.filter().commit(
        slot.group_id, record_of(rewards), start_weight_version=0, end_weight_version=0
    )
    return str(slot.group_id)


async def steps_of(runs: Runs) -> list[int]:
    """Return the steps that the tally holds."""
    return sorted(int(step) for step in await runs.client.hkeys(control_key(runs, Key.TALLY)))


async def test_metrics_are_over_rows_and_first_attempts_apart_from_replacements(
    runs: Runs,
) -> None:
    async with runs.open(group_size=4) as store:
        for rewards, attempt in (
            ([1, 0, 1, 1], 0),
            ([0, 0, 0, 0], 0),
            ([1, 1, 0, 0], 1),
            ([1, 1, 1, 1], 0),
        ):
            await generate(store, 3, rewards, attempt=attempt)
        assert {
            "unfiltered_reward": 0.5625,
            "first_attempt_reward": 7 / 12,
            "generated_prompt_groups": 4.0,
            "zero_variance_prompt_groups": 2.0,
            "zero_variance_fraction": 0.5,
        } == await store.drain_step_reward_metrics(3)


async def test_a_drain_forgets_its_step_and_older_ones_and_no_other(runs: Runs) -> None:
    async with runs.open(group_size=4) as store:
        for target, rewards, attempt in (
            (7, [1, 0, 1, 0], 0),
            (7, [1, 1, 1, 1], 0),
            (7, [0, 0, 0, 1], 1),
            (None, [1, 1, 1, 0], 0),
            (6, [1, 0, 1, 0], 0),
            (8, [1, 0, 0, 0], 1),
        ):
            await generate(store, target, rewards, attempt=attempt)
        assert {
            "unfiltered_reward": 7 / 12,
            "first_attempt_reward": 0.75,
            "generated_prompt_groups": 3.0,
            "zero_variance_prompt_groups": 1.0,
            "zero_variance_fraction": 1 / 3,
        } == await store.drain_step_reward_metrics(7)
        assert [8] == await steps_of(runs)
        assert {} == await store.drain_step_reward_metrics(7)
        assert {} == await store.drain_step_reward_metrics(6)
        metrics = await store.drain_step_reward_metrics(8)
        assert "first_attempt_reward" not in metrics
        assert 0.25 == json.loads(json.dumps(metrics))["unfiltered_reward"]


async def test_a_drain_far_ahead_leaves_nothing(runs: Runs) -> None:
    async with runs.open() as store:
        for target in (1, 2, 3, 4):
            await generate(store, target, [1, 0])
        assert 1.0 == (await store.drain_step_reward_metrics(3))["generated_prompt_groups"]
        assert [4] == await steps_of(runs)
        assert {} == await store.drain_step_reward_metrics(9)
        assert [] == await steps_of(runs)


async def test_an_older_drain_does_not_open_a_drained_step_again(runs: Runs) -> None:
    async with runs.open() as store:
        await store.drain_step_reward_metrics(5)
        await store.drain_step_reward_metrics(2)
        for target in (2, 4, 5, 6):
            await generate(store, target, [1, 0])
        assert [6] == await steps_of(runs)


async def test_a_straggler_of_a_drained_step_is_not_reported(runs: Runs) -> None:
    async with runs.open() as store:
        late = await store.buffer.reserve(0, target_step=3)
        await generate(store, 3, [1, 0])
        await store.drain_step_reward_metrics(3)
        await store.filter().commit(
            late.group_id, record_of([1, 0]), start_weight_version=0, end_weight_version=0
        )
        assert [] == await steps_of(runs)
        assert {} == await store.drain_step_reward_metrics(3)
        assert 2 == (await store.stats()).ready


async def test_commits_of_several_hosts_and_repetitions_count_once(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as other:
        for place in (store, other):
            slot = await place.buffer.reserve(0, target_step=1)

            async def commit(place: Any = place, slot: Any = slot) -> None:
                await place.buffer.commit(
                    slot.group_id, rows(), start_weight_version=0, end_weight_version=0,
                    fence=slot.fence,
                )  # fmt: skip

            async with anyio.create_task_group() as tasks:
                for _ in range(4):
                    tasks.start_soon(commit)
            await commit()
        metrics = await other.drain_step_reward_metrics(1)
        assert (2.0, 0.5) == (metrics["generated_prompt_groups"], metrics["unfiltered_reward"])


async def test_a_drop_whose_reply_was_lost_is_tallied_once(runs: Runs) -> None:
    async with runs.open() as store:
        slot = await store.buffer.reserve(0, target_step=1)
        session = store.buffer.session
        call = session.link.gateway.call
        sent: list[tuple[Any, Any]] = []

        async def kept(script: Any, frame: Any = (), **options: Any) -> Any:
            sent.append((script, frame))
            return await call(script, frame, **options)

        session.link.gateway.call = kept  # type: ignore[method-assign]
        await store.filter().commit(
            slot.group_id, record_of([1, 1]), start_weight_version=0, end_weight_version=0
        )
        session.link.gateway.call = call  # type: ignore[method-assign]
        [(script, frame)] = [(s, f) for s, f in sent if s.SCRIPT == "drop"]
        assert await call(script, frame) is None
        assert 1 == (await store.stats()).filtered
        assert 1.0 == (await store.drain_step_reward_metrics(1))["generated_prompt_groups"]


async def test_a_drain_whose_reply_was_lost_is_answered_again(runs: Runs) -> None:
    async with runs.open() as store:
        await generate(store, 1, [1, 0])
        session = store.buffer.session
        first = await send(session, Drain(1), number=800)
        async with nothing_changed(runs):
            assert first == await send(session, Drain(1), number=800)
        assert "1 0 1 2 1 2" == first


async def test_a_group_recorded_beside_drains_is_in_one_answer_or_in_none(runs: Runs) -> None:
    async with runs.open() as store, runs.open() as trainer:
        slots = [await store.buffer.reserve(0, target_step=1) for _ in range(24)]
        drained: list[float] = []

        async def finish(group_id: str) -> None:
            await store.filter().commit(
                group_id, record_of([1, 0]), start_weight_version=0, end_weight_version=0
            )

        async def drain() -> None:
            while len(drained) < 4:
                metrics = await trainer.drain_step_reward_metrics(1)
                drained.append(metrics.get("generated_prompt_groups", 0.0))

        async with anyio.create_task_group() as tasks:
            for slot in slots:
                tasks.start_soon(finish, slot.group_id)
            tasks.start_soon(drain)
        assert [0.0] * 3 == drained[1:]
        assert 0 <= drained[0] <= 24
        assert [] == await steps_of(runs)


async def test_promotion_leaves_the_tally_of_the_step_a_group_was_generated_for(
    runs: Runs,
) -> None:
    async with runs.open() as store:
        await generate(store, 7, [1, 0])
        before = await runs.client.hgetall(control_key(runs, Key.TALLY))
        assert 7 == await store.buffer.promote_ready_group(to_target_step=5)
        assert before == await runs.client.hgetall(control_key(runs, Key.TALLY))
        assert {} == await store.drain_step_reward_metrics(5)
        assert 1.0 == (await store.drain_step_reward_metrics(7))["generated_prompt_groups"]


async def test_the_tally_and_what_was_drained_survive_reopening(runs: Runs) -> None:
    async with runs.open() as store:
        await generate(store, 4, [0.1, 0.2])
        await generate(store, 5, [1, 1])
    async with runs.open() as store:
        await generate(store, 4, [0.7, 0.2])
        metrics = await store.drain_step_reward_metrics(4)
        assert (math.fsum([0.1, 0.2]) + math.fsum([0.7, 0.2])) / 4 == metrics["unfiltered_reward"]
    async with runs.open() as store:
        await generate(store, 4, [1, 0])
        assert [5] == await steps_of(runs)


async def test_a_group_without_rewards_or_without_a_step_is_not_tallied(runs: Runs) -> None:
    async with runs.open() as store:
        for target, row in ((None, {"reward": 1.0}), (2, {"score": 1.0})):
            slot = await store.buffer.reserve(0, target_step=target)
            await store.buffer.commit(
                slot.group_id, [row, row], start_weight_version=0, end_weight_version=0
            )
        assert [] == await steps_of(runs)


async def test_the_tally_keeps_the_newest_1024_steps_whatever_stragglers_do(runs: Runs) -> None:
    tally = control_key(runs, Key.TALLY)
    async with runs.open() as store:
        await store.buffer.session.attach()
        known = {str(step): "1 0 1 2 1 2" for step in range(100, 100 + 1023)}
        await runs.client.hset(tally, mapping=known)
        await generate(store, 50, [1, 0])
        assert [50, *range(100, 1123)] == await steps_of(runs)
        for straggler in (40, 49):
            await generate(store, straggler, [1, 0])
        assert [50, *range(100, 1123)] == await steps_of(runs)
        await generate(store, 60, [1, 0])
        assert [60, *range(100, 1123)] == await steps_of(runs)
        await generate(store, 2000, [1, 0])
        await generate(store, 2000, [1, 0])
        await generate(store, 100, [1, 0])
        assert [*range(100, 1123), 2000] == await steps_of(runs)
        assert b"2 0 2 4 2 4" == await runs.client.hget(tally, "100")


async def test_a_session_that_ended_drains_nothing(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await generate(store, 1, [1, 0])
        link = store.buffer.session.link
        await end_owner(link.gateway, link.run.frame, "job", trainer.epoch)
        await attached(store)
        async with nothing_changed(runs):
            with pytest.raises(StaleOwner):
                await trainer.drain_step_reward_metrics(1)
        assert [1] == await steps_of(runs)


async def test_a_drain_of_no_step_is_refused(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        async with nothing_changed(runs):
            for step in (-1, 2**53, True, 1.0):
                with pytest.raises((ValueError, TypeError), match="step"):
                    await store.drain_step_reward_metrics(step)  # type: ignore[arg-type]


async def test_a_late_commit_after_its_step_was_closed_is_not_resurrected(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        sampler = create_sampler(store.buffer, InOrderSamplerConfig())
        await sampler.flush()
        await store.publish_trainer_version(3)
        late = await store.buffer.reserve(3, group_id="x", target_step=3)
        await store.drain_step_reward_metrics(3)
        await store.publish_trainer_version(5)
        assert 0 == await sampler.evict(current_train_weight=5)
        await store.buffer.commit("x", rows(), start_weight_version=3, end_weight_version=3)
        assert late.fence == (await store.buffer.slots())[0].fence
        selected = await sampler.select(
            current_train_weight=5, min_prompt_groups=1, max_prompt_groups=2
        )
        assert (None, 0) == selected
        assert 1 == await sampler.evict(current_train_weight=5)
        assert 0 == await store.buffer.size()
        assert [] == await steps_of(runs)
        assert 2 == (await store.step_target(5)).reachable
