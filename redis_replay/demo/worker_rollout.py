"""A rollout process: dispatches prompts, writes and scores answers, commits groups.

All it shares with the others is the store and the model files. Dispatching happens only through
mutation cuts: the dispatch cursor, the reserved groups with their prompt references and the
position of the prompt stream move together, whoever dispatches. Redispatch tickets go first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import numpy as np

from redis_replay import (
    DataPlaneMutationCut,
    GroupState,
    ReplayStore,
    Reservation,
    RolloutSession,
    create_sampler,
)
from redis_replay.demo.failure import DemoFailed
from redis_replay.demo.observation import SEEN_STORE, look_at, position_of, state_of
from redis_replay.demo.policy import Policy
from redis_replay.demo.rows import rows_for_group
from redis_replay.demo.settings import (
    DEADLINE_SECONDS,
    GROUP_SIZE,
    GROUPS_PER_STEP,
    KEPT_MODELS,
    LEASE_SECONDS,
    WorkerOrders,
    sampler_config,
)
from redis_replay.demo.tasks import PromptStream, prompt_from_reference, score_answer
from redis_replay.demo.text import encode_text
from redis_replay.demo.witness import Witness
from redis_replay.demo.worker import main
from redis_replay.errors import AdmissionConflict, BufferFull, SlotError, StaleOwner
from redis_replay.protocols import PromptGroupSampler, TransactionalAdmissionSampler

_LOOK_SECONDS: Final = 0.2
"""How long a process waits at the gate before it looks for tickets again."""

_PLACE_SECONDS: Final = 0.02
_FILE_SECONDS: Final = 0.01


async def work(orders: WorkerOrders, witness: Witness) -> None:
    """Serve until the run has made its steps; with a new session when one was ended by others."""
    async with orders.open_store() as store:
        while not await _serve(store, orders, witness):
            pass


async def _serve(store: ReplayStore, orders: WorkerOrders, witness: Witness) -> bool:
    session = store.rollout(owner=orders.owner, lease_seconds=LEASE_SECONDS)
    async with AsyncExitStack() as stack:
        try:
            with witness.calling("attach") as found:
                await stack.enter_async_context(session)
                found["epoch"] = session.epoch
            witness.saw(SEEN_STORE, **await look_at(session))
            await Rollout(store, session, orders, witness).run()
            with witness.calling("detach"):
                await stack.aclose()
        except StaleOwner:
            return False
    return True


@dataclass
class Rollout:
    """The work of one session."""

    store: ReplayStore
    session: RolloutSession
    orders: WorkerOrders
    witness: Witness
    sampler: PromptGroupSampler = field(init=False)
    admission: TransactionalAdmissionSampler = field(init=False)
    stream: PromptStream = field(init=False)
    policies: dict[int, Policy] = field(default_factory=dict[int, Policy])
    cuts: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        sampler = create_sampler(self.session.buffer, sampler_config(self.orders.sampler))
        assert isinstance(sampler, TransactionalAdmissionSampler)
        self.sampler, self.admission = sampler, sampler
        self.stream = PromptStream(self.orders.seed)

    async def run(self) -> None:
        """Work until the trainer version reaches the number of steps."""
        self._warm_up()
        while self.store.trainer_version < self.orders.steps:
            for reservation in await self._take_tickets() or await self._dispatch():
                await self._fulfil(reservation)

    def _warm_up(self) -> None:
        """Load the task and its verifier, which takes a second, before any group is held."""
        score_answer(self.stream.prompt(0), answer="")

    async def _take_tickets(self) -> list[Reservation]:
        """Take groups whose process was killed. The oldest version's batch must stay one version.

        With `weight_fifo` a new attempt keeps its start weight, else the batch could never be whole
        again; other policies give it the newest weights.
        """
        slots = await self.session.buffer.slots()
        if not any(slot.state is GroupState.RESERVED and slot.owner is None for slot in slots):
            return []
        version = 0 if self.orders.sampler == "weight_fifo" else await self._newest_version()
        with self.witness.calling("tickets", version=version) as found:
            taken = await self.session.take_tickets(
                max_tickets=GROUPS_PER_STEP, weight_version=version
            )
            found["groups"] = [reservation.group_id for reservation in taken]
        return taken

    async def _dispatch(self) -> list[Reservation]:
        """Admit a batch and reserve its groups in one cut; nothing when the gate stays closed."""
        with anyio.move_on_after(_LOOK_SECONDS) as waiting:
            await self.admission.wait_until_admissible(
                trainer_version_fn=lambda: self.store.trainer_version
            )
        if waiting.cancelled_caught or self.store.trainer_version >= self.orders.steps:
            return []
        version = await self._newest_version()
        try:
            async with AsyncExitStack() as stack:
                cut = await stack.enter_async_context(self.session.mutation())
                with self.witness.calling("cut", **self._plan(cut, version)) as found:
                    await stack.aclose()
                    found["groups"] = [r.group_id for r in cut.reservations]
        except AdmissionConflict:
            return []
        except BufferFull:
            await anyio.sleep(_PLACE_SECONDS)
            return []
        return list(cut.reservations)

    def _plan(self, cut: DataPlaneMutationCut, version: int) -> dict[str, Any]:
        """Record one batch in a cut and return what the log says of it."""
        stamp = self.admission.commit_admission(cut)
        first = position_of(cut.loader_state)
        name = f"{self.orders.owner}.{self.orders.life}.{next(self.cuts)}"
        groups: list[str] = []
        for index in range(first, first + GROUPS_PER_STEP):
            reference = self.stream.reference(index).to_bytes()
            groups.append(
                cut.reserve(
                    version,
                    target_step=stamp,
                    group_id=f"{index:05d}-{name}",
                    prompt_ref=reference,
                )
            )
        cut.set_loader_state(state_of(first + GROUPS_PER_STEP))
        return {"groups": groups, "first_prompt": first, "stamp": stamp, "version": version}

    async def _fulfil(self, reservation: Reservation) -> None:
        """Generate, score and commit one group, or abort it when nobody could train it any more."""
        group_id, version = reservation.group_id, reservation.weight_version
        facts = {"group": group_id, "fence": reservation.fence, "attempt": reservation.attempt}
        try:
            if self.sampler.should_abort_inflight(
                start_weight_version=version, current_train_weight=self.store.trainer_version
            ):
                with self.witness.calling("abort", **facts):
                    await self.session.buffer.abort(group_id, reason="stale")
                return
            rows = await self._generate(reservation)
            with self.witness.calling("commit", **facts, version=version):
                await self.session.buffer.commit(
                    group_id, rows, start_weight_version=version, end_weight_version=version
                )
        except SlotError:
            return  # refused, written down, and somebody else's group now

    async def _generate(self, reservation: Reservation) -> list[dict[str, Any]]:
        prompt = prompt_from_reference(reservation.prompt_ref or b"")
        policy = await self._policy(reservation.weight_version)
        rng = np.random.default_rng([self.orders.seed, prompt.index, reservation.weight_version])
        answers = policy.sample(encode_text(prompt.question), rng=rng, count=GROUP_SIZE)
        return rows_for_group(prompt, generations=answers)

    async def _newest_version(self) -> int:
        await self.session.buffer.admission.refresh()
        version = self.store.trainer_version
        await self._policy(version)
        return version

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


if __name__ == "__main__":
    main(work)
