"""A trainer rank: computes the gradients of its slice of each batch that the trainer names.

It keeps nothing between steps: weights come from the file of the step's version, rows from the
store. Started again in the middle of a step, it does that step's work again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import anyio

from redis_replay import ReplayStore
from redis_replay.demo.model_files import load_arrays
from redis_replay.demo.resume.exchange import Exchange, Word
from redis_replay.demo.resume.learner import Learner
from redis_replay.demo.resume.policies import create_learner
from redis_replay.demo.resume.settings import ResumeOrders
from redis_replay.demo.resume.slice import slice_gradients
from redis_replay.demo.settings import TRAINER
from redis_replay.demo.witness import Witness
from redis_replay.demo.worker import main
from redis_replay.errors import ClaimError, SlotError, StaleStore

_LOOK_SECONDS: Final = 0.005


async def work(orders: ResumeOrders, witness: Witness) -> None:
    """Serve until the run has made its steps; with a new store when the run was restored."""
    rank = Rank(orders, witness)
    served = False
    while not served:
        async with orders.open_store() as store:
            try:
                await rank.run(store)
                served = True
            except StaleStore:
                continue


@dataclass
class Rank:
    """The work of a rank.

    Attributes:
        before: The newest word that it has acted on.
    """

    orders: ResumeOrders
    witness: Witness
    learner: Learner = field(init=False)
    exchange: Exchange = field(init=False)
    before: Word | None = None

    def __post_init__(self) -> None:
        self.learner = create_learner(self.orders.policy, seed=self.orders.seed)
        self.exchange = Exchange(self.orders.exchange)

    async def run(self, store: ReplayStore) -> None:
        """Work on each batch that the trainer names, until it says that there is none."""
        while True:
            word = self.exchange.hear()
            if word is None or word == self.before:
                await anyio.sleep(_LOOK_SECONDS)
                continue
            if word.is_last:
                return
            # Refused where the trainer that named the batch is gone; another will name one.
            with suppress(ClaimError, SlotError, FileNotFoundError):
                await self._train(store, word)
            self.before = word

    async def _train(self, store: ReplayStore, word: Word) -> None:
        number = int(self.orders.owner.rpartition("-")[2])
        rank = store.trainer_rank(owner=TRAINER, epoch=word.epoch, rank=number)
        self.learner.load_weights(load_arrays(self.orders.weights_path(word.step)))
        loss, gradients = await slice_gradients(rank, self.learner, word, self.witness)
        self.exchange.hand_in(word, number, loss=loss, gradients=gradients)
        with self.witness.calling("acknowledge", step=word.step, batch=word.batch):
            await rank.acknowledge(word.batch)


if __name__ == "__main__":
    main(work, ResumeOrders)
