"""The payload that a checkpoint refers to stays, whatever ends, collects or fails meanwhile."""

from __future__ import annotations

import pytest

from redis_replay._redis.run_scripts import EndOwner
from redis_replay.errors import StaleOwner
from tests.contract.interruptions import Break, Interruption
from tests.contract.keyspace import send_plain
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


async def test_a_refused_repetition_of_a_commit_frees_nothing_a_checkpoint_refers_to(
    runs: Runs,
) -> None:
    async with (
        runs.open() as store,
        runs.open() as other,
        store.rollout(owner="host") as host,
        other.trainer(owner="job") as trainer,
    ):
        await commit_ready(host, 0)  # so that the server knows the script
        await host.buffer.reserve(0, group_id="g")

        async def train_and_end_the_host() -> None:
            await other.checkpoints.create("kept")
            await trainer.buffer.claim_for_training(["g"])
            await trainer.commit_step(0)
            end = EndOwner("host", host.epoch, None, planned=0)
            await send_plain(other.buffer.session, end)

        lost = Interruption(store, at=1, kind=Break.NO_REPLY, meanwhile=train_and_end_the_host)
        with pytest.raises(StaleOwner):
            await host.buffer.commit("g", rows(), start_weight_version=0, end_weight_version=0)
        lost.end()
        assert (await other.checkpoints.verify("kept", deep=True)).is_whole
        assert 2 == (await other.checkpoints.restore("kept")).ready
