"""What becomes of groups in odd places: damaged, missing a row, late for their step."""

from __future__ import annotations

import anyio
import pytest

from redis_replay import InOrderSampler, InOrderSamplerConfig, Rule, Selection, create_sampler
from redis_replay._redis.keys import Key
from redis_replay._redis.run_scripts import EndOwner
from redis_replay.errors import PayloadMissing
from tests.contract.keyspace import control_key, send_plain, session_of
from tests.harness import Runs, commit_ready

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("asked", [["g_g0", "g_g5"], ["g_g5"], ["g_g0", "g_g1", "g_g2"]])
async def test_a_row_that_the_group_does_not_have_is_never_another_row(
    runs: Runs, asked: list[str]
) -> None:
    async with runs.open() as store:
        await commit_ready(store, 0, group_id="g")
        with pytest.raises(ValueError, match="row"):
            await store.samples.get_samples(asked)


async def test_a_row_that_the_group_does_not_have_cannot_be_written(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        await commit_ready(store, 0, group_id="g")
        await trainer.buffer.claim_for_training(["g"])
        with pytest.raises(ValueError, match="row"):
            await trainer.samples.put_samples(["g_g2"], fields={"x": [1]})


async def test_a_group_without_its_record_is_quarantined_and_the_others_are_trained(
    runs: Runs,
) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        bad, good = [await commit_ready(store, 0) for _ in range(2)]
        groups = control_key(runs, Key.GROUPS)
        [field] = [name for name in await runs.client.hkeys(groups) if bad.encode() in name]
        await runs.client.hdel(groups, field)
        with pytest.raises(PayloadMissing, match=bad) as refused:
            await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 0, 1, 2))
        assert (bad, (bad,)) == (refused.value.group_id, refused.value.quarantined)
        meta, count = await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 0, 1, 2))
        assert meta is not None
        assert ([good], 1) == (meta.extra_info["group_ids"], count)
        assert (good,) == (await trainer.commit_step(0)).trained
        await store.buffer.remove([bad])


async def test_an_index_of_a_passed_step_is_not_given_out_again(runs: Runs) -> None:
    def in_order(place: object) -> InOrderSampler:
        config = InOrderSamplerConfig(max_lookahead_versions=1)
        sampler = create_sampler(place.buffer, config)  # type: ignore[attr-defined]
        assert isinstance(sampler, InOrderSampler)
        return sampler

    async with runs.open() as store:
        async with store.rollout(owner="gone") as host:
            assert 0 == await in_order(host).admit(trainer_version_fn=lambda: 0)
            assert 1 == await in_order(host).admit(trainer_version_fn=lambda: 0)
        await store.publish_trainer_version(1)
        async with store.rollout(owner="next") as host:
            sampler = in_order(host)
            with anyio.fail_after(10):
                assert 1 == await sampler.admit(trainer_version_fn=lambda: 1)
                await sampler.wait_until_admissible(trainer_version_fn=lambda: 1)
                async with host.mutation() as cut:
                    assert 2 == sampler.commit_admission(cut)
                    cut.reserve(1, target_step=2)
        assert {b"1"} == set(await runs.client.hkeys(control_key(runs, Key.ADMISSIONS)))


async def test_a_session_that_is_still_being_drained_is_no_violation(runs: Runs) -> None:
    async with runs.open() as store, store.trainer(owner="job") as trainer:
        for _ in range(3):
            await commit_ready(store, 0)
        await trainer.buffer.claim(Selection(Rule.BUFFER, 0, 0, 3, 3))
        session = session_of(trainer)
        assert session.pulse is not None
        session.link.heart.remove(session.pulse)
        first = EndOwner("job", trainer.epoch, None, 1, limit=2)
        assert (0, 2, 0, True) == await send_plain(session_of(store), first)
        assert () == (await store.audit()).violations
