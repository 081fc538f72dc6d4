"""A small in-order training job over the prompts 0, 1, 2, ..., for tests of stopping and resuming.

The loader's position is the number of the next prompt; a group's rows say which prompt it answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from redis_replay import (
    InOrderSampler,
    InOrderSamplerConfig,
    ReplayStore,
    Reservation,
    RolloutSession,
    TrainerSession,
    create_sampler,
)
from redis_replay.admission import read_admission
from redis_replay.trainer import StepCommit
from tests.harness import rows

PER_STEP = 2
DEADLINE_SECONDS = 5.0


def prompts_of(reservations: Iterable[Reservation]) -> list[int]:
    """Return the prompts of reservations."""
    return [int(reservation.prompt_ref or b"-1") for reservation in reservations]


@dataclass
class Job:
    """One rollout host and one trainer on a run.

    Attributes:
        trained: For each step that this job has trained, the prompts in the batch's order.
    """

    store: ReplayStore
    rollout: RolloutSession
    trainer: TrainerSession
    dispatcher: InOrderSampler
    sampler: InOrderSampler
    per_step: int
    trained: dict[int, list[int]] = field(default_factory=dict)

    async def dispatch(self, *, prompts: int = 10**6) -> list[Reservation]:
        """Dispatch the next batch, or what is missing of one that is handed out again, in a cut.

        Args:
            prompts: How many there are; places of the batch that get none are given up.
        """
        version = self.store.trainer_version
        await self.dispatcher.wait_until_admissible(trainer_version_fn=lambda: version)
        async with self.rollout.mutation() as cut:
            target = self.dispatcher.commit_admission(cut)
            assert target is not None
            live = await self.rollout.buffer.count_for_target_step(target)
            first = int(cut.loader_state or b"0")
            wanted = range(first, first + max(0, self.per_step - live))
            for prompt in wanted:
                cut.reserve(version, target_step=target, prompt_ref=str(prompt).encode())
            cut.set_loader_state(str(min(wanted.stop, prompts)).encode())
        for made in cut.reservations:
            if prompts_of([made])[0] >= prompts:
                await self.rollout.buffer.abort(made.group_id, reason="end_of_data")
        return [made for made in cut.reservations if prompts_of([made])[0] < prompts]

    async def finish(self, reservations: Iterable[Reservation]) -> None:
        """Commit groups whose rows say which prompt they answer."""
        for made in reservations:
            await self.rollout.buffer.commit(
                made.group_id,
                rows(prompts_of([made])[0]),
                start_weight_version=made.weight_version,
                end_weight_version=made.weight_version,
            )

    async def redispatch(self) -> list[Reservation]:
        """Take all tickets and finish them."""
        tickets = await self.rollout.take_tickets(
            max_tickets=100, weight_version=self.store.trainer_version
        )
        await self.finish(tickets)
        return tickets

    async def claim(self, step: int, *, least: int | None = None) -> list[int]:
        """Claim groups of a step, and return the prompts that their rows answer, in order."""
        meta, _ = await self.trainer.select(
            self.sampler,
            current_train_weight=step,
            min_prompt_groups=self.per_step if least is None else least,
            max_prompt_groups=self.per_step,
            deadline_seconds=DEADLINE_SECONDS,
        )
        read = await self.trainer.samples.get_samples(meta, select_fields=["input_ids"])
        values = [int(row["input_ids"][0]) for row in read]
        assert values[::2] == values[1::2]
        return values[::2]

    async def train(self, step: int, **options: Any) -> StepCommit:
        """Claim and commit a step, and note its prompts."""
        prompts = await self.claim(step)
        commit = await self.trainer.commit_step(step, **options)
        self.trained[step] = prompts
        return commit

    async def run(self, steps: Sequence[int], *, prompts: int = 10**6) -> None:
        """Dispatch, finish and train steps, dispatching as far ahead as the gate allows."""
        for step in steps:
            while await self.may_dispatch(prompts=prompts):
                await self.finish(await self.dispatch(prompts=prompts))
            await self.train(step)

    async def may_dispatch(self, *, prompts: int = 10**6) -> bool:
        """Return whether the gate is open and prompts are left."""
        state = await read_admission(self.store.buffer.session.link.gateway)
        return int(state.loader_state or b"0") < prompts and state.is_open(0)


@asynccontextmanager
async def opened_job(
    store: ReplayStore, *, lookahead: int = 1, per_step: int = PER_STEP
) -> AsyncIterator[Job]:
    """Attach a job's sessions under the names of every other such job."""
    async with store.rollout(owner="host") as rollout, store.trainer(owner="job") as trainer:
        cfg = InOrderSamplerConfig(max_lookahead_versions=lookahead)
        dispatcher = create_sampler(rollout.buffer, cfg)
        sampler = create_sampler(trainer.buffer, cfg)
        assert isinstance(dispatcher, InOrderSampler)
        assert isinstance(sampler, InOrderSampler)
        await dispatcher.flush()
        yield Job(store, rollout, trainer, dispatcher, sampler, per_step)
