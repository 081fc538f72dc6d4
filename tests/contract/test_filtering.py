"""Commits under dynamic sampling: kept, or ended in one script with a replacement in the place."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from redis_replay import (
    DynamicSampling,
    FilterOutcome,
    InOrderSamplerConfig,
    Replacement,
    create_sampler,
)
from redis_replay._redis.keys import Key
from redis_replay.errors import DuplicateGroup, StaleAttempt, UnknownGroup, WrongState
from tests.contract.keyspace import attached, collected, control_key, nothing_changed
from tests.contract.prompt_groups import record_of
from tests.harness import Runs, commit_ready, until

pytestmark = pytest.mark.anyio

NOT_REWARDS: dict[str, tuple[type[Exception], list[Any]]] = {
    "a dict": (TypeError, [0.0, {"acc": 1}]),
    "text": (TypeError, [0.0, "1.0"]),
    "none": (TypeError, [0.0, None]),
    "a list": (TypeError, [0.0, [1.0]]),
    "an array of one": (TypeError, [0.0, np.ones(1)]),
    "a fraction": (TypeError, [0.0, Fraction(1, 2)]),
    "nan": (ValueError, [0.0, math.nan]),
    "infinity": (ValueError, [0.0, math.inf]),
    "two infinities": (ValueError, [0.0, -math.inf]),
    "an inexact integer": (ValueError, [0.0, 2**53 + 1]),
}
"""Rewards of a group whose row 1 is refused."""

VOTES: dict[str, tuple[DynamicSampling, Any, bool]] = {
    "only the truncated row differs": (
        DynamicSampling("exclude", overlong_filtering=True),
        record_of([0, 1, 1, 1], truncated=[0]),
        False,
    ),
    "truncated rows vote without overlong filtering": (
        DynamicSampling("exclude"),
        record_of([0, 1, 1, 1], truncated=[0]),
        True,
    ),
    "all rows vote under include": (
        DynamicSampling("include", overlong_filtering=True),
        record_of([0, 1, 1, 1], truncated=[0]),
        True,
    ),
    "all rows vote without a policy": (
        DynamicSampling(None, overlong_filtering=True),
        record_of([0, 1, 1, 1], truncated=[0]),
        True,
    ),
    "another row than the truncated one differs": (
        DynamicSampling("exclude", overlong_filtering=True),
        record_of([1, 0, 0, 0], truncated=[1]),
        True,
    ),
    "all rows are masked": (
        DynamicSampling("exclude"),
        record_of([0.2, 0.4, 0.6, 0.8], masked=range(4)),
        False,
    ),
    "masked rows vote under include": (
        DynamicSampling("include"),
        record_of([0.2, 0.4, 0.6, 0.8], masked=range(4)),
        True,
    ),
    "a single row votes": (DynamicSampling(), record_of([0, 1, 1, 1], masked=[1, 2, 3]), False),
    "the data set's weight is zero": (
        DynamicSampling("include"),
        record_of([0, 1, 0, 1], weight=0.0),
        False,
    ),
    "equal tenths": (DynamicSampling(), record_of([0.1] * 4), False),
    "equal thirds": (DynamicSampling(), record_of([1 / 3] * 4), False),
    "one ulp apart": (DynamicSampling(), record_of([0.3, 0.3, 0.3, 0.1 + 0.2]), True),
    "next to nothing apart": (DynamicSampling(), record_of([0.0, 0.0, 0.0, 1e-300]), True),
    "negative": (DynamicSampling(), record_of([-1, -1, -1, -1]), False),
    "a mean of zero": (DynamicSampling(), record_of([-1, 1, -1, 1]), True),
    "a mean inside the unit interval": (DynamicSampling(), record_of([0.5] * 4), False),
    "both zeros": (DynamicSampling(), record_of([0.0, -0.0, 0.0, -0.0]), False),
    "truths": (DynamicSampling(), record_of([True, False, True, True]), True),
    "the widest": (DynamicSampling(), record_of([1e308, -1e308, 1e308, -1e308]), True),
}


@pytest.mark.parametrize("name", NOT_REWARDS)
@pytest.mark.parametrize("door", ["filter", "buffer", "rows"])
async def test_what_is_no_reward_is_refused_at_the_door_with_group_and_row(
    runs: Runs, name: str, door: str
) -> None:
    refused, rewards = NOT_REWARDS[name]
    async with runs.open() as store:
        slot = await store.buffer.reserve(0, group_id="g", target_step=0)
        record: Any = record_of(rewards)
        if door == "rows":
            record = [{"reward": reward} for reward in rewards]
        commit: Any = store.filter().commit if door == "filter" else store.buffer.commit
        async with nothing_changed(runs):
            with pytest.raises(refused, match=r"group 'g', row 1: reward"):
                await commit("g", record, start_weight_version=0, end_weight_version=0)
        await store.buffer.abort("g", fence=slot.fence)


@pytest.mark.parametrize("count", [1, 3, 4])
@pytest.mark.parametrize("reward", [0.0, None])
async def test_a_wrong_number_of_completions_is_refused_whether_or_not_it_has_signal(
    runs: Runs, count: int, reward: float | None
) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g", target_step=0)
        rewards = [float(row) if reward is None else reward for row in range(count)]
        async with nothing_changed(runs):
            with pytest.raises(ValueError, match=rf"'g': expected 2 rows .*got {count}"):
                await store.filter().commit(
                    "g", record_of(rewards), start_weight_version=0, end_weight_version=0
                )
        await store.buffer.remove_group("g")


async def test_versions_and_policies_are_refused_for_dropped_groups_too(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.reserve(0, group_id="g")
        async with nothing_changed(runs):
            for start, end in ((-1, 0), (1, 0)):
                with pytest.raises(ValueError, match="weight_version"):
                    await store.filter().commit(
                        "g", record_of([1, 1]), start_weight_version=start, end_weight_version=end
                    )
            with pytest.raises(ValueError, match="masked_reward_policy"):
                await store.filter(DynamicSampling("keep")).commit(
                    "g", record_of([1, 1]), start_weight_version=0, end_weight_version=0
                )
            with pytest.raises(ValueError, match="weight_version"):
                await store.filter().commit(
                    "g", record_of([1, 1]), start_weight_version=0, end_weight_version=0,
                    replacement=Replacement(-1),
                )  # fmt: skip
        with pytest.raises(ValueError, match="max_replacements"):
            DynamicSampling(max_replacements=-1)


@pytest.mark.parametrize("name", VOTES)
async def test_the_rows_that_vote_decide_and_all_rows_are_reported(runs: Runs, name: str) -> None:
    settings, record, kept = VOTES[name]
    async with runs.open(group_size=4) as store:
        await store.buffer.reserve(0, group_id="g", target_step=3)
        outcome = await store.filter(settings).commit(
            "g", record, start_weight_version=0, end_weight_version=0
        )
        assert FilterOutcome(kept=kept) == outcome
        stats = await store.stats()
        assert (int(kept), int(not kept), 0) == (stats.ready, stats.filtered, stats.reserved)
        await collected(store)
        assert kept == bool(await runs.payload_keys())
        metrics = await store.drain_step_reward_metrics(3)
        mean = math.fsum(float(c.reward) for c in record.completions) / 4
        assert (mean, 1.0, float(not kept)) == (
            metrics["unfiltered_reward"],
            metrics["generated_prompt_groups"],
            metrics["zero_variance_prompt_groups"],
        )


async def test_scalars_of_every_kind_are_stored_as_the_floats_they_are(runs: Runs) -> None:
    rewards = [True, 0, 1, np.float32(0.5), np.float64(0.5), np.int64(2)]
    async with runs.open(group_size=6) as store:
        await store.buffer.reserve(0, group_id="g", target_step=0)
        await store.filter().commit(
            "g", record_of(rewards), start_weight_version=0, end_weight_version=0
        )
        assert [(1.0, 0.0, 1.0, 0.5, 0.5, 2.0)] == await store.buffer.rewards(["g"])
        metrics = await store.drain_step_reward_metrics(0)
        assert 5.0 / 6 == metrics["unfiltered_reward"]


async def test_a_dropped_group_gives_its_place_to_its_replacement_in_a_full_buffer(
    runs: Runs,
) -> None:
    async with runs.open(capacity=1) as store, store.rollout(owner="r") as rollout:
        slot = await rollout.buffer.reserve(1, target_step=4, prompt_ref=b"old")
        outcome = await rollout.filter().commit(
            slot.group_id, record_of([1, 1]), start_weight_version=1, end_weight_version=2,
            replacement=Replacement(2, prompt_ref=b"new", group_id="again"),
        )  # fmt: skip
        made = outcome.replacement
        assert made is not None
        assert ("again", 2, 4, 1, b"new", 1) == (
            *(made.group_id, made.weight_version, made.target_step, made.attempt),
            *(made.prompt_ref, made.replacement_index),
        )
        [view] = await store.buffer.slots()
        assert ("again", made.fence, "r") == (view.group_id, view.fence, view.owner)
        assert await rollout.filter().commit(
            "again", record_of([0, 1]), start_weight_version=2, end_weight_version=2
        ) == FilterOutcome(kept=True)


@pytest.mark.parametrize("budget", [0, 1, 3])
async def test_the_budget_is_counted_along_the_chain_of_one_place(runs: Runs, budget: int) -> None:
    async with runs.open(groups_per_step=1) as store:
        commits = store.filter(DynamicSampling(max_replacements=budget))
        for target in (5, None):
            slot = await store.buffer.reserve(0, target_step=target)
            indexes = [slot.replacement_index]
            while True:
                outcome = await commits.commit(
                    slot.group_id, record_of([0, 0]), start_weight_version=0, end_weight_version=0,
                    replacement=Replacement(0),
                )  # fmt: skip
                if outcome.replacement is None:
                    break
                slot = outcome.replacement
                indexes.append(slot.replacement_index)
            assert list(range(budget + 1)) == indexes
        assert 2 * (budget + 1) == (await store.stats()).filtered
        target_of_5 = await store.step_target(5)
        assert (budget + 1, budget, 0) == (
            target_of_5.lost,
            target_of_5.replaced,
            target_of_5.reachable,
        )


async def test_a_replacement_under_a_live_id_is_refused_and_nothing_ends(runs: Runs) -> None:
    async with runs.open() as store:
        live = await commit_ready(store, 0)
        slot = await store.buffer.reserve(0, target_step=1)
        async with nothing_changed(runs):
            for taken in (live, slot.group_id):
                with pytest.raises(DuplicateGroup):
                    await store.filter().commit(
                        slot.group_id, record_of([1, 1]),
                        start_weight_version=0, end_weight_version=0,
                        replacement=Replacement(0, group_id=taken),
                    )  # fmt: skip


async def test_only_the_attempt_that_holds_a_group_may_drop_it(runs: Runs) -> None:
    async with runs.open() as store, store.rollout(owner="r") as rollout:
        slot = await rollout.buffer.reserve(0, target_step=1)
        ready = await commit_ready(rollout, 0, target_step=1)
        await attached(store)
        async with nothing_changed(runs):
            for group_id, fence, refused in (
                (slot.group_id, slot.fence, StaleAttempt),
                (slot.group_id, None, StaleAttempt),
                ("absent", 7, UnknownGroup),
                ("absent", None, UnknownGroup),
            ):
                with pytest.raises(refused):
                    await store.filter().fail(group_id, fence=fence, replacement=Replacement(0))
            for place, fence in ((rollout, slot.fence + 1), (rollout, slot.fence - 1)):
                with pytest.raises(StaleAttempt):
                    await place.filter().fail(slot.group_id, fence=fence)
            with pytest.raises(WrongState):
                await rollout.filter().fail(ready)


async def test_a_group_that_failed_is_not_tallied_and_ends_with_its_reason(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        slot = await store.buffer.reserve(0, target_step=2)
        outcome = await store.filter().fail(
            slot.group_id, reason="sandbox lost", replacement=Replacement(0)
        )
        assert outcome.replacement is not None
        assert (2, 1) == (
            outcome.replacement.target_step,
            outcome.replacement.replacement_index,
        )
        await store.filter().fail(outcome.replacement.group_id)
        assert {} == await store.drain_step_reward_metrics(2)
        ends = await runs.client.hgetall(control_key(runs, Key.ENDS))
        assert {b"aborted:sandbox lost": b"1", b"aborted:failed": b"1"} == ends


async def test_every_group_ends_with_its_reason_in_the_ledger(runs: Runs) -> None:
    async with runs.open(groups_per_step=2) as store:
        commits = store.filter()
        trained = await commit_ready(store, 0)
        await store.buffer.claim_for_training([trained])
        await store.buffer.release_training_claims([trained])
        for rewards, verb in (([1, 1], "filter"), ([], "fail"), ([], "abort"), ([], "remove")):
            slot = await store.buffer.reserve(0)
            if verb == "filter":
                await commits.commit(
                    slot.group_id, record_of(rewards), start_weight_version=0, end_weight_version=0
                )
            elif verb == "fail":
                await commits.fail(slot.group_id)
            elif verb == "abort":
                await store.buffer.abort(slot.group_id, reason="slow")
            else:
                await store.buffer.remove_group(slot.group_id, reason="bad")
        assert {
            b"trained:trained": b"1",
            b"filtered:no_signal": b"1",
            b"aborted:failed": b"1",
            b"aborted:slow": b"1",
            b"removed:bad": b"1",
        } == await runs.client.hgetall(control_key(runs, Key.ENDS))
        assert (await store.audit()).is_clean


async def test_a_replacement_whose_caller_was_cancelled_is_found_by_the_next_look(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.rollout(owner="r") as rollout:
        slot = await rollout.buffer.reserve(0, target_step=1)
        session = rollout.buffer.session
        run_numbered, answered = session.run_numbered, anyio.Event()

        async def slow(*arguments: Any, **options: Any) -> Any:
            reply = await run_numbered(*arguments, **options)
            scope.cancel()
            answered.set()
            await anyio.lowlevel.checkpoint()
            return reply

        session.run_numbered = slow  # type: ignore[method-assign]
        with anyio.CancelScope() as scope:
            await rollout.filter().commit(
                slot.group_id, record_of([1, 1]), start_weight_version=0, end_weight_version=0,
                replacement=Replacement(0, prompt_ref=b"new"),
            )  # fmt: skip
        await answered.wait()
        session.run_numbered = run_numbered  # type: ignore[method-assign]
        assert scope.cancelled_caught

        async def kept() -> bool:
            return bool(rollout.buffer.holdings.undelivered)

        await until(kept, what="the replacement was kept for the session")
        [found] = await rollout.take_tickets(max_tickets=4, weight_version=0)
        assert (1, 1, b"new") == (found.target_step, found.replacement_index, found.prompt_ref)
        assert [] == await rollout.take_tickets(max_tickets=4, weight_version=0)
        await rollout.filter().commit(
            found.group_id, record_of([0, 1]), start_weight_version=0, end_weight_version=0
        )
        assert 1 == (await store.stats()).ready


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_replacement_does_not_answer_an_open_admission(runs: Runs, by_hand: bool) -> None:
    async with runs.open() as store:
        sampler = create_sampler(store.buffer, InOrderSamplerConfig(max_lookahead_versions=2))
        slots = [await store.buffer.reserve(0, target_step=target) for target in (None, 0)]
        for _ in slots:
            await sampler.admit(trainer_version_fn=lambda: 0)
        for slot in slots:
            if by_hand:
                await store.filter().fail(slot.group_id)
                await store.buffer.reserve(0, target_step=slot.target_step, replacement_index=1)
            else:
                await store.filter().fail(slot.group_id, replacement=Replacement(0))
        admissions = control_key(runs, Key.ADMISSIONS)
        assert [b"0", b"1"] == sorted(await runs.client.hkeys(admissions))
