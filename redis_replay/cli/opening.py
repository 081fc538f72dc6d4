"""A run opened as a store, for the commands that change it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from redis_replay._redis.connect import Target
from redis_replay.cli.places import DEADLINE_SECONDS, only_run
from redis_replay.cli.survey import survey_server
from redis_replay.opening import open_store
from redis_replay.store import ReplayStore


@asynccontextmanager
async def opened_run(
    target: Target, run: str | None, partition: str | None
) -> AsyncGenerator[ReplayStore]:
    """Open the one run that the options allow; it is never created."""
    await survey_server(target)
    keyspace = await only_run(target, run=run, partition=partition)
    async with open_store(
        client=target.connect(),
        run=keyspace.run,
        partition=keyspace.partition,
        create=False,
        deadline_seconds=DEADLINE_SECONDS,
    ) as store:
        yield store
