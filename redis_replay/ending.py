"""The end of a store or of its sessions: what is left is said, or deleted, or forgotten."""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

import anyio

from redis_replay._redis.checkpoint_scripts import Discard
from redis_replay._redis.keys import Key
from redis_replay._redis.records import CheckpointRecord
from redis_replay._redis.refusals import Refusal, accept
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.errors import ReplayError
from redis_replay.session import Link
from redis_replay.stats import read_stats

_LOG = logging.getLogger(__name__)
_SLICE: Final = 1000
_PATIENCE_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.5


async def say_what_is_left(link: Link) -> None:
    """Log what a run holds that this store stops working on; nothing where nobody answers soon."""
    gateway = link.gateway
    try:
        with anyio.move_on_after(_LOOK_SECONDS):
            left = await read_stats(gateway)
            _LOG.info(
                "run %r is left at step %d with %d groups ready, %d in flight and %d claimed",
                *(gateway.keyspace.run, left.trainer_version, left.ready, left.reserved),
                left.claimed,
            )
    except ReplayError as failure:
        _LOG.info("what run %r is left with is not known: %s", gateway.keyspace.run, failure)


async def discard_run(link: Link, *, force: bool) -> None:
    """Delete a run and end the sessions of this store; see `ReplayStore.discard`."""
    await link.tasks.finish(partial(_delete_control, link, force=force))
    for session in link.sessions:
        session.end_by_restore()
        session.detached, session.epoch = True, 0
    with anyio.move_on_after(_PATIENCE_SECONDS, shield=True):
        await link.tasks.idle()
    await link.tasks.finish(partial(_delete_payload, link))


async def _delete_control(link: Link, *, force: bool) -> None:
    """Delete the control keys of a run and of its checkpoints. Atomic.

    Raises:
        RunInUse: other sessions are attached and ``force`` is not set; nothing was changed.
    """
    gateway = link.gateway
    own = tuple(session.epoch for session in link.sessions if session.epoch)
    while True:
        [stored] = await gateway.pipeline([("HGETALL", gateway.keyspace.control(Key.CHECKPOINTS))])
        records = [CheckpointRecord.parse(name.decode(), r) for name, r in stored.items()]
        call = Discard(int(force), tuple(record.saved_id for record in records), own)
        reply = await gateway.call(call, link.run.frame)
        if isinstance(reply, Refusal) and reply.code == "CHECKPOINTS_MOVED":
            continue
        if isinstance(reply, Refusal) and reply.code == "MISSING":
            return  # an attempt whose answer was lost has done it
        live = accept(reply)
        _LOG.warning("run %r was deleted with %d live groups", gateway.keyspace.run, live)
        return


async def _delete_payload(link: Link) -> None:
    """Delete all payload keys of a run whose control keys are gone. May be repeated."""
    gateway, names = link.gateway, list[str]()
    async for name in gateway.scan(gateway.keyspace.payload_prefix + "*"):
        names.append(name)
        if len(names) == _SLICE:
            await gateway.ask_payload([("UNLINK", name) for name in names])
            names.clear()
    await gateway.ask_payload([("UNLINK", name) for name in names])


def forget_session(buffer: RedisReplayBuffer) -> None:
    """Have a buffer know nothing of what its session held, which a restore has ended."""
    buffer.holdings.forget()
    buffer.claims.forget()
    buffer.selections.forget()
    buffer.commits.forget()
    buffer.admission.forget()
