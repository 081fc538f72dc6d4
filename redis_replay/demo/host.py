"""What a rollout process does with the store: dispatches prompts, takes tickets, commits groups.

Dispatching happens only through mutation cuts: the dispatch cursor, the reserved groups with their
prompt references and the position of the prompt stream move together, whoever dispatches.
Redispatch tickets go first. What a group is generated with is left to the subclasses.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import anyio

from redis_replay import (
    DataPlaneMutationCut,
    GroupState,
    ReplayStore,
    Reservation,
    RolloutSession,
    create_sampler,
)
from redis_replay.demo.observation import SEEN_STORE, look_at, position_of, state_of
from redis_replay.demo.settings import LEASE_SECONDS, WorkerOrders
from redis_replay.demo.tasks import PromptStream, score_answer
from redis_replay.demo.witness import Witness
from redis_replay.errors import AdmissionConflict, BufferFull, SlotError, StaleOwner, StaleStore
from redis_replay.protocols import PromptGroupSampler, TransactionalAdmissionSampler

Orders = TypeVar("Orders", bound=WorkerOrders)

_LOOK_SECONDS: Final = 0.2
"""How long a process waits at the gate before it looks for tickets again."""

_PLACE_SECONDS: Final = 0.02


@dataclass
class Host(ABC, Generic[Orders]):
    """The work of one session."""

    store: ReplayStore
    session: RolloutSession
    orders: Orders
    witness: Witness
    sampler: PromptGroupSampler = field(init=False)
    admission: TransactionalAdmissionSampler = field(init=False)
    stream: PromptStream = field(init=False)
    cuts: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        sampler = create_sampler(self.session.buffer, self.orders.sampler_config)
        assert isinstance(sampler, TransactionalAdmissionSampler)
        self.sampler, self.admission = sampler, sampler
        self.stream = PromptStream(self.orders.seed)

    @abstractmethod
    async def prepare(self) -> None:
        """Get ready to begin groups, before any is reserved or taken."""

    def is_wanted(self, cut: DataPlaneMutationCut) -> bool:
        """Return whether the batch that a cut would dispatch is to be."""
        return True

    @abstractmethod
    def version_of_batch(self, stamp: int | None) -> int:
        """Return the weight version that the groups of a new batch are generated with."""

    @abstractmethod
    def version_of_tickets(self) -> int:
        """Return the least weight version for groups whose process was killed."""

    @abstractmethod
    async def generate(self, reservation: Reservation) -> list[dict[str, Any]]:
        """Sample and score the answers to a group's prompt."""

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
        """Take groups whose process was killed."""
        slots = await self.session.buffer.slots()
        if not any(slot.state is GroupState.RESERVED and slot.owner is None for slot in slots):
            return []
        await self.prepare()
        version = self.version_of_tickets()
        with self.witness.calling("tickets", version=version) as found:
            taken = await self.session.take_tickets(
                max_tickets=self.orders.groups_per_step, weight_version=version
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
        await self.prepare()
        try:
            async with AsyncExitStack() as stack:
                cut = await stack.enter_async_context(self.session.mutation())
                if not self.is_wanted(cut):
                    await anyio.sleep(_PLACE_SECONDS)
                    return []
                with self.witness.calling("cut", **self._plan(cut)) as found:
                    await stack.aclose()
                    found["groups"] = [r.group_id for r in cut.reservations]
        except AdmissionConflict:
            return []
        except BufferFull:
            await anyio.sleep(_PLACE_SECONDS)
            return []
        return list(cut.reservations)

    def _plan(self, cut: DataPlaneMutationCut) -> dict[str, Any]:
        """Record one batch in a cut and return what the log says of it."""
        stamp = self.admission.commit_admission(cut)
        version = self.version_of_batch(stamp)
        first = position_of(cut.loader_state)
        after = first + self.orders.groups_per_step
        name = f"{self.orders.owner}.{self.session.epoch}.{next(self.cuts)}"
        groups: list[str] = []
        for index in range(first, after):
            reference = self.stream.reference(index).to_bytes()
            groups.append(
                cut.reserve(
                    version,
                    target_step=stamp,
                    group_id=f"{index:05d}-{name}",
                    prompt_ref=reference,
                )
            )
        cut.set_loader_state(state_of(after))
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
            rows = await self.generate(reservation)
            with self.witness.calling("commit", **facts, version=version):
                await self.session.buffer.commit(
                    group_id, rows, start_weight_version=version, end_weight_version=version
                )
        except SlotError:
            return  # refused, written down, and somebody else's group now


async def serve(
    orders: Orders,
    witness: Witness,
    host: Callable[[ReplayStore, RolloutSession, Orders, Witness], Host[Orders]],
) -> None:
    """Serve until the run has made its steps.

    With a new session when one was ended by others, with a new store when the run was restored.
    """
    served = False
    while not served:
        async with orders.open_store() as store:
            served = await _serve_store(store, orders, witness, host)


async def _serve_store(
    store: ReplayStore,
    orders: Orders,
    witness: Witness,
    host: Callable[[ReplayStore, RolloutSession, Orders, Witness], Host[Orders]],
) -> bool:
    """Return whether the run has made its steps, or the store has to be opened again."""
    while True:
        session = store.rollout(owner=orders.owner, lease_seconds=LEASE_SECONDS)
        async with AsyncExitStack() as stack:
            try:
                with witness.calling("attach") as found:
                    await stack.enter_async_context(session)
                    found["epoch"] = session.epoch
                witness.saw(SEEN_STORE, **await look_at(store, session))
                await host(store, session, orders, witness).run()
                with witness.calling("detach"):
                    await stack.aclose()
                return True
            except StaleOwner:
                continue
            except StaleStore:
                return False
