"""Random verbs of three owners do the same on the plain model, on fakeredis and on a real server.

After every verb the replies (or the error's class) and everything a caller can see are equal, and
the audit finds nothing. At the end the rows of every committed group are those of the commit that
won, and when all is given back no key of a payload is left.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import anyio
import fakeredis
import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redis_replay import InOrderSamplerConfig, WeightFifoSamplerConfig, create_sampler
from redis_replay.selection import Rule
from tests.harness import Runs
from tests.property.model import BufferModel
from tests.property.sides import OWNERS, ModelSide, StoreSide, model_reply, reply_of
from tests.property.training_verbs import (
    Adopt,
    Collect,
    CommitStep,
    Publish,
    Release,
    Requeue,
    Seed,
    SetWindow,
    Transfer,
    WriteBack,
)
from tests.property.verbs import (
    Abort,
    Admit,
    Attach,
    ClaimExactly,
    Commit,
    Cut,
    Detach,
    Die,
    Evict,
    Promote,
    Remove,
    Reserve,
    Select,
    TakeTickets,
    Verb,
)

CAPACITY = 6
MAX_PAYLOAD_BYTES = 150
MAX_ATTEMPTS = 2
MAX_REQUEUES = 2
WINDOW = 1

owners = st.sampled_from(OWNERS)
leads = st.sampled_from([0, 0, 0, -1, 1, -2])
targets = st.sampled_from([None, 0, 0, 1, 2, -1])
groups = st.integers(0, 8)
numbers = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)
nths = st.sampled_from([0, 0, 0, 0, 1, 2, 5])
places = st.lists(
    st.tuples(groups, leads, targets), max_size=3, unique_by=lambda wanted: wanted[0]
).map(tuple)


def cuts(rival: st.SearchStrategy[Cut | None]) -> st.SearchStrategy[Cut]:
    """Return cuts that record something."""
    drawn = st.builds(
        Cut,
        owner=owners,
        admits=st.sampled_from([True, True, False]),
        sets_loader=st.booleans(),
        seen_lead=st.sampled_from([0, 0, 1]),
        places=places,
        rival=rival,
        breaks=st.sampled_from([False, False, False, True]),
    )
    return drawn.filter(lambda cut: bool(cut.admits or cut.sets_loader or cut.places))


VERBS: list[tuple[int, st.SearchStrategy[Any]]] = [
    (6, st.builds(Reserve, owners, groups, leads, targets)),
    (9, st.builds(Commit, owners, nths, st.integers(0, 99), st.sampled_from([0, 0, 0, 1, -1]))),
    (4, cuts(st.none() | cuts(st.none()))),
    (
        6,
        st.builds(
            Select,
            owners,
            st.sampled_from(Rule),
            st.integers(0, 2),
            st.sampled_from([0, 0, 0, 1]),
            st.sampled_from([1, 1, 2]),
            st.integers(0, 3),
        ),
    ),
    (2, st.builds(ClaimExactly, owners, numbers)),
    (4, st.builds(CommitStep, owners, st.sampled_from([0, 0, 0, -1, 1]), st.booleans())),
    (2, st.builds(Release, owners, st.sampled_from(["", "", "missing", "extra", "twice"]))),
    (3, st.builds(Requeue, owners, st.just(()) | numbers, st.booleans())),
    (2, st.builds(Abort, owners, nths, st.sampled_from(["aborted", "failed"]))),
    (1, st.builds(Remove, owners, numbers)),
    (2, st.builds(Evict, owners, leads, st.booleans())),
    (2, st.builds(Promote, owners, leads)),
    (3, st.builds(TakeTickets, owners, st.integers(1, 3), leads)),
    (2, st.builds(Transfer, owners, owners)),
    (2, st.builds(Adopt, owners)),
    (2, st.builds(WriteBack, owners, st.none() | st.integers(0, 6))),
    (3, st.builds(Die, owners)),
    (2, st.builds(Attach, owners, st.booleans())),
    (1, st.builds(Detach, owners)),
    (2, st.builds(Admit, owners, st.sampled_from([0, 0, 1]))),
    (1, st.builds(Publish, owners, st.sampled_from([0, 1, -1]))),
    (1, st.builds(SetWindow, owners, st.integers(0, 2))),
    (1, st.builds(Seed, owners, st.sampled_from([0, 1, -1]), st.booleans())),
    (1, st.builds(Collect, owners)),
]
verbs = st.sampled_from([strategy for weight, strategy in VERBS for _ in range(weight)]).flatmap(
    lambda strategy: strategy
)


@pytest.mark.timeout(60)
@settings(
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(in_order=st.booleans(), sequence=st.lists(verbs, min_size=20, max_size=40))
def test_random_verbs_do_the_same_on_the_model_and_on_both_servers(
    real_server: str, in_order: bool, sequence: list[Verb]
) -> None:
    anyio.run(run_everywhere, real_server, in_order, sequence)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(
    max_examples=400,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(in_order=st.booleans(), sequence=st.lists(verbs, min_size=40, max_size=60))
def test_long_random_sequences_do_the_same_on_the_model_and_on_both_servers(
    real_server: str, in_order: bool, sequence: list[Verb]
) -> None:
    anyio.run(run_everywhere, real_server, in_order, sequence)


async def run_everywhere(real_server: str, in_order: bool, sequence: list[Verb]) -> None:
    """Run one sequence on the model and two stores, comparing after every verb."""
    model = ModelSide(
        BufferModel(
            capacity=CAPACITY,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
            max_attempts=MAX_ATTEMPTS,
            max_requeues=MAX_REQUEUES,
            in_order=in_order,
            window=WINDOW,
        )
    )
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
            stores[name] = await open_side(stack, runs[name], in_order)
        for at, verb in enumerate(sequence):
            await step_everywhere(model, stores, verb, where=f"verb {at} of {sequence}")
        for name, side in stores.items():
            assert model.contents() == await side.contents()
            await side.drain()
            assert [] == await runs[name].payload_keys()


async def open_side(stack: AsyncExitStack, runs: Runs, in_order: bool) -> StoreSide:
    """Open a store of a fresh run, bound to a gated policy with the model's window."""
    store = await stack.enter_async_context(
        runs.open(
            capacity=CAPACITY,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
            max_attempts=MAX_ATTEMPTS,
            max_requeues=MAX_REQUEUES,
        )
    )
    config = (
        InOrderSamplerConfig(max_lookahead_versions=WINDOW)
        if in_order
        else WeightFifoSamplerConfig(max_staleness_versions=WINDOW)
    )
    await create_sampler(store.buffer, config).flush()
    return StoreSide(store)


async def step_everywhere(
    model: ModelSide, stores: dict[str, StoreSide], verb: Verb, *, where: str
) -> None:
    """Do one verb on all sides and compare what they say and what they show."""
    if verb.owner not in model.members and not isinstance(verb, Attach):
        await step_everywhere(model, stores, Attach(verb.owner), where=where)
    plan = verb.plan(model)
    expected = model_reply(verb.on_model, model, plan)
    view = model.view()
    for name, side in stores.items():
        assert expected == await reply_of(verb.on_store(side, plan)), f"{name}: {where}"
        assert view == await side.view(), f"{name}: {where}"
        assert () == await side.violations(), f"{name}: {where}"
