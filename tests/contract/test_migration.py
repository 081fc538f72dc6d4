"""A run that an older version wrote is brought up to date, trains on, and refuses that version."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import redis_replay
from redis_replay import InOrderSamplerConfig, ReplayStore, create_sampler
from redis_replay._redis.keys import Key
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import Publish
from redis_replay.errors import SchemaMismatch
from redis_replay.run import SCHEMA
from tests.contract.keyspace import control_key, nothing_changed, send_plain, snapshot
from tests.harness import Runs, rows

pytestmark = pytest.mark.anyio

FIXTURE = Path(__file__).parents[1] / "fixtures" / "run-schema-1.json"
POLICY = InOrderSamplerConfig(max_lookahead_versions=2)


async def write_old_run(runs: Runs) -> None:
    """Write a run of schema 1: g4 is claimed, g5 and g6 are ready, g7 to g9 reserved."""
    runs.opened.add((runs.name, "rollout_data"))
    for name, (kind, content) in json.loads(FIXTURE.read_text()).items():
        key = name.replace("old:", f"{runs.name}:", 1)
        if kind == "string":
            await runs.client.set(key, raw(content))
        elif kind == "hash":
            await runs.client.hset(key, mapping={raw(n): raw(v) for n, v in content})
        elif kind == "zset":
            await runs.client.zadd(key, {raw(member): score for member, score in content})
        else:
            for [entry] in content:
                await runs.client.xadd(key, {raw(n): raw(v) for n, v in entry.items()})


def raw(text: str) -> bytes:
    """Return the bytes that the fixture holds as base64."""
    return base64.b64decode(text)


def open_old(runs: Runs) -> ReplayStore:
    """Open the run with what it says of itself."""
    return redis_replay.open_store(client=runs.client, run=runs.name, create=False)


async def test_opening_brings_the_record_up_to_date_and_leaves_all_else(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    await write_old_run(runs)
    before = await snapshot(runs)
    with caplog.at_level(logging.WARNING, logger="redis_replay.run"):
        async with open_old(runs) as store:
            assert (12, 2, 2) == (
                *(store.run.settings.capacity, store.run.settings.group_size),
                store.run.settings.groups_per_step,
            )
            assert (await store.audit()).is_clean
    assert f"run {runs.name!r}: schema 1 was brought up to {SCHEMA}" in caplog.messages
    after = await snapshot(runs)
    meta, events = control_key(runs, Key.META), control_key(runs, Key.EVENTS)
    changed = {name for name in before if before[name] != after[name]}
    assert {meta, events} == changed
    expected = {b"schema": b"2", b"min_reader": b"2", b"min_writer": b"2", b"dataset": b""}
    assert {**before[meta], **expected, b"seq": b"22"} == after[meta]
    async with nothing_changed(runs), open_old(runs):
        pass


async def test_a_writer_of_the_older_schema_is_refused_from_then_on(runs: Runs) -> None:
    await write_old_run(runs)
    async with open_old(runs) as store:
        link = store.buffer.session.link
        _, *identity = link.run.frame
        async with nothing_changed(runs):
            refused: Any = await link.gateway.call(Publish(3), (1, *identity))
            assert isinstance(refused, Refusal)
            assert "SCHEMA" == refused.code
            assert isinstance(refused.error, SchemaMismatch)
            assert f"schema {SCHEMA}" in str(refused.error)
        assert await send_plain(store.buffer.session, Publish(3)) is None


async def test_an_old_run_trains_on_and_loses_and_repeats_nothing(
    runs: Runs, tmp_path: Path
) -> None:
    await write_old_run(runs)
    trained: list[str] = []
    async with (
        open_old(runs) as store,
        store.trainer(owner="job") as trainer,
        store.rollout(owner="host") as host,
    ):
        tickets = await host.take_tickets(weight_version=2, max_tickets=8)
        assert ["g7", "g8", "g9"] == [ticket.group_id for ticket in tickets]
        assert [b"prompt-7", b"prompt-8", b"prompt-9"] == [t.prompt_ref for t in tickets]
        for ticket in tickets:
            value = int(ticket.group_id[1:])
            await host.buffer.commit(
                ticket.group_id, rows(value), start_weight_version=2, end_weight_version=2
            )
        await store.checkpoints.create("now")
        sampler = create_sampler(trainer.buffer, POLICY)
        for step in (2, 3, 4):
            meta, _ = await trainer.select(sampler, min_prompt_groups=2, max_prompt_groups=2)
            for row in await trainer.samples.get_samples(meta):
                assert {int(row["input_ids"][0])} == {*row["input_ids"].tolist()}
                assert int(row["reward"]) - int(row["input_ids"][0]) in (0, 1)
                assert "advantage" not in row
            trained += (await trainer.commit_step(step)).trained
        assert [f"g{number}" for number in range(4, 10)] == trained
        assert 5 == await sampler.admit(trainer_version_fn=lambda: 5)
        await store.checkpoints.export("now", tmp_path)
        await store.checkpoints.import_(tmp_path, name="back")
        assert 6 == (await store.checkpoints.restore("back")).ready
