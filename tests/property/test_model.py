"""Random verbs of three owners do the same on the plain model, on fakeredis and on a real server.

After every verb the replies (or the error's class) and everything a caller can see are equal, and
the audit finds nothing. At the end the rows of every committed group are those of the commit that
won, and when all is given back no key of a payload is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import fakeredis
import pytest
import redis.asyncio

from redis_replay import InOrderSampler, WeightFifoSampler
from tests.harness import Runs
from tests.property.sequences import (
    CAPACITY,
    MAX_ATTEMPTS,
    MAX_PAYLOAD_BYTES,
    MAX_REQUEUES,
    WINDOW,
    draw_sequence,
    new_model,
    shorten,
    with_attachment,
)
from tests.property.sides import ModelSide, StoreSide, model_reply, reply_of
from tests.property.verbs import Admit, Commit, Cut, Die, Reserve, Verb

pytestmark = pytest.mark.anyio

SEEDS, VERBS = range(60), 40
LONG_SEEDS, LONG_VERBS = range(1_000, 1_400), 60


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_verbs_do_the_same_on_the_model_and_on_both_servers(
    real_server: str, seed: int
) -> None:
    in_order = seed % 2 == 0
    sequence = draw_sequence(seed, length=VERBS, in_order=in_order)
    await check_everywhere(real_server, sequence, in_order=in_order)


@pytest.mark.slow
@pytest.mark.parametrize("seed", LONG_SEEDS)
async def test_long_random_sequences_do_the_same_on_the_model_and_on_both_servers(
    real_server: str, seed: int
) -> None:
    in_order = seed % 2 == 0
    sequence = draw_sequence(seed, length=LONG_VERBS, in_order=in_order)
    await check_everywhere(real_server, sequence, in_order=in_order)


async def test_a_cut_does_not_answer_an_older_admission_of_its_session(real_server: str) -> None:
    sequence = [
        Admit("host-a", seen_lead=0),
        Cut("host-a", True, sets_loader=False, seen_lead=1, places=((0, 0, None),)),
        Die("host-a"),
        Admit("host-b", seen_lead=0),
        Admit("host-b", seen_lead=1),
    ]
    await check_everywhere(real_server, sequence, in_order=False)


async def test_rows_of_a_committed_attempt_are_never_written_again(real_server: str) -> None:
    sequence = [
        Reserve("host-a", group=0, lead=0, target_lead=None),
        Commit("host-a", nth=0, content=3),
        Commit("host-a", nth=0, content=4),
        Die("host-a"),
        Commit("host-a", nth=0, content=5),
    ]
    await check_everywhere(real_server, sequence, in_order=False)


async def check_everywhere(real_server: str, sequence: Sequence[Verb], *, in_order: bool) -> None:
    """Run a sequence; where it fails, fail with the shortest part of it that fails as well."""

    async def fails(part: Sequence[Verb]) -> bool:
        try:
            await run_everywhere(real_server, part, in_order=in_order)
        except AssertionError:
            return True
        return False

    if await fails(sequence):
        shortest = await shorten(sequence, fails)
        print(*shortest, sep="\n")  # noqa: T201 - what pytest shows of a failure
        await run_everywhere(real_server, shortest, in_order=in_order)


async def run_everywhere(real_server: str, sequence: Sequence[Verb], *, in_order: bool) -> None:
    """Run one sequence on the model and two stores, comparing after every verb."""
    model = new_model(in_order=in_order)
    clients: dict[str, Any] = {
        "fake": fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer()),
        "real": redis.asyncio.Redis.from_url(real_server),
    }
    async with AsyncExitStack() as stack:
        runs: dict[str, Runs] = {}
        stores: dict[str, StoreSide] = {}
        for name, client in clients.items():
            stack.push_async_callback(client.aclose)
            runs[name] = Runs(client)
            stores[name] = await open_side(stack, runs[name], in_order=in_order)
        for drawn in sequence:
            for verb in with_attachment(model, drawn):
                await do_everywhere(model, stores, verb)
        for name, side in stores.items():
            assert model.contents() == await side.contents()
            await side.drain()
            assert [] == await runs[name].payload_keys()


async def open_side(stack: AsyncExitStack, runs: Runs, *, in_order: bool) -> StoreSide:
    """Open a store of a fresh run, bound to a gated policy with the model's window."""
    store = await stack.enter_async_context(
        runs.open(
            capacity=CAPACITY,
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


async def do_everywhere(model: ModelSide, stores: dict[str, StoreSide], verb: Verb) -> None:
    """Do one verb on all sides and compare what they say and what they show."""
    plan = verb.plan(model)
    expected = model_reply(verb.on_model, model, plan)
    view = model.view()
    for name, side in stores.items():
        assert expected == await reply_of(verb.on_store(side, plan)), f"{name}: {verb}"
        assert view == await side.view(), f"{name}: {verb}"
        assert () == await side.violations(), f"{name}: {verb}"
