"""How a store is opened, as `open_store` was asked for it, and where its server is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio

from redis_replay import embedded
from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import TransferWay
from redis_replay.errors import ConfigurationError
from redis_replay.fields import FieldOptions
from redis_replay.run import RunSettings
from redis_replay.tasks import shielded

URL_VARIABLE: Final = "REDIS_REPLAY_URL"


@dataclass(frozen=True)
class StoreOptions:
    """How a store is opened; see `open_store`."""

    url: str | None
    client: Any
    run: str
    partition: str
    settings: RunSettings
    dataset: str | None
    new_dataset: bool
    create: bool
    switch_policy: bool
    allow_unsafe_server: bool
    deadline_seconds: float
    transfer: TransferWay
    fields: Mapping[str, FieldOptions]
    discard_on_exit: bool = False


async def find_server(options: StoreOptions, stack: AsyncExitStack) -> Target:
    """Return the server of a store; a private one is started, and let go of with the stack.

    Raises:
        ConfigurationError: none was named.
    """
    if options.client is not None:
        return Target.from_client(options.client)
    url = options.url or os.environ.get(URL_VARIABLE)
    if not url:
        raise ConfigurationError(
            f"no server was named: pass a url (embedded:///folder needs none running) or set "
            f"{URL_VARIABLE}"
        )
    if url.startswith("embedded:"):
        directory, wishes = embedded.parse_embedded_url(url)
        lease = await anyio.to_thread.run_sync(partial(embedded.open_embedded, directory, **wishes))
        stack.push_async_callback(shielded, anyio.to_thread.run_sync, lease.close)
        url = lease.url
    return Target.from_url(url)
