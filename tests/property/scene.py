"""One model and two stores, one on fakeredis and one on a real server, that do the same verbs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import fakeredis
import redis.asyncio

from redis_replay import InOrderSampler, WeightFifoSampler
from redis_replay.audit import ControlCopy, audit_copy, read_copy
from tests.harness import Runs
from tests.property.accounts import Accounts
from tests.property.copies import content_of, view_of
from tests.property.model import BufferModel
from tests.property.sides import ModelSide, Reply, StoreSide, model_reply, reply_of
from tests.property.verbs import Attach, Verb

CAPACITY = 6
MAX_PAYLOAD_BYTES = 220
MAX_ATTEMPTS = 2
MAX_REQUEUES = 2
GROUPS_PER_STEP = 2
WINDOW = 1
MOST_HELD = 2
"""Groups that a session may have claimed, and as many selected for good; the scripts say 1,024."""
REAL_EVERY = 5
STAMPED_AHEAD = 9
"""The audit's number for a live target step that the cursor has not reached."""


def new_model(*, in_order: bool) -> ModelSide:
    """Return an empty model with the settings that the stores are opened with."""
    return ModelSide(
        BufferModel(
            capacity=CAPACITY,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
            max_attempts=MAX_ATTEMPTS,
            max_requeues=MAX_REQUEUES,
            in_order=in_order,
            most_held=MOST_HELD,
            window=WINDOW,
            accounts=Accounts(GROUPS_PER_STEP, stamped=in_order),
        )
    )


@dataclass
class Scene:
    """The three sides of one sequence of verbs."""

    model: ModelSide
    stores: dict[str, StoreSide]
    runs: dict[str, Runs]
    done: int = 0

    async def do(self, verb: Verb) -> Reply:
        """Do a verb everywhere and return the reply; its owner attaches first without a session.

        The replies are compared each time, and so is what fakeredis holds with what the model
        predicts, audited. The real server is compared and audited at every fifth verb: reading a
        run costs more than a verb does.
        """
        if verb.owner not in self.model.members and not isinstance(verb, Attach):
            await self.do(Attach(verb.owner))
        plan = verb.plan(self.model)
        expected = model_reply(verb.on_model, self.model, plan)
        for name, side in self.stores.items():
            assert expected == await reply_of(verb.on_store(side, plan)), f"{name}: {verb}"
            await side.come_to_rest()
        self.done += 1
        await self.compare(with_real=self.done % REAL_EVERY == 0)
        return expected

    async def compare(self, *, with_real: bool) -> None:
        """Compare the runs with the model and with one another, and audit them.

        The control planes of the two servers are compared whole, but for what tells runs apart.
        """
        fake = await self._audited("fake")
        assert self.model.view() == view_of(fake)
        if with_real:
            assert content_of(fake) == content_of(await self._audited("real"))

    async def _audited(self, name: str) -> ControlCopy:
        gateway = self.stores[name].gateway
        copy = await read_copy(gateway)
        report = await audit_copy(gateway, copy)
        # Verbs stamp any step, so what nobody admitted is live too.
        assert [] == [v for v in report.violations if v.invariant != STAMPED_AHEAD], name
        return copy

    async def finish(self) -> None:
        """Compare the end states and the rows; then give all back, and nothing is left."""
        await self.compare(with_real=True)
        reading = [name for name in self.model.members if self.model.is_attached(name)]
        for name, side in self.stores.items():
            assert self.model.contents() == await side.contents(), name
            for owner in reading:
                selected = self.model.contents_selected(owner)
                assert selected == await side.contents_selected(owner), f"{name}: {owner}"
        for name, side in self.stores.items():
            await side.give_all_back()
            assert [] == await self.runs[name].payload_keys(), name


@asynccontextmanager
async def opened_scene(real: redis.asyncio.Redis, *, in_order: bool) -> AsyncIterator[Scene]:
    """Open a fresh run on both servers, bound to a gated policy with the model's window."""
    clients: dict[str, Any] = {
        "fake": fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer()),
        "real": real,
    }
    scene = Scene(new_model(in_order=in_order), {}, {})
    async with AsyncExitStack() as stack:
        stack.push_async_callback(clients["fake"].aclose)
        for name, client in clients.items():
            runs = scene.runs[name] = Runs(client)
            stack.push_async_callback(_delete, runs)
            scene.stores[name] = await _open_side(stack, runs, in_order=in_order)
        yield scene


async def _delete(runs: Runs) -> None:
    if keys := await runs.keys():
        await runs.client.delete(*keys)


async def _open_side(stack: AsyncExitStack, runs: Runs, *, in_order: bool) -> StoreSide:
    store = await stack.enter_async_context(
        runs.open(
            capacity=CAPACITY,
            groups_per_step=GROUPS_PER_STEP,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
            max_attempts=MAX_ATTEMPTS,
            max_requeues=MAX_REQUEUES,
        )
    )
    if in_order:
        await InOrderSampler(store.buffer, max_lookahead_versions=WINDOW).flush()
    else:
        await WeightFifoSampler(store.buffer, max_staleness_versions=WINDOW).flush()
    return StoreSide(store)
