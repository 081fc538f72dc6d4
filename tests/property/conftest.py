"""Runs of two servers draw the same numbers here, so that all of them can be compared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from redis_replay import run
from redis_replay._redis.gateway import Gateway


@pytest.fixture(scope="session", autouse=True)
def fences_from_the_beginning() -> Iterator[None]:
    """Let the fences of each new run begin at 1, not where the server's clock stands."""

    async def zero(gateway: Gateway) -> int:
        del gateway
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "first_fence", zero)
        yield
