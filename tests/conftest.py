"""Fixtures of all tests: one real server a session, a fresh fake per test, audits after."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis.asyncio

from redis_replay import embedded
from tests.harness import Runs

# A shell's background job ignores interrupts, and so would the programs that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The url of a private server for the session; without one the tests fail, they never skip."""
    directory: Path = tmp_path_factory.mktemp("server")
    with embedded.open_embedded(directory, appendfsync="no") as lease:
        yield lease.url


@pytest.fixture(params=["fake", "real"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """An asyncio client of a fresh fake server, or of the session's real one."""
    if request.param == "fake":
        opened: Any = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
    else:
        opened = redis.asyncio.Redis.from_url(request.getfixturevalue("real_server"))
    yield opened
    await opened.aclose()


@pytest.fixture
async def real_client(real_server: str) -> AsyncIterator[Any]:
    """An asyncio client of the session's real server."""
    opened = redis.asyncio.Redis.from_url(real_server)
    yield opened
    await opened.aclose()


@pytest.fixture
async def runs(client: Any) -> AsyncIterator[Runs]:
    """Opens stores on the test's server; every run it opened is audited after the test."""
    opened = Runs(client)
    yield opened
    await opened.check()
