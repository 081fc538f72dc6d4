"""Who worked on a run before it was restored: refused in every verb, and told while waiting."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from redis_replay import (
    BaseSampler,
    Eviction,
    InOrderSamplerConfig,
    ReplayStore,
    RolloutSession,
    Rule,
    Selection,
    TrainerSession,
    create_sampler,
)
from redis_replay.errors import CutExpired, StaleAttempt, StaleOwner, StaleStore
from tests.contract.interruptions import Break, Interruption
from tests.contract.keyspace import attached, nothing_changed
from tests.contract.waits import Waits
from tests.harness import Runs, commit_ready, rows

pytestmark = pytest.mark.anyio


@dataclass
class Host:
    """Another host of a run that was restored without its knowledge."""

    store: ReplayStore
    rollout: RolloutSession
    trainer: TrainerSession
    sampler: Any
    fence: int


@asynccontextmanager
async def stale_host(runs: Runs, *, restored: bool = True) -> AsyncIterator[tuple[Any, Host]]:
    """Open a run on two hosts; the first restores it, the second has not heard of it."""
    async with (
        runs.open() as store,
        runs.open() as other,
        other.rollout(owner="host") as rollout,
        other.trainer(owner="job") as trainer,
    ):
        await attached(store, other)
        reserved = await rollout.buffer.reserve(0, group_id="r", target_step=1, prompt_ref=b"p")
        await commit_ready(rollout, 0, group_id="y", target_step=1)
        await commit_ready(rollout, 0, group_id="c", target_step=0)
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
        assert isinstance(sampler, BaseSampler)
        await sampler.flush()
        await trainer.buffer.claim_for_training(["c"])
        await store.checkpoints.create("kept")
        if restored:
            await store.checkpoints.restore("kept")
        yield store, Host(other, rollout, trainer, sampler, reserved.fence)


async def dispatch_by_cut(host: Host) -> None:
    async with host.rollout.mutation() as cut:
        cut.reserve(0)


VERBS: Mapping[str, Callable[[Host], Awaitable[Any]]] = {
    "reserve": lambda h: h.rollout.buffer.reserve(0),
    "commit": lambda h: h.rollout.buffer.commit(
        "r", rows(), start_weight_version=0, end_weight_version=0
    ),
    "abort": lambda h: h.rollout.buffer.abort("r"),
    "remove": lambda h: h.rollout.buffer.remove(["y"]),
    "evict": lambda h: h.rollout.buffer.evict(Eviction(below=9)),
    "take_tickets": lambda h: h.rollout.take_tickets(max_tickets=9, weight_version=0),
    "cut": dispatch_by_cut,
    "admit": lambda h: h.sampler.admit(trainer_version_fn=lambda: 9),
    "set_gate_window": lambda h: h.trainer.buffer.admission.set_gate_window(5),
    "claim": lambda h: h.trainer.buffer.claim(Selection(Rule.BUFFER, 0, 9, 1, 9)),
    "claim_exactly": lambda h: h.trainer.buffer.claim_for_training(["y"]),
    "select": lambda h: h.trainer.select(h.sampler, min_prompt_groups=1, max_prompt_groups=1),
    "commit_step": lambda h: h.trainer.commit_step(0),
    "skip_step": lambda h: h.trainer.skip_step(0),
    "abort_step": lambda h: h.trainer.abort_step(),
    "requeue": lambda h: h.trainer.requeue(),
    "release": lambda h: h.trainer.buffer.release_training_claims(["c"]),
    "transfer": lambda h: h.trainer.transfer_claims(to="host"),
    "put_samples": lambda h: h.trainer.samples.put_samples(["c_g0"], fields={"x": [1]}),
    "promote": lambda h: h.trainer.buffer.promote_ready_group(to_target_step=0),
    "drain": lambda h: h.trainer.drain_step_reward_metrics(0),
    "acknowledge": lambda h: h.store.trainer_rank(
        owner="job", epoch=h.trainer.epoch, rank=0
    ).acknowledge(h.trainer.batches[0]),
    "publish": lambda h: h.store.publish_trainer_version(5),
    "implicit": lambda h: h.store.buffer.reserve(0),
    "attach": lambda h: h.store.rollout(owner="new").__aenter__(),
    "create": lambda h: h.store.checkpoints.create("mine"),
    "pin": lambda h: h.store.checkpoints.pin("kept"),
    "drop": lambda h: h.store.checkpoints.drop("kept"),
    "restore": lambda h: h.store.checkpoints.restore("kept"),
    "resume": lambda h: h.store.resume(model_step=3),
}


async def test_every_verb_of_a_host_from_before_a_restore_is_refused(runs: Runs) -> None:
    async with stale_host(runs) as (store, host):
        await store.buffer.reserve(0)
        await store.buffer.remove_group(await commit_ready(store, 0))
        await store.collect_garbage()
        for verb in VERBS.values():
            async with nothing_changed(runs):
                with pytest.raises(StaleStore, match="store epoch 2"):
                    await verb(host)


async def test_payload_that_a_killed_zombie_wrote_is_freed(runs: Runs) -> None:
    async with stale_host(runs) as (store, host):
        keyspace = store.buffer.session.link.gateway.keyspace
        await store.collect_garbage()
        kept = set(await runs.payload_keys())
        late = [keyspace.payload("r", host.fence), keyspace.written("y", 1, host.fence)]
        late.append(f"{late[0]}:c1")
        for key in late:
            await runs.client.set(key, b"late")
        assert [] == await store.find_orphans()
        assert sorted(late) == await store.find_orphans()
        assert kept == set(await runs.payload_keys())


async def test_columns_that_a_killed_zombie_wrote_to_a_live_group_are_freed(runs: Runs) -> None:
    async with stale_host(runs) as (store, host):
        await store.collect_garbage()
        kept = set(await runs.payload_keys())
        [slot] = [slot for slot in await store.buffer.slots() if slot.group_id == "c"]
        assert slot.payload_fence is not None
        keyspace = store.buffer.session.link.gateway.keyspace
        late = keyspace.written("c", slot.payload_fence, host.trainer.batches[0])
        await runs.client.hset(late, "0:x", b"late")
        await store.buffer.claim_for_training(["c"])
        await store.samples.put_samples(["c_g0"], fields={"x": [1]})
        assert [] == await store.find_orphans()
        assert [late] == await store.find_orphans()
        [row] = await store.samples.get_samples(["c_g0"], select_fields=["x"])
        assert 1 == row["x"]
        assert len(kept) + 1 == len(await runs.payload_keys())


async def test_a_dispatcher_at_the_gate_learns_of_a_restore(runs: Runs) -> None:
    async with stale_host(runs, restored=False) as (store, host):
        for index in range(2):
            assert index == await host.sampler.admit(trainer_version_fn=lambda: 0)
            await host.trainer.buffer.reserve(0, target_step=index)
        await store.checkpoints.create("kept", replace=True)
        waits = Waits(host.store)
        async with anyio.create_task_group() as group:
            group.start_soon(restore_when_it_waits, store, waits)
            with pytest.raises(StaleStore, match="must reopen"), anyio.fail_after(10):
                await host.sampler.admit(trainer_version_fn=lambda: 0)


async def restore_when_it_waits(store: ReplayStore, waits: Waits) -> None:
    """Restore the run as soon as somebody on another host waits."""
    await waits.begun()
    await store.checkpoints.restore("kept")


class Looker(BaseSampler):
    """A policy of somebody's own that looks at the slots and finds nothing to its liking."""

    async def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        return None

    async def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[None, int]:
        await self._buffer.slots()
        return None, 0


async def test_a_trainer_whose_sampler_only_looks_learns_of_a_restore(runs: Runs) -> None:
    async with stale_host(runs, restored=False) as (store, host):
        waits = Waits(host.store)
        sampler = Looker(host.trainer.buffer)
        async with anyio.create_task_group() as group:
            group.start_soon(restore_when_it_waits, store, waits)
            with pytest.raises(StaleStore, match="must reopen"), anyio.fail_after(10):
                await host.trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)


async def test_a_cut_that_was_opened_before_a_restore_is_not_applied_after_it(runs: Runs) -> None:
    async with stale_host(runs, restored=False) as (store, _):
        cut = await store.mutation().__aenter__()
        cut.reserve(0, group_id="new")
        await store.checkpoints.restore("kept")
        with pytest.raises(CutExpired, match="restored since this cut was opened"):
            await cut.__aexit__(None, None, None)
        assert "new" not in {slot.group_id for slot in await store.buffer.slots()}


async def test_a_store_goes_on_after_its_own_restore(runs: Runs) -> None:
    async with runs.open() as store:
        sampler = create_sampler(store.buffer, InOrderSamplerConfig())
        assert 0 == await sampler.admit(trainer_version_fn=lambda: 0)
        await store.buffer.reserve(0, group_id="held", target_step=0, prompt_ref=b"p")
        await store.checkpoints.create("kept")
        async with store.rollout(owner="host") as host, store.trainer(owner="job") as trainer:
            later = await host.buffer.reserve(0, group_id="later")
            await store.checkpoints.restore("kept")
            for verb in (host.buffer.reserve(0), trainer.skip_step(0)):
                with pytest.raises(StaleOwner, match="attach again"):
                    await verb
        with pytest.raises(StaleAttempt):
            await store.buffer.commit("held", rows(), start_weight_version=0, end_weight_version=0)
        assert 1 == await sampler.admit(trainer_version_fn=lambda: 1)
        async with store.rollout(owner="host") as host, store.trainer(owner="job") as trainer:
            [ticket] = await host.take_tickets(max_tickets=9, weight_version=0)
            assert ("held", 0, b"p", 1) == (
                *(ticket.group_id, ticket.target_step, ticket.prompt_ref, ticket.attempt),
            )
            assert ticket.fence > later.fence
            await host.buffer.commit("held", rows(), start_weight_version=0, end_weight_version=0)
            bound = create_sampler(trainer.buffer, InOrderSamplerConfig())
            await trainer.select(bound, min_prompt_groups=1, max_prompt_groups=1)
            assert ("held",) == (await trainer.commit_step(0)).trained


async def test_a_session_that_attaches_while_its_store_restores_is_attached_after_it(
    runs: Runs,
) -> None:
    async with runs.open() as other:
        await other.buffer.abort((await other.buffer.reserve(0)).group_id)  # the script is known
    async with runs.open() as store:
        await store.checkpoints.create("kept")

        async def restore() -> None:
            await store.checkpoints.restore("kept")

        attach = Interruption(store, at=1, kind=Break.CANCELLED_AFTER, meanwhile=restore)
        await store.buffer.reserve(0, group_id="g")
        attach.end()
        assert attach.struck
        await store.buffer.abort("g")


async def test_an_answer_to_an_ended_attachment_does_not_end_the_next(runs: Runs) -> None:
    async with runs.open() as store:
        await store.buffer.abort((await store.buffer.reserve(0)).group_id)  # the script is known
        await store.buffer.reserve(0, group_id="g")
        await store.checkpoints.create("kept")
        session = store.buffer.session

        async def restore_and_attach() -> None:
            await store.checkpoints.restore("kept")
            await store.buffer.reserve(0)

        pulse = session.pulse
        assert pulse is not None
        fenced = Interruption(store, at=1, kind=Break.CANCELLED_AFTER, meanwhile=restore_and_attach)
        session.epoch += 1000
        with pytest.raises(StaleOwner):
            await store.buffer.abort("g", fence=1)
        fenced.end()
        assert pulse.lost
        await store.buffer.reserve(0)
