"""A server that is not what it was: every call says so, and nothing is created in its place."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from redis import exceptions

from redis_replay import InOrderSampler, InOrderSamplerConfig, create_sampler
from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.run_scripts import Publish
from redis_replay.errors import (
    ReplayError,
    SchemaMismatch,
    StaleOwner,
    StaleStore,
    StoreMissing,
    StoreOutOfMemory,
    StoreRefused,
    StoreRegressed,
    StoreUnavailable,
)
from redis_replay.selection import Eviction
from tests.harness import Runs, commit_ready, rows, until

pytestmark = pytest.mark.anyio


@dataclass
class World:
    """An open run with a reserved, a ready and a claimed group."""

    runs: Runs
    store: Any
    trainer: Any
    sampler: InOrderSampler

    @property
    def meta(self) -> str:
        return str(self.store.buffer.session.link.gateway.keyspace.control(Key.META))

    async def change(self, field: str, value: object) -> None:
        """Write a field of the control record behind the store's back."""
        await self.runs.client.hset(self.meta, field, value)

    async def flush(self) -> None:
        """Delete every key of the run, as FLUSHALL does."""
        await self.runs.client.delete(*await self.runs.keys())


@pytest.fixture
async def world(runs: Runs) -> AsyncIterator[World]:
    async with runs.open(journal_events=1000) as store, store.trainer(owner="job") as trainer:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=3))
        assert isinstance(sampler, InOrderSampler)
        await sampler.admit(trainer_version_fn=lambda: 0)
        await commit_ready(store, 0, group_id="claimed", target_step=0)
        await sampler.select(current_train_weight=0, min_prompt_groups=1, max_prompt_groups=1)
        await commit_ready(store, 0, group_id="ready", target_step=0)
        await store.buffer.reserve(0, group_id="reserved", target_step=0)
        yield World(runs, store, trainer, sampler)


async def dispatch(world: World) -> None:
    async with world.store.mutation() as cut:
        cut.reserve(0, group_id="new")


async def commit(world: World) -> None:
    await world.store.buffer.commit(
        "reserved", rows(3), start_weight_version=0, end_weight_version=0
    )


async def select(world: World) -> None:
    await world.sampler.select(current_train_weight=0, min_prompt_groups=1, max_prompt_groups=1)


async def evict(world: World) -> None:
    await world.trainer.buffer.evict(Eviction(below=5))


async def attach(world: World) -> None:
    async with world.store.rollout(owner="late"):
        pass


Verb = Callable[[World], Awaitable[Any]]

WRITES: dict[str, Verb] = {
    "reserve": lambda world: world.store.buffer.reserve(0, group_id="new"),
    "cut": dispatch,
    "commit": commit,
    "select": select,
    "commit_step": lambda world: world.trainer.commit_step(0),
    "requeue": lambda world: world.trainer.abort_step(),
    "admit": lambda world: world.sampler.admit(trainer_version_fn=lambda: 0),
    "abort": lambda world: world.store.buffer.abort("reserved"),
    "remove": lambda world: world.store.buffer.remove(["ready"]),
    "evict": evict,
    "promote": lambda world: world.store.buffer.promote_ready_group(to_target_step=0),
    "publish": lambda world: world.store.publish_trainer_version(9),
    "attach": attach,
}
READS: dict[str, Verb] = {
    "stats": lambda world: world.store.stats(),
    "audit": lambda world: world.store.audit(),
    "refresh": lambda world: world.sampler.refresh(),
}


@pytest.mark.parametrize("verb", [*WRITES, *READS])
async def test_a_flushed_run_is_missing_for_every_verb_and_never_created_again(
    world: World, verb: str
) -> None:
    await world.flush()
    world.runs.audited = False
    with pytest.raises(StoreMissing):
        await (WRITES | READS)[verb](world)
    assert [] == await world.runs.keys()


async def test_a_flushed_run_is_missing_although_heartbeats_have_failed(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    runs.audited = False
    async with runs.open() as store, store.rollout(owner="host", lease_seconds=0.2) as rollout:
        await runs.client.delete(*await runs.keys())

        async def a_beat_was_refused() -> bool:
            return "'host' cannot beat" in caplog.text

        await until(a_beat_was_refused, what="a heartbeat was refused")
        with pytest.raises(StoreMissing):
            await rollout.buffer.reserve(0)


async def test_a_flushed_run_is_not_opened_unless_it_may_be_created(world: World) -> None:
    await world.flush()
    world.runs.audited = False
    with pytest.raises(StoreMissing):
        async with world.runs.open(create=False):
            pass
    assert [] == await world.runs.keys()


async def test_lost_history_stays_noticed_however_far_the_server_goes_on(world: World) -> None:
    [seq] = await world.runs.client.hmget(world.meta, "seq")
    await world.change("seq", int(seq) - 1)
    with pytest.raises(StoreRegressed, match="lost history"):
        await WRITES["publish"](world)
    await world.change("seq", 10_000)
    for verb in WRITES.values():
        with pytest.raises(StoreRegressed):
            await verb(world)
    async with world.runs.open() as reopened:
        await reopened.buffer.reserve(0)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("seq", 3, StoreRegressed),
        ("lineage", "another-one", StoreRegressed),
        ("store_epoch", 2, StaleStore),
        ("min_writer", 99, SchemaMismatch),
    ],
)
@pytest.mark.parametrize("verb", WRITES)
async def test_another_history_of_the_run_is_refused_by_every_verb_and_left_unchanged(
    world: World, verb: str, field: str, value: object, error: type[ReplayError]
) -> None:
    await world.change(field, value)
    before = await world.runs.client.hgetall(world.meta)
    with pytest.raises(error):
        await WRITES[verb](world)
    assert before == await world.runs.client.hgetall(world.meta)


async def test_a_session_ended_behind_its_back_is_stale_for_every_verb_of_it(
    world: World,
) -> None:
    owners = world.store.buffer.session.link.gateway.keyspace.control(Key.OWNERS)
    async with world.store.trainer(owner="job"):
        await world.runs.client.hget(owners, "job")
        for verb in ("select", "commit_step", "requeue", "admit", "evict"):
            with pytest.raises(StaleOwner):
                await WRITES[verb](world)


# What the client raises


class FailingLines:
    """Lines whose next commands fail, and which then answer."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures

    async def run(self, commands: Sequence[Any]) -> list[Any]:
        if not self.failures:
            return [[b"OK", b"1", b"-1", b"0", b""] for _ in commands]
        failure = self.failures.pop(0)
        if not isinstance(failure, exceptions.ResponseError):
            raise failure  # as the client does with a lost connection
        return [failure for _ in commands]

    async def close(self) -> None:
        """Have no connection to close, as lines and as a transfer."""


def failing_gateway(failures: list[Exception], *, deadline_seconds: float = 0.0) -> Gateway:
    gateway = Gateway(
        Target.from_url("unix:///nowhere"),
        Keyspace("run", "partition"),
        deadline_seconds=deadline_seconds,
    )
    lines: Any = FailingLines(failures)
    gateway._lines = gateway._transfer = lines
    return gateway


async def call(gateway: Gateway) -> Any:
    return await gateway.call(Publish(1), (1, "lineage", 1))


async def call_with_payload(gateway: Gateway) -> Any:
    return await gateway.call(Publish(1), (1, "lineage", 1), writes=[("key", b"value")])


async def read(gateway: Gateway) -> Any:
    return await gateway.pipeline([("GET", "key")])


def client_errors() -> list[type[exceptions.RedisError]]:
    found = inspect.getmembers(exceptions, inspect.isclass)
    return [kind for _, kind in found if issubclass(kind, exceptions.RedisError)]


@pytest.mark.parametrize("send", [call, call_with_payload, read])
@pytest.mark.parametrize("kind", [*client_errors(), OSError, ConnectionResetError, TimeoutError])
async def test_no_exception_of_the_client_escapes(
    kind: type[Exception], send: Callable[[Gateway], Awaitable[Any]]
) -> None:
    failures = [kind("1 127.0.0.1:7000") for _ in range(9)]
    with pytest.raises(ReplayError) as raised:
        await send(failing_gateway(failures))
    assert isinstance(raised.value.__cause__, kind)


TRANSIENT = [
    exceptions.ConnectionError("reset"),
    exceptions.TimeoutError("late"),
    exceptions.MaxConnectionsError("many"),
    exceptions.BusyLoadingError("LOADING Redis is loading the dataset in memory"),
    exceptions.ReadOnlyError("READONLY You can't write against a read only replica."),
    exceptions.MasterDownError("MASTERDOWN Link with MASTER is down"),
    exceptions.ClusterDownError("CLUSTERDOWN The cluster is down"),
    exceptions.TryAgainError("TRYAGAIN Multiple keys request during rehashing of slot"),
    exceptions.ResponseError("BUSY Redis is busy running a script."),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
    OSError("unreachable"),
]


@pytest.mark.parametrize("failure", TRANSIENT, ids=lambda failure: str(failure).split()[0])
async def test_a_passing_trouble_is_waited_out(failure: Exception) -> None:
    gateway = failing_gateway([failure, failure], deadline_seconds=10.0)
    assert None is await call(gateway)


@pytest.mark.parametrize("failure", TRANSIENT, ids=lambda failure: str(failure).split()[0])
async def test_a_lasting_trouble_is_unavailable_after_the_deadline(failure: Exception) -> None:
    with pytest.raises(StoreUnavailable):
        await call(failing_gateway([failure] * 9))


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (exceptions.OutOfMemoryError("command not allowed when used memory"), StoreOutOfMemory),
        (exceptions.AuthenticationError("WRONGPASS invalid username-password"), StoreRefused),
        (exceptions.AuthenticationError("NOAUTH Authentication required."), StoreRefused),
        (exceptions.NoPermissionError("NOPERM this user has no permissions"), StoreRefused),
        (exceptions.ResponseError("MISCONF Redis is configured to save RDB"), StoreRefused),
        (exceptions.ResponseError("ERR Protocol error: invalid bulk length"), StoreRefused),
        (exceptions.DataError("Invalid input of type: 'NoneType'"), StoreRefused),
    ],
    ids=lambda value: str(value).split()[0],
)
async def test_a_refusal_is_raised_at_once_and_not_repeated(
    failure: Exception, error: type[ReplayError]
) -> None:
    failures = [failure, failure]
    with pytest.raises(error):
        await call(failing_gateway(failures, deadline_seconds=10.0))
    assert 1 == len(failures)
