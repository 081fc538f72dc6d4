"""A run in a cluster: control keys on one node, payload on all, whatever moves or fails."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import numpy as np
import pytest
from redis.asyncio import RedisCluster

import redis_replay
from redis_replay import ReplayStore, WindowedSamplerConfig, create_sampler
from redis_replay._redis.connect import Target
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.runs import list_runs
from redis_replay.errors import ConfigurationError, StoreUnavailable, UnsafeServer
from redis_replay.store import DEFAULT_PARTITION
from tests.contract.topologies import Cluster, cluster_of, until_in_step
from tests.harness import GROUP_SIZE

pytestmark = pytest.mark.anyio

GROUPS = 24
LONG = 40_000
"""Elements of a row whose group travels the transfer's way."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three masters that no test breaks."""
    with cluster_of(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def run() -> str:
    return f"test-{secrets.token_hex(6)}"


def meta_key(run: str) -> str:
    return Keyspace(run, DEFAULT_PARTITION).control(Key.META)


def payload_pattern(run: str) -> str:
    return f"{Keyspace(run, DEFAULT_PARTITION).payload_prefix}*"


@asynccontextmanager
async def opened(cluster: Cluster, run: str, **options: Any) -> AsyncIterator[ReplayStore]:
    """Open a run, and audit it at the end."""
    wanted = {"run": run, "capacity": 2 * GROUPS, "group_size": GROUP_SIZE, **options}
    async with redis_replay.open_store(cluster.url, **wanted) as store:
        yield store
        report = await store.audit()
        assert () == report.violations


async def commit(store: ReplayStore, value: int, *, length: int = 3) -> str:
    """Commit a group whose rows say which one it is."""
    made = await store.buffer.reserve(0)
    group = [{"x": np.full(length, value + row, "<i4"), "reward": float(row)} for row in (0, 1)]
    await store.buffer.commit(made.group_id, group, start_weight_version=0, end_weight_version=0)
    return str(made.group_id)


async def train(store: ReplayStore, groups: int) -> list[int]:
    """Select, read and train so many groups; return what their rows say."""
    async with store.trainer(owner="job-0") as trainer:
        sampler = create_sampler(trainer.buffer, WindowedSamplerConfig())
        batch, count = await trainer.select(
            sampler, min_prompt_groups=groups, max_prompt_groups=groups
        )
        assert groups == count
        rows = await trainer.samples.get_samples(batch)
        await trainer.commit_step(trainer.trainer_version)
    return [int(row["x"][-1]) for row in rows]


@pytest.mark.parametrize("transfer", ["channel", "plain"])
@pytest.mark.parametrize("length", [3, LONG])
async def test_groups_lie_on_all_nodes_and_are_trained_as_they_were_committed(
    cluster: Cluster, run: str, transfer: Literal["channel", "plain"], length: int
) -> None:
    async with opened(cluster, run, transfer=transfer) as store:
        for value in range(0, 2 * GROUPS, 2):
            await commit(store, value, length=length)
        assert all(cluster.keys(payload_pattern(run)))
        assert [1] == [len(names) for names in cluster.keys(meta_key(run)) if names]
        assert list(range(2 * GROUPS)) == await train(store, GROUPS)
        await store.collect_garbage()
        assert [[], [], []] == cluster.keys(payload_pattern(run))


async def test_columns_are_written_back_on_every_node(cluster: Cluster, run: str) -> None:
    async with opened(cluster, run) as store, store.trainer(owner="job-0") as trainer:
        groups = [await commit(store, value) for value in range(0, 40, 2)]
        batch = await trainer.buffer.claim_for_training(groups)
        advantages = [np.full(3, at, "<f4") for at in range(batch.size)]
        await trainer.samples.put_samples(batch.sample_ids, fields={"advantages": advantages})
        assert 3 == sum(any(":w" in key for key in keys) for keys in cluster.keys("rr:p:*"))
        for select in (None, ["advantages", "reward"]):
            read = await trainer.samples.get_samples(batch, select_fields=select)
            assert list(range(40)) == [int(row["advantages"][0]) for row in read]
        await trainer.commit_step(0)
        await store.collect_garbage()
        assert [[], [], []] == cluster.keys(payload_pattern(run))


async def test_runs_on_every_node_are_listed(cluster: Cluster) -> None:
    names = {f"test-{secrets.token_hex(6)}" for _ in range(8)}
    for name in names:
        async with opened(cluster, name):
            pass
    listed = {name for name, _ in await list_runs(Target.from_url(cluster.url))}
    assert names <= listed
    assert len({cluster.owner(meta_key(name)).port for name in names}) > 1


async def test_payload_that_nothing_refers_to_is_found_on_every_node(
    cluster: Cluster, run: str
) -> None:
    async with opened(cluster, run) as store:
        strays = [Keyspace(run, DEFAULT_PARTITION).payload(f"gone-{at}", 1) for at in range(60)]
        assert len({cluster.owner(key).port for key in strays}) == 3
        for key in strays:
            cluster.owner(key).client.set(key, b"left by a killed writer")
        assert [] == await store.find_orphans()
        assert sorted(strays) == await store.find_orphans()
        assert [[], [], []] == cluster.keys(payload_pattern(run))


async def test_a_checkpoint_comes_back_here_and_on_one_server(
    cluster: Cluster, run: str, real_server: str, tmp_path: Path
) -> None:
    async with opened(cluster, run) as store:
        for value in range(0, 2 * GROUPS, 2):
            await commit(store, value, length=LONG if value < 4 else 3)
        await store.checkpoints.create("before")
        await store.checkpoints.export("before", tmp_path / "out")
        assert list(range(2 * GROUPS)) == await train(store, GROUPS)
        await store.checkpoints.restore("before")
    async with opened(cluster, run) as store:
        assert list(range(2 * GROUPS)) == await train(store, GROUPS)
    there: dict[str, Any] = {"run": f"{run}-2", "capacity": 2 * GROUPS, "group_size": GROUP_SIZE}
    async with redis_replay.open_store(real_server, **there) as other:
        await other.checkpoints.import_(tmp_path / "out")
        await other.checkpoints.restore("before")
    async with redis_replay.open_store(real_server, **there) as other:
        assert list(range(2 * GROUPS)) == await train(other, GROUPS)


async def test_slots_move_while_groups_are_committed_and_trained(
    cluster: Cluster, run: str
) -> None:
    async with opened(cluster, run) as store:
        for value in range(0, GROUPS, 2):
            await commit(store, value, length=LONG)
        payload = [names[0] for names in cluster.keys(payload_pattern(run)) if names]
        values = iter(range(GROUPS, 2 * GROUPS, 2))
        for key in (*payload, meta_key(run)):
            to = next(one for one in cluster.servers if one is not cluster.owner(key))
            async with anyio.create_task_group() as group:
                group.start_soon(anyio.to_thread.run_sync, cluster.move, key, to)
                for _ in range(3):
                    await commit(store, next(values), length=LONG)
        for value in values:
            await commit(store, value, length=LONG)
        assert list(range(2 * GROUPS)) == await train(store, GROUPS)


async def test_a_master_that_dies_is_replaced_and_nothing_is_lost(tmp_path: Path, run: str) -> None:
    with cluster_of(tmp_path, with_replica=True) as cluster:
        name = next(n for n in _names(run) if cluster.owner(meta_key(n)) is cluster.servers[0])
        async with opened(cluster, name) as store:
            for value in range(0, GROUPS, 2):
                await commit(store, value)
            await anyio.to_thread.run_sync(until_in_step, cluster.servers[0], cluster.servers[-1])
            cluster.servers[0].kill()
            for value in range(GROUPS, 2 * GROUPS, 2):
                await commit(store, value)
            assert list(range(2 * GROUPS)) == await train(store, GROUPS)


async def test_without_the_node_of_its_payload_a_commit_fails_and_shows_nothing(
    tmp_path: Path, run: str
) -> None:
    with cluster_of(tmp_path) as cluster:
        for one in cluster.servers:
            one.client.config_set("cluster-require-full-coverage", "no")
        name = next(n for n in _names(run) if cluster.owner(meta_key(n)) is cluster.servers[0])
        wanted: dict[str, Any] = {"run": name, "capacity": GROUPS, "group_size": GROUP_SIZE}
        async with redis_replay.open_store(cluster.url, **wanted, deadline_seconds=0.5) as store:
            cluster.servers[2].kill()
            outcomes: list[str] = []
            while len(set(outcomes)) < 2 and len(outcomes) < GROUPS:  # by their keys' slots
                try:
                    await commit(store, len(outcomes))
                except StoreUnavailable:
                    outcomes.append("unavailable")
                else:
                    outcomes.append("ready")
            stats = await store.stats()
            assert {"unavailable", "ready"} == set(outcomes)
            assert outcomes.count("ready") == stats.ready
            assert outcomes.count("unavailable") == stats.reserved


async def test_a_node_that_may_drop_keys_is_refused(cluster: Cluster, run: str) -> None:
    node = cluster.servers[1].client
    node.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(UnsafeServer, match="allkeys-lru"):
            async with opened(cluster, run):
                pass
    finally:
        node.config_set("maxmemory-policy", "noeviction")


async def test_a_cluster_of_which_no_node_answers_is_unavailable(run: str) -> None:
    url = "redis+cluster://127.0.0.1:1,127.0.0.1:2"
    store = redis_replay.open_store(url, run=run, capacity=1, group_size=1, deadline_seconds=0.3)
    with pytest.raises(StoreUnavailable, match="not reachable"):
        async with store:
            pass


async def test_a_client_that_is_no_client_of_one_server_is_refused(run: str) -> None:
    client: Any = RedisCluster(host="127.0.0.1", port=1)
    with pytest.raises(ConfigurationError, match=r"redis\+cluster://"):
        async with redis_replay.open_store(client=client, run=run, capacity=1, group_size=1):
            pass


def _names(run: str) -> Iterator[str]:
    return (f"{run}-{at}" for at in range(1000))
