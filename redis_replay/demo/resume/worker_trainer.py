"""The trainer of a resume run: claims whole batches, saves models, commits steps, resumes.

The model is saved every few steps, with the store's bookmark, and is durable before ``commit_step``
says so to anybody; the store's checkpoint of the same step is made by that very call. A restarted
trainer takes the newest model and has the store resumed to it: groups that were trained since
come back with their rows, and a step that the model holds already is settled.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from redis_replay import KVBatchMeta, ReplayStore, TrainerSession, create_sampler
from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.model_files import save_arrays
from redis_replay.demo.observation import SEEN_STORE, look_at
from redis_replay.demo.resume.exchange import Exchange, Word
from redis_replay.demo.resume.learner import Arrays, average
from redis_replay.demo.resume.model import Model, digest, model_path, saved_steps
from redis_replay.demo.resume.restart import ensure_checkpoint, load_or_create, resume_store
from redis_replay.demo.resume.settings import (
    GROUPS_PER_STEP,
    KEPT_CHECKPOINTS,
    SAVE_EVERY_STEPS,
    ResumeOrders,
    checkpoint_name,
)
from redis_replay.demo.resume.slice import slice_gradients
from redis_replay.demo.settings import DEADLINE_SECONDS, LEASE_SECONDS
from redis_replay.demo.witness import Witness
from redis_replay.demo.worker import main
from redis_replay.errors import StaleOwner, StaleStore, UnacknowledgedRanks
from redis_replay.protocols import PromptGroupSampler
from redis_replay.trainer import StepCommit

_LOOK_SECONDS: Final = 0.005


async def work(orders: ResumeOrders, witness: Witness) -> None:
    """Train until the run has made its steps; resume anew when the session was ended by others."""
    served = False
    while not served:
        async with orders.open_store() as store:
            try:
                await _serve(store, orders, witness)
                served = True
            except (StaleOwner, StaleStore):
                continue


async def _serve(store: ReplayStore, orders: ResumeOrders, witness: Witness) -> None:
    model = load_or_create(orders, witness)
    for path in orders.weights.glob("*.npz"):
        path.unlink(missing_ok=True)  # what follows comes from the model checkpoint alone
    hand_out_weights(model, orders)
    await resume_store(store, model, witness)
    session = store.trainer(owner=orders.owner, world=orders.ranks, lease_seconds=LEASE_SECONDS)
    async with AsyncExitStack() as stack:
        with witness.calling("attach") as found:
            await stack.enter_async_context(session)
            found["epoch"] = session.epoch
        witness.saw(SEEN_STORE, **await look_at(store, session))
        await ensure_checkpoint(store, model, witness)
        await Trainer(store, session, orders, witness, model).run()
        with witness.calling("detach"):
            await stack.aclose()


@dataclass
class Trainer:
    """The work of one session."""

    store: ReplayStore
    session: TrainerSession
    orders: ResumeOrders
    witness: Witness
    model: Model
    sampler: PromptGroupSampler = field(init=False)
    exchange: Exchange = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = create_sampler(self.session.buffer, self.orders.sampler_config)
        self.exchange = Exchange(self.orders.exchange)

    async def run(self) -> None:
        """Train from the model's step to the last."""
        for step in range(self.model.step, self.orders.steps):
            meta = await self._claim(step)
            word = Word(self.session.epoch, self.session.batches[-1], step)
            loss, gradients = await self._gradients(word)
            made_by = await self._made_by(meta)
            self.model.make_step(loss, gradients, keep=self.orders.lookahead + 1)
            groups = meta.extra_info["group_ids"]
            self.witness.saw("train", step=step, loss=loss.hex(), groups=groups, made_by=made_by)
            hand_out_weights(self.model, self.orders)
            self.witness.saw("weights", step=step)
            await self._commit(step, groups)
            self._tidy()
        self.exchange.tell(Word(0, 0, self.orders.steps, is_last=True))

    async def _claim(self, step: int) -> KVBatchMeta:
        with self.witness.calling("select", step=step) as found:
            meta, _ = await self.session.select(
                self.sampler,
                current_train_weight=step,
                min_prompt_groups=GROUPS_PER_STEP,
                max_prompt_groups=GROUPS_PER_STEP,
            )
            found.update(step=step, groups=meta.extra_info["group_ids"])
        return meta

    async def _gradients(self, word: Word) -> tuple[float, Arrays]:
        """Return loss and gradients of a batch: the mean over the ranks, in their order."""
        self.exchange.tell(word)
        rank = self.store.trainer_rank(owner=self.orders.owner, epoch=word.epoch, rank=0)
        parts = [await slice_gradients(rank, self.model.learner, word, self.witness)]
        with self.witness.calling("acknowledge", step=word.step, batch=word.batch):
            await rank.acknowledge(word.batch)
        parts += [await self.exchange.collect(word, other) for other in range(1, self.orders.ranks)]
        return average(parts)

    async def _made_by(self, meta: KVBatchMeta) -> list[str]:
        """Return for each group which attempt made its rows."""
        rows = await self.session.samples.get_samples(meta, select_fields=["made_by"])
        return [str(row["made_by"]) for row in rows[:: self.orders.group_size]]

    async def _commit(self, step: int, groups: Sequence[str]) -> None:
        """Save the model if it is due, then commit the step, with the store's checkpoint."""
        after = step + 1
        facts: dict[str, Any] = {"step": step, "groups": groups}
        if after % SAVE_EVERY_STEPS == 0 or after == self.orders.steps:
            self.model.bookmark = await self.session.bookmark()
            self.model.save(self.orders.models)
            found = digest(model_path(self.orders.models, after))
            self.witness.saw("model", step=step, after=after, digest=found)
            facts["checkpoint"] = after
        with anyio.move_on_after(DEADLINE_SECONDS):
            while True:
                try:
                    with self.witness.calling("commit_step", **facts) as said:
                        commit = await self._commit_step(step, "checkpoint" in facts)
                        said.update(step=step, trained=list(commit.trained))
                    return
                except UnacknowledgedRanks:
                    await anyio.sleep(_LOOK_SECONDS)
        raise DemoFailed(f"the ranks never acknowledged the batch of step {step}")

    async def _commit_step(self, step: int, is_saved: bool) -> StepCommit:
        if not is_saved:
            return await self.session.commit_step(step)
        name = checkpoint_name(step + 1)
        return await self.session.commit_step(step, checkpoint=name, keep=KEPT_CHECKPOINTS)

    def _tidy(self) -> None:
        """Remove files that nobody can need any more, now that the step is committed."""
        for step in saved_steps(self.orders.models)[:-KEPT_CHECKPOINTS]:
            model_path(self.orders.models, step).unlink(missing_ok=True)
        self.exchange.clear()


def hand_out_weights(model: Model, orders: ResumeOrders) -> None:
    """Write the weights of the model's versions where others find them, and remove all others."""
    wanted = {orders.weights_path(version): version for version in model.versions}
    for path in orders.weights.glob("*.npz"):
        if path not in wanted:
            path.unlink(missing_ok=True)
    for path, version in wanted.items():
        if not path.exists():
            save_arrays(path, arrays=model.versions[version])


if __name__ == "__main__":
    main(work, ResumeOrders)
