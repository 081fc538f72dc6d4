"""A trainer group: the leader claims, ranks read slices and acknowledge, then a step commits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from redis_replay import Rule, Selection, TrainerRank, TrainerSession
from redis_replay._redis.keys import Key
from redis_replay.errors import (
    ClaimError,
    ClaimLost,
    ClaimMismatch,
    StoreClosed,
    UnacknowledgedRanks,
)
from tests.contract.keyspace import attached, control_key, nothing_changed
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def claim(store: Any, trainer: TrainerSession, *, groups: int) -> int:
    """Commit groups, claim them under the leader, and return the batch's number."""
    for at in range(groups):
        made = await store.buffer.reserve(0, group_id=f"g{at}")
        await store.buffer.commit(
            made.group_id, rows(10 * at), start_weight_version=0, end_weight_version=0
        )
    await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 0, groups, groups))
    return trainer.batches[-1]


def rank_of(store: Any, trainer: TrainerSession, rank: int) -> TrainerRank:
    """Join with what the leader broadcasts."""
    joined: TrainerRank = store.trainer_rank(owner="job", epoch=trainer.epoch, rank=rank)
    return joined


async def test_the_slices_of_all_ranks_are_the_batch_in_order(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as host,
        store.trainer(owner="job", world=4) as trainer,
    ):
        batch = await claim(store, trainer, groups=6)
        ranks = [rank_of(host, trainer, rank) for rank in range(4)]
        slices = [await rank.read_slice(batch) for rank in ranks]
        assert [3, 3, 3, 3] == [part.size for part in slices]
        whole = [f"g{group}_g{row}" for group in range(6) for row in range(2)]
        assert whole == [sample_id for part in slices for sample_id in part.sample_ids]
        read = await ranks[1].samples.get_samples(slices[1], select_fields=["reward"])
        np.testing.assert_array_equal([11, 20, 21], [row["reward"] for row in read])
        assert [0] * 6 == slices[2].extra_info["lags"]


async def test_reading_a_slice_changes_nothing_and_a_restarted_rank_reads_the_same(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=2) as trainer:
        batch = await claim(store, trainer, groups=2)
        async with nothing_changed(runs):
            first = await rank_of(store, trainer, 1).read_slice(batch)
        await rank_of(store, trainer, 0).acknowledge(batch)
        async with runs.open() as restarted:
            assert first == await rank_of(restarted, trainer, 1).read_slice(batch)


async def test_a_step_commits_when_all_ranks_have_acknowledged(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=3) as trainer:
        batch = await claim(store, trainer, groups=3)
        await rank_of(store, trainer, 1).acknowledge(batch)
        async with nothing_changed(runs):
            with pytest.raises(
                UnacknowledgedRanks, match=rf"batch {batch} .* ranks \[0, 2\]"
            ) as no:
                await trainer.commit_step(0)
            with pytest.raises(UnacknowledgedRanks):
                await trainer.buffer.release_training_claims(["g0", "g1", "g2"])
        assert (0, 2) == no.value.ranks
        for rank in (0, 2):
            await rank_of(store, trainer, rank).acknowledge(batch)
        assert ("g0", "g1", "g2") == (await trainer.commit_step(0)).trained
        for key in (Key.BATCHES, Key.ACKS):
            assert 0 == await runs.client.exists(control_key(runs, key))


async def test_a_rank_counts_once_and_ten_is_not_one(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=12) as trainer:
        batch = await claim(store, trainer, groups=6)
        for rank in (10, 11):
            await rank_of(store, trainer, rank).acknowledge(batch)
        async with nothing_changed(runs):
            await rank_of(store, trainer, 10).acknowledge(batch)
        with pytest.raises(UnacknowledgedRanks) as refused:
            await trainer.commit_step(0)
        assert tuple(range(10)) == refused.value.ranks


async def test_a_trainer_of_one_rank_needs_no_acknowledgement(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        batch = await claim(store, trainer, groups=1)
        assert 2 == (await rank_of(store, trainer, 0).read_slice(batch)).size
        assert ("g0",) == (await trainer.commit_step(0)).trained


async def test_each_batch_of_a_step_is_acknowledged_for_itself(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=2) as trainer:
        first = await claim(store, trainer, groups=2)
        await commit_ready(store, 0, group_id="more")
        await trainer.buffer.claim_for_training(["more"])
        second = trainer.batches[-1]
        for rank in (0, 1):
            await rank_of(store, trainer, rank).acknowledge(first)
        with pytest.raises(UnacknowledgedRanks, match=f"batch {second}"):
            await trainer.commit_step(0)
        for rank in (0, 1):
            await rank_of(store, trainer, rank).acknowledge(second)
        assert 3 == len((await trainer.commit_step(0)).trained)


async def test_rows_that_do_not_divide_by_the_ranks_are_never_left_out(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=3) as trainer:
        batch = await claim(store, trainer, groups=2)
        with pytest.raises(ValueError, match="4 rows, which do not divide by 3 ranks"):
            await rank_of(store, trainer, 0).read_slice(batch)
        with pytest.raises(ValueError, match=r"rank 3 is not below .* 3"):
            await rank_of(store, trainer, 3).read_slice(batch)


async def test_a_rank_outside_the_group_cannot_join(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=2) as trainer:
        for bad in (-1, True, "0"):
            with pytest.raises((ValueError, TypeError), match="rank"):
                store.trainer_rank(owner="job", epoch=trainer.epoch, rank=bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("gone", ["never", "settled", "requeued", "other"])
async def test_a_batch_that_is_not_the_leaders_live_claim_is_refused(runs: Runs, gone: str) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="job") as trainer,
        store.trainer(owner="b") as other,
    ):
        batch = await claim(store, trainer, groups=2)
        rank = rank_of(store, trainer, 0)
        if gone == "settled":
            await trainer.commit_step(0)
        elif gone == "requeued":
            await trainer.requeue()
        elif gone == "other":
            rank = store.trainer_rank(owner="b", epoch=other.epoch, rank=0)
        else:
            batch += 100
        await store.collect_garbage()
        async with nothing_changed(runs):
            with pytest.raises(ClaimMismatch, match=f"batch {batch} is not a live claim"):
                await rank.read_slice(batch)
            with pytest.raises(ClaimMismatch, match=f"batch {batch} is not a live claim"):
                await rank.acknowledge(batch)


async def test_a_batch_that_lost_a_group_is_not_read_as_if_it_were_whole(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=2) as trainer:
        batch = await claim(store, trainer, groups=2)
        await trainer.buffer.requeue(["g1"])
        with pytest.raises(ClaimMismatch, match="not whole"):
            await rank_of(store, trainer, 0).read_slice(batch)


async def test_ranks_of_a_replaced_leader_are_fenced_with_it(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        store.trainer(owner="job", world=2) as older,
    ):
        batch = await claim(store, older, groups=2)
        rank = rank_of(store, older, 0)
        async with second.trainer(owner="job", world=2) as newer:
            async with nothing_changed(runs):
                for call in (rank.acknowledge(batch), rank.read_slice(batch)):
                    with pytest.raises(ClaimLost):
                        await call
            await newer.buffer.claim_for_training(["g0", "g1"])
            fresh = rank_of(second, newer, 0)
            assert ["g0_g0", "g0_g1"] == (await fresh.read_slice(newer.batches[0])).sample_ids


async def test_claims_pass_to_another_live_session_under_a_new_number(runs: Runs) -> None:
    async with (
        runs.open() as store,
        runs.open() as second,
        store.trainer(owner="job", world=2) as trainer,
        second.trainer(owner="b") as other,
    ):
        batch = await claim(store, trainer, groups=2)
        await rank_of(store, trainer, 0).acknowledge(batch)
        assert 2 == await trainer.transfer_claims(to="b")
        assert () == trainer.batches
        with pytest.raises(ClaimMismatch, match="not owned here"):
            await other.commit_step(0)
        meta, groups = await other.adopt_claims()
        assert meta is not None
        assert (["g0", "g1"], 2) == (meta.extra_info["group_ids"], groups)
        assert batch not in other.batches
        assert ("g0", "g1") == (await other.commit_step(0)).trained
        with pytest.raises(ClaimMismatch):
            await rank_of(store, trainer, 0).read_slice(batch)


async def test_claims_are_handed_to_nobody_without_changing_hands(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await claim(store, trainer, groups=2)
        async with nothing_changed(runs):
            with pytest.raises(ClaimError, match="'ghost'"):
                await trainer.transfer_claims(to="ghost")
        assert ["g0", "g1"] == await trainer.buffer.training_owned_group_ids()
        assert 1 == len(trainer.batches)


async def test_a_transfer_of_no_claims_is_nothing(runs: Runs) -> None:
    async with (
        runs.open() as store,
        store.trainer(owner="job") as trainer,
        store.trainer(owner="b") as other,
        nothing_changed(runs),
    ):
        assert 0 == await trainer.transfer_claims(to="b")
        assert (None, 0) == await other.adopt_claims()


async def test_claims_handed_over_come_back_when_their_receiver_leaves(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        async with store.trainer(owner="b"):
            await claim(store, trainer, groups=2)
            await trainer.transfer_claims(to="b")
        assert (2, 0) == ((await store.stats()).ready, (await store.stats()).claimed)
        await trainer.buffer.claim_for_training(["g1"])
        assert ("g1",) == (await trainer.commit_step(0)).trained


async def test_a_rank_of_a_closed_store_says_so(runs: Runs) -> None:
    async with runs.open() as store:
        await attached(store)
        rank = store.trainer_rank(owner="job", epoch=1, rank=0)
    with pytest.raises(StoreClosed):
        await rank.acknowledge(1)
    with pytest.raises(StoreClosed):
        store.trainer_rank(owner="job", epoch=1, rank=0)


async def test_a_rank_writes_columns_back_to_its_slice_and_the_leader_reads_them(
    runs: Runs,
) -> None:
    async with (
        runs.open() as store,
        runs.open() as host,
        store.trainer(owner="job", world=2) as trainer,
    ):
        batch = await claim(store, trainer, groups=2)
        for at in range(2):
            rank = rank_of(host, trainer, at)
            part = await rank.read_slice(batch)
            await rank.samples.put_samples(
                part.sample_ids, fields={"advantage": [at + row / 10 for row in range(part.size)]}
            )
        written = await trainer.samples.get_samples(
            [f"g{group}_g{row}" for group in range(2) for row in range(2)],
            select_fields=["advantage"],
        )
        assert [0.0, 0.1, 1.0, 1.1] == [row["advantage"] for row in written]


async def test_a_rank_whose_trainer_was_replaced_writes_nothing_back(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job", world=2) as trainer:
        batch = await claim(store, trainer, groups=2)
        rank = rank_of(store, trainer, 0)
        part = await rank.read_slice(batch)
        async with store.trainer(owner="job", world=2), nothing_changed(runs):
            with pytest.raises(ClaimLost):
                await rank.samples.get_samples(part)
            with pytest.raises(ClaimLost):
                await rank.samples.put_samples(
                    part.sample_ids, fields={"advantage": [0.0] * part.size}
                )
