"""A rollout process of a resume run: every answer is a function of weights, prompt, step and row.

A group for target step ``t`` is generated with the weights of version ``max(0, t - lookahead)``,
whoever generates it and whenever: its first process, or the one that took it over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import numpy as np

from redis_replay import DataPlaneMutationCut, Reservation
from redis_replay.demo.host import Host, serve
from redis_replay.demo.model_files import FloatArray, load_arrays
from redis_replay.demo.resume.learner import Learner
from redis_replay.demo.resume.policies import create_learner
from redis_replay.demo.resume.settings import ResumeOrders
from redis_replay.demo.rows import rows_for_group
from redis_replay.demo.tasks import prompt_from_reference
from redis_replay.demo.text import MAX_ANSWER_TOKENS, encode_text
from redis_replay.demo.witness import Witness
from redis_replay.demo.worker import main
from redis_replay.errors import StaleStore

_LOOK_SECONDS: Final = 0.02


@dataclass
class SeededHost(Host[ResumeOrders]):
    """The work of one session.

    Attributes:
        learner: The network, loaded with the weights of `version`.
    """

    learner: Learner = field(init=False)
    version: int = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.learner = create_learner(self.orders.policy, seed=self.orders.seed)

    async def prepare(self) -> None:
        """Nothing: weights are loaded group by group."""

    def is_wanted(self, cut: DataPlaneMutationCut) -> bool:
        """Return whether some step trains the next batch."""
        return cut.dispatch_index + 1 < self.orders.steps

    def version_of_batch(self, stamp: int | None) -> int:
        """Return the version that the batch of a step is generated with."""
        assert stamp is not None
        return max(0, stamp - self.orders.lookahead)

    def version_of_tickets(self) -> int:
        """Return 0: a new attempt keeps the version of the first."""
        return 0

    async def generate(self, reservation: Reservation) -> list[dict[str, Any]]:
        """Sample with numbers drawn by prompt, target step and row."""
        prompt = prompt_from_reference(reservation.prompt_ref or b"")
        self.witness.saw(
            "generate",
            group=reservation.group_id,
            prompt=prompt.index,
            fence=reservation.fence,
            version=reservation.weight_version,
            step=reservation.target_step,
        )
        await self._load(reservation.weight_version)
        draws = self._draws(prompt.index, reservation.target_step or 0)
        answers = self.learner.sample(encode_text(prompt.question), draws=draws)
        made_by = f"{self.orders.owner}.{self.orders.life}.{reservation.fence}"
        rows = rows_for_group(prompt, generations=answers)
        return [{**row, "made_by": made_by} for row in rows]

    def _draws(self, prompt: int, step: int) -> FloatArray:
        """Return one row of numbers for each answer."""
        return np.stack(
            [
                np.random.default_rng([self.orders.seed, prompt, step, row]).random(
                    MAX_ANSWER_TOKENS
                )
                for row in range(self.orders.group_size)
            ]
        )

    async def _load(self, version: int) -> None:
        """Load the weights of a version, once the trainer has handed them out."""
        while version != self.version:
            try:
                self.learner.load_weights(load_arrays(self.orders.weights_path(version)))
                self.version = version
            except FileNotFoundError:
                await self._look_for_restore()
                await anyio.sleep(_LOOK_SECONDS)

    async def _look_for_restore(self) -> None:
        """Raise the error of a session that has ended: the weights it waits for may never come."""
        self.session.buffer.session.require_live()
        found = await self.store.bookmark()
        if found.store_epoch != self.store.run.store_epoch:
            raise StaleStore("the run was restored while this process waited for weights")


async def work(orders: ResumeOrders, witness: Witness) -> None:
    """Serve until the run has made its steps."""
    await serve(orders, witness, SeededHost)


if __name__ == "__main__":
    main(work, ResumeOrders)
