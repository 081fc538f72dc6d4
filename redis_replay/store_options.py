"""How a store is opened, as `open_store` was asked for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redis_replay._redis.gateway import TransferWay
from redis_replay.fields import FieldOptions
from redis_replay.run import RunSettings


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
