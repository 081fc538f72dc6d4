"""A rollout process of the demo: generates with the newest weights there are.

All it shares with the others is the store and the model files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import numpy as np

from redis_replay import Reservation
from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.host import Host, serve
from redis_replay.demo.policy import Policy
from redis_replay.demo.rows import rows_for_group
from redis_replay.demo.settings import DEADLINE_SECONDS, GROUP_SIZE, KEPT_MODELS, WorkerOrders
from redis_replay.demo.tasks import prompt_from_reference
from redis_replay.demo.text import encode_text
from redis_replay.demo.witness import Witness
from redis_replay.demo.worker import main

_FILE_SECONDS: Final = 0.01


@dataclass
class Rollout(Host[WorkerOrders]):
    """The work of one session.

    Attributes:
        policies: The newest policies by weight version.
        newest: The newest weight version.
    """

    policies: dict[int, Policy] = field(default_factory=dict[int, Policy])
    newest: int = 0

    async def prepare(self) -> None:
        """Read the newest weights."""
        await self.session.buffer.admission.refresh()
        self.newest = self.store.trainer_version
        await self._policy(self.newest)

    def version_of_batch(self, stamp: int | None) -> int:
        """Return the newest version."""
        return self.newest

    def version_of_tickets(self) -> int:
        """Return the newest version; with `weight_fifo` a new attempt keeps its start weight.

        The oldest version's batch must stay one version, else it could never be whole again.
        """
        return 0 if self.orders.sampler == "weight_fifo" else self.newest

    async def generate(self, reservation: Reservation) -> list[dict[str, Any]]:
        """Sample with a seed made of run, prompt and weight version."""
        prompt = prompt_from_reference(reservation.prompt_ref or b"")
        policy = await self._policy(reservation.weight_version)
        rng = np.random.default_rng([self.orders.seed, prompt.index, reservation.weight_version])
        answers = policy.sample(encode_text(prompt.question), rng=rng, count=GROUP_SIZE)
        return rows_for_group(prompt, generations=answers)

    async def _policy(self, version: int) -> Policy:
        """Return the weights of a version; the trainer writes a file before the version counts."""
        if version not in self.policies:
            path = self.orders.model_path(version)
            with anyio.move_on_after(DEADLINE_SECONDS):
                while not path.exists():
                    await anyio.sleep(_FILE_SECONDS)
            if not path.exists():
                raise DemoFailed(f"the trainer never wrote {path}")
            self.policies[version] = Policy.load(path)
            for old in [known for known in self.policies if known <= version - KEPT_MODELS]:
                del self.policies[old]
        return self.policies[version]


async def work(orders: WorkerOrders, witness: Witness) -> None:
    """Serve until the run has made its steps."""
    await serve(orders, witness, Rollout)


if __name__ == "__main__":
    main(work, WorkerOrders)
