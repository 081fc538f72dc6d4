"""A run with groups in every state, and for each script a call that changes something in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from redis_replay import ReplayStore, RolloutSession, TrainerSession
from redis_replay._redis import run_scripts, scripts
from redis_replay._redis.checkpoint_scripts import (
    AddToImport,
    BeginImport,
    Condemn,
    CreateCheckpoint,
    Discard,
    DropCheckpoint,
    MarkCheckpoint,
    Restore,
)
from redis_replay._redis.frames import SessionScript, StoreScript, UseUp
from redis_replay._redis.gateway import Payload
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import ScriptCall
from redis_replay._redis.quarantine_scripts import Quarantine, Reinstate
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.selecting_scripts import LetGo, SelectForGood
from redis_replay.group_record import pack_record
from redis_replay.groups import payload_writes
from redis_replay.payloads import EncodedGroup, encode_group
from redis_replay.types import Reservation
from tests.contract.keyspace import control_key, send, send_plain
from tests.harness import Runs, commit_ready, rows

CHUNK_BYTES = 1024
SAVED_ID = "5a"
IMPORTED_ID = "7c"
IMPORTED_SLOT = b"ready 9 900 0 0 - 900 - 1 - 0 - 50 - 0"


@dataclass
class Scene:
    """The run: ``r`` is reserved with its payload written, ``y`` and ``z`` are ready, ``c`` is
    claimed, ``q`` quarantined, ``t`` is a ticket, ``h`` and ``k`` are held by a host, ``d`` waits
    for collection, ``e`` is condemned, the checkpoint ``kept`` holds the others, and ``coming`` is
    being imported.
    """

    runs: Runs
    store: ReplayStore
    host: RolloutSession
    receiver: TrainerSession
    reserved: Reservation
    encoded: EncodedGroup
    writes: Sequence[tuple[str, Payload]]
    dead_entry: str
    condemned_entry: str
    payloads: Mapping[str, int | None]

    @property
    def session(self) -> Any:
        """The session that calls are sent under."""
        return self.store.buffer.session

    @property
    def batch(self) -> int:
        """Number of the session's claim."""
        return self.store.buffer.claims.batches[0]

    async def send(
        self, call: ScriptCall[Any], *, number: int = 1600, digest: str = "digest"
    ) -> Any:
        """Send a call with the frame of its kind, a commit with its payload."""
        if isinstance(call, SessionScript):
            writes = self.writes if isinstance(call, scripts.Commit) else ()
            return await send(self.session, call, number=number, digest=digest, writes=writes)
        if isinstance(call, StoreScript):
            return await send_plain(self.session, call)
        return await self.session.link.gateway.call(call)

    async def apply(self, call: ScriptCall[Any], *, number: int = 1600) -> Any:
        """Send a call that must not be refused, and return its reply."""
        reply = await self.send(call, number=number)
        assert not isinstance(reply, Refusal), reply
        return reply

    def payload_fences(self, *group_ids: str) -> tuple[str, ...]:
        """Return the payload fences that committed groups had when the scene was set."""
        return tuple(str(self.payloads[group_id]) for group_id in group_ids)

    def blob(self) -> bytes:
        """Return the record of the reserved group."""
        return pack_record(self.encoded, chunk_bytes=CHUNK_BYTES, tags=[{}, {}], rollout_metrics={})


@asynccontextmanager
async def opened_scene(runs: Runs) -> AsyncIterator[Scene]:
    """Open a fresh run and set the scene; nothing beats or collects in it by itself."""
    async with (
        runs.open(capacity=32, max_requeues=9) as store,
        store.rollout(owner="host") as host,
        store.trainer(owner="receiver") as receiver,
    ):
        link = store.buffer.session.link

        async def nothing() -> int:
            return 0

        link.collector.collect = nothing  # type: ignore[method-assign]
        async with store.rollout(owner="gone") as gone:
            await gone.buffer.reserve(0, group_id="t", target_step=2, prompt_ref=b"p")
        reserved = await store.buffer.reserve(0, group_id="r", target_step=5, prompt_ref=b"p")
        for group_id, target in (("y", 3), ("z", 4), ("c", 1), ("k", 1), ("d", 1), ("e", 1)):
            await commit_ready(store, 0, group_id=group_id, target_step=target)
        await store.buffer.claim_for_training(["c"])
        await commit_ready(store, 0, group_id="q", target_step=9)
        await store.buffer.quarantine(["q"])
        await host.buffer.claim_for_training(["k"])
        await host.buffer.reserve(0, group_id="h")
        await store.buffer.remove_group("e")
        [condemned, *_] = await runs.client.zrevrange(control_key(runs, Key.DEAD), 0, -1)
        await store.buffer.remove_group("d")
        encoded = encode_group("r", rows())
        writes = payload_writes(
            encoded,
            link.gateway.keyspace,
            "r",
            fence=reserved.fence,
            chunk_bytes=CHUNK_BYTES,
        )
        for key, part in writes:
            await runs.client.set(key, bytes(part))
        [dead, *_] = await runs.client.zrevrange(control_key(runs, Key.DEAD), 0, -1)
        scene = Scene(
            runs,
            store,
            host,
            receiver,
            reserved,
            encoded,
            writes,
            dead.decode(),
            condemned.decode(),
            {slot.group_id: slot.payload_fence for slot in await store.buffer.slots()},
        )
        await scene.apply(run_scripts.SetWindow("", 0, 3))
        await scene.apply(Condemn((condemned.decode(),), ()))
        await scene.apply(CreateCheckpoint("kept", 0, 0, 0, 1, b"", (SAVED_ID,)))
        await scene.apply(begin_import("coming", IMPORTED_ID))
        await runs.client.hset(control_key(runs, Key.META), "schema", 1)
        await link.heart.stop()
        yield scene


def begin_import(name: str, saved_id: str) -> BeginImport:
    """Return the call that registers a checkpoint of one ready group."""
    return BeginImport(name, 1, "elsewhere", 2, 3, 50, 1, b"", (0, 1, 0, 0), (saved_id,))


CALLS: Mapping[type[ScriptCall[Any]], Callable[[Scene], ScriptCall[Any]]] = {
    run_scripts.OpenRun: lambda _: run_scripts.OpenRun(create=0, settings=()),
    run_scripts.ReadTogether: lambda _: run_scripts.ReadTogether(()),
    run_scripts.Resize: lambda _: run_scripts.Resize(40, None),
    run_scripts.Attach: lambda _: run_scripts.Attach("new", "rollout", 1, 60_000, "here", 0),
    run_scripts.Heartbeat: lambda s: run_scripts.Heartbeat("host", s.host.epoch),
    run_scripts.EndOwner: lambda s: run_scripts.EndOwner("host", s.host.epoch, None, planned=0),
    run_scripts.EndOthers: lambda s: run_scripts.EndOthers(9, (s.session.epoch,)),
    run_scripts.BindPolicy: lambda _: run_scripts.BindPolicy(
        *("", 0, "windowed", "{}", None, None), switch=0
    ),
    run_scripts.SetCursor: lambda _: run_scripts.SetCursor("", 0, 4, 1),
    run_scripts.SetWindow: lambda _: run_scripts.SetWindow("", 0, 2),
    run_scripts.Publish: lambda _: run_scripts.Publish(1),
    run_scripts.Acknowledge: lambda s: run_scripts.Acknowledge(
        s.session.owner, s.session.epoch, s.batch, 0
    ),
    run_scripts.Bury: lambda s: run_scripts.Bury(entries=(s.condemned_entry,)),
    run_scripts.CatchUp: lambda _: run_scripts.CatchUp(4),
    run_scripts.SetDataset: lambda _: run_scripts.SetDataset("prompts-2", ""),
    run_scripts.Migrate: lambda _: run_scripts.Migrate(from_schema=1),
    CreateCheckpoint: lambda _: CreateCheckpoint("next", 0, 0, 1, 2, b"extra", ("6b",)),
    MarkCheckpoint: lambda _: MarkCheckpoint("kept", 1, "complete", "0123", (SAVED_ID,)),
    DropCheckpoint: lambda _: DropCheckpoint("kept", 256, (SAVED_ID,)),
    Condemn: lambda s: Condemn((s.dead_entry,), (SAVED_ID, IMPORTED_ID)),
    BeginImport: lambda _: begin_import("next", "8d"),
    AddToImport: lambda _: AddToImport(
        "coming", "slots", (b"i", IMPORTED_SLOT), (b"900:i", b"record"), (IMPORTED_ID,)
    ),
    Discard: lambda _: Discard(1, (SAVED_ID, IMPORTED_ID), ()),
    Restore: lambda _: Restore("kept", "all", "", "token", (SAVED_ID,), ()),
    scripts.Admit: lambda _: scripts.Admit(seen_version=0),
    UseUp: lambda _: UseUp(),
    scripts.Reserve: lambda _: scripts.Reserve(("n",), (0,), ("7",), (b"=p",), (1,)),
    scripts.ApplyCut: lambda _: scripts.ApplyCut(
        0, 0, 0, 0, b"state", 1, ("n", "m"), (0, 1), ("", "7"), (b"=p", b""), (0, 1)
    ),
    scripts.Commit: lambda s: scripts.Commit(
        *("r", s.reserved.fence, 0, 1, s.encoded.payload_bytes, s.blob()), 2, "1.5", 0
    ),
    scripts.Claim: lambda _: scripts.Claim("buffer", 0, 9, 1, 9),
    scripts.ClaimExact: lambda _: scripts.ClaimExact("", ("z", "y")),
    SelectForGood: lambda _: SelectForGood("buffer", 0, 9, 1, 9),
    LetGo: lambda _: LetGo(()),
    scripts.Settle: lambda s: scripts.Settle(0, 0, 0, batches=(s.batch,)),
    scripts.Requeue: lambda _: scripts.Requeue(all=1, failed=1, group_ids=()),
    scripts.Transfer: lambda _: scripts.Transfer("receiver", 0),
    scripts.Evict: lambda _: scripts.Evict(by_step=1, below=4),
    scripts.Abort: lambda s: scripts.Abort("r", s.reserved.fence, "slow"),
    scripts.Drop: lambda s: scripts.Drop(
        *("r", s.reserved.fence, "filtered", "no_signal", 2, "0.5", 1, 3), ("n",), (0,), (b"=q",)
    ),
    scripts.Drain: lambda _: scripts.Drain(2),
    scripts.Remove: lambda _: scripts.Remove("bad", ("z", "t")),
    Reinstate: lambda _: Reinstate(("q",)),
    scripts.Promote: lambda _: scripts.Promote(0),
    scripts.TakeTickets: lambda _: scripts.TakeTickets(4, 2),
    run_scripts.MarkWritten: lambda s: run_scripts.MarkWritten(
        s.session.owner, s.session.epoch, ("c",)
    ),
    Quarantine: lambda s: Quarantine(
        s.session.owner, s.session.epoch, "damaged", ("c", "y"), s.payload_fences("c", "y")
    ),
}
"""For each script a call that the scene accepts."""


async def total_of(runs: Runs, name: str) -> int:
    """Return a field of the control record as a number."""
    return int(await runs.client.hget(control_key(runs, Key.META), name))
