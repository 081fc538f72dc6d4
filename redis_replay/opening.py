"""Opening a store: the one function that programs begin with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis_replay._redis.gateway import DEFAULT_DEADLINE_SECONDS, TransferWay
from redis_replay.fields import FieldOptions
from redis_replay.run import RunSettings
from redis_replay.store import DEFAULT_PARTITION, ReplayStore
from redis_replay.store_options import StoreOptions


def open_store(
    url: str | None = None,
    *,
    run: str,
    client: Any = None,
    partition: str = DEFAULT_PARTITION,
    capacity: int | None = None,
    group_size: int | None = None,
    groups_per_step: int | None = None,
    max_payload_bytes: int | None = None,
    max_attempts: int | None = None,
    max_requeues: int | None = None,
    journal_events: int | None = None,
    dataset: str | None = None,
    new_dataset: bool = False,
    create: bool = True,
    switch_policy: bool = False,
    allow_unsafe_server: bool = False,
    deadline_seconds: float = DEFAULT_DEADLINE_SECONDS,
    transfer: TransferWay = "channel",
    fields: Mapping[str, FieldOptions] | None = None,
    discard_on_exit: bool = False,
) -> ReplayStore:
    """Open a run: ``async with open_store(...) as store``. Creates it if it is not there.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://host,host/service``,
            ``redis+cluster://host,host``, ``embedded:///folder`` (a private server that keeps its
            data there) or ``embedded://`` (a temporary one). By default the variable
            ``REDIS_REPLAY_URL``.
        run: Name of the training run.
        client: An existing ``redis.asyncio`` client instead of a url; its settings are copied, it
            is not used.
        partition: Name of the data partition; partitions of a run share nothing.
        capacity: Most groups reserved, ready or claimed at once. Needed for a new run.
        group_size: Samples per group. Needed for a new run.
        groups_per_step: Groups per training batch; the sampler's capacity requirement is checked
            with it.
        max_payload_bytes: Payload bytes at which reserving and admitting stop; a commit never does.
        max_attempts: Generation attempts before a group is quarantined.
        max_requeues: Training requeues after failures before a group is quarantined.
        journal_events: Entries that the event journal keeps.
        dataset: Tag of the data that the loader position belongs to (name and revision, say). A run
            with another tag is refused.
        new_dataset: Whether a run with another tag is taken over: the loader position is forgotten,
            groups that are buffered are kept.
        create: Whether a missing run is created; else it is `StoreMissing`.
        switch_policy: Whether samplers of another policy than the stored one may take the run over.
        allow_unsafe_server: Whether a server that may drop keys is accepted, with a warning.
        deadline_seconds: How long a call is repeated while the server is away.
        transfer: How payload travels: over sockets of its own (``channel``, D65) or through the
            client library (``plain``), which is also the way where there are no such sockets.
        fields: How fields are stored of the groups that this store commits, by name: narrowed or
            compressed. They read back as they were given, by any reader; fields left out are stored
            as given.
        discard_on_exit: Whether the run is deleted when the block ends without an error:
            `ReplayStore.discard`. While sessions of other processes work on it, it stays.

    Raises (from the ``async with``):
        ConfigurationError: settings that cannot work, or that differ from the stored run's; all are
            named.
        StoreError: the server cannot be used.
    """
    for name, options in (fields or {}).items():
        if not isinstance(options, FieldOptions):
            raise TypeError(f"fields[{name!r}] must be FieldOptions, got {options!r}")
    settings = RunSettings(
        capacity=capacity,
        group_size=group_size,
        groups_per_step=groups_per_step,
        max_payload_bytes=max_payload_bytes,
        max_attempts=max_attempts,
        max_requeues=max_requeues,
        journal_events=journal_events,
    )
    return ReplayStore(
        StoreOptions(
            url=url,
            client=client,
            run=run,
            partition=partition,
            settings=settings,
            dataset=dataset,
            new_dataset=new_dataset,
            create=create,
            switch_policy=switch_policy,
            allow_unsafe_server=allow_unsafe_server,
            deadline_seconds=deadline_seconds,
            transfer=transfer,
            fields=dict(fields or {}),
            discard_on_exit=discard_on_exit,
        )
    )
