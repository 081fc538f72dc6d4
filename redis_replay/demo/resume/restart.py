"""How a trainer of a resume run begins: with the newest model, and the store put to its step."""

from __future__ import annotations

from redis_replay import ReplayStore
from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.resume.model import Model, digest, model_path, saved_steps
from redis_replay.demo.resume.policies import create_learner
from redis_replay.demo.resume.settings import ResumeOrders, checkpoint_name
from redis_replay.demo.witness import Witness


def load_or_create(orders: ResumeOrders, witness: Witness) -> Model:
    """Return the newest model; the first trainer of a run makes and saves it."""
    learner = create_learner(orders.policy, seed=orders.seed)
    saved = saved_steps(orders.models)
    if saved:
        model = Model.load(orders.models, saved[-1], learner)
    else:
        model = Model(0, learner)
        model.keep_version(orders.lookahead + 1)
        model.save(orders.models)
    found = digest(model_path(orders.models, model.step))
    witness.saw("resumed_model", after=model.step, digest=found)
    return model


async def resume_store(store: ReplayStore, model: Model, witness: Witness) -> None:
    """Put the store to the model's step."""
    with witness.calling("resume", model_step=model.step) as found:
        report = await store.resume(model_step=model.step, bookmark=model.bookmark, take_over=True)
        found.update(action=report.action, redispatched=report.redispatched)
    if report.blocked:
        raise DemoFailed(f"the resumed run cannot go on: {report.blocked}")


async def ensure_checkpoint(store: ReplayStore, model: Model, witness: Witness) -> None:
    """See to it that the store has a checkpoint of the model's step before it goes on.

    There is none before the first step, nor where the trainer died between the save of its
    model and the commit of the step: that step was settled by the resumption.
    """
    if all(known.step != model.step for known in await store.checkpoints.list()):
        with witness.calling("checkpoint", checkpoint=model.step):
            await store.checkpoints.create(checkpoint_name(model.step), step=model.step)
