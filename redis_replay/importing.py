"""Bringing an exported checkpoint into a run: all of it is checked before anything is written.

Then the checkpoint is registered as ``building``, which draws fences of this run for its groups;
records are entered before the payload they speak of, so that nothing is ever unknown; and the last
step, after everything was counted, makes it ``complete``. Cut short, it can be dropped like any
other (D78).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio

from redis_replay._redis.checkpoint_scripts import AddToImport, BeginImport, MarkCheckpoint
from redis_replay._redis.frames import StoreScript
from redis_replay._redis.keys import Key, group_field
from redis_replay._redis.records import CheckpointRecord, SlotRecord
from redis_replay._redis.refusals import accept
from redis_replay.checkpoint_files import locked
from redis_replay.checkpoint_info import (
    CheckpointInfo,
    OnProgress,
    TransferProgress,
    new_saved_id,
    require_name,
)
from redis_replay.errors import CheckpointDamaged, ReplayError
from redis_replay.exported import Exported, read_copies
from redis_replay.exporting import in_parts
from redis_replay.packs import Batch, bytes_of, check_export, read_batches
from redis_replay.run import SCHEMA
from redis_replay.saved_state import Digest, Items, drop_saved
from redis_replay.session import Link
from redis_replay.tasks import SideThread
from redis_replay.verification import verify_checkpoint

R = TypeVar("R")
_LOG = logging.getLogger(__name__)

_UNDO_SECONDS: Final = 10.0
_PAGE: Final = 500
_NOBODYS: Final = b"0 import"
"""Holder of an admitted index that has no reservation: the next admitter gets it."""


async def import_checkpoint(
    link: Link, folder: Path, name: str | None, on_progress: OnProgress | None
) -> CheckpointInfo:
    """Check an export and write it to a run; `Checkpoints.import_`."""
    if name is not None:
        require_name(name)
    async with checked_export(folder, on_progress=on_progress) as exported:
        return await import_checked(link, exported, name=name, on_progress=on_progress)


@asynccontextmanager
async def checked_export(
    folder: Path, *, on_progress: OnProgress | None = None
) -> AsyncGenerator[Exported]:
    """Check an export and keep others from writing to it meanwhile.

    Raises:
        ConfigurationError: it is being written.
        CheckpointError, SchemaMismatch, ValueError: as `check_export`.
    """
    with locked(folder, exclusive=False):
        yield await check_export(folder, on_progress=on_progress)


async def import_checked(
    link: Link, exported: Exported, *, name: str | None, on_progress: OnProgress | None
) -> CheckpointInfo:
    """Write a checked export to a run; what was written is dropped again if it fails."""
    wanted = require_name(exported.header.checkpoint.name if name is None else name)
    work = Import(link, exported, wanted, on_progress)
    try:
        return CheckpointInfo.of(await work.run())
    except BaseException:
        with anyio.move_on_after(_UNDO_SECONDS, shield=True):
            await _undo(work)
        raise


async def _undo(work: Import) -> None:
    try:
        await drop_saved(work.link, work.name, work.saved_id)
    except ReplayError as failure:
        _LOG.warning("checkpoint %r was imported in part; drop it: %s", work.name, failure)


@dataclass
class Import:
    """One import of a checked export; `run` it once."""

    link: Link
    exported: Exported
    name: str
    on_progress: OnProgress | None = None
    saved_id: str = field(default_factory=new_saved_id)
    _fences: dict[int, int] = field(default_factory=dict)
    _digest: Digest = field(default_factory=Digest)

    async def run(self) -> CheckpointRecord:
        """Write everything and make the checkpoint complete. Raising leaves what there is so far.

        Raises:
            CheckpointExists: the name is taken; nothing was written.
            CheckpointMissing: the checkpoint was dropped meanwhile.
            CheckpointDamaged: the files changed meanwhile, or the server lost something.
        """
        record = await self._begin()
        await self._write_groups()
        unfinished = [s for s in self.exported.slots.values() if s.payload_fence is None]
        for at in range(0, len(unfinished), _PAGE):
            await self._add(Key.SLOTS, [self._slot(slot) for slot in unfinished[at : at + _PAGE]])
        await self._write_copies()
        expected = replace(record, digest=self._digest.text)
        found = await verify_checkpoint(self.link.gateway, expected, group_size=None, deep=False)
        if not found.is_whole:
            wrong = [*found.problems, *(f"group {i!r}: {why}" for i, why in found.damaged.items())]
            raise CheckpointDamaged(
                f"checkpoint {self.name!r} did not arrive whole: {'; '.join(wrong[:10])}",
                name=self.name,
            )
        saved_ids = (self.saved_id,)
        return await self._ask(
            MarkCheckpoint(self.name, None, "complete", expected.digest, saved_ids)
        )

    async def _begin(self) -> CheckpointRecord:
        """Register the checkpoint, and give every fence of the file one of the run's own."""
        kept = self.exported.header.checkpoint
        slots = self.exported.slots.values()
        fences = {slot.fence for slot in slots} | {
            slot.payload_fence or slot.fence for slot in slots
        }
        call = BeginImport(
            name=self.name,
            fences=len(fences),
            origin=kept.lineage,
            step=kept.trainer_version,
            cursor=kept.dispatch_index,
            payload_bytes=kept.payload_bytes,
            created_ms=kept.created_ms,
            extra=kept.extra,
            counts=(kept.reserved, kept.ready, kept.claimed, kept.quarantined),
            saved_ids=(self.saved_id,),
        )
        first, record = await self._ask(call)
        self._fences = {fence: first + at for at, fence in enumerate(sorted(fences))}
        return record

    async def _write_groups(self) -> None:
        total, done = self.exported.payload_bytes, 0
        batches = read_batches(self.exported)
        async with SideThread[Batch | None]() as reader:
            reader.start(partial(next, batches, None))
            while batch := await reader.result():
                reader.start(partial(next, batches, None))
                await self._write_batch(batch)
                done += bytes_of(batch)
                if self.on_progress is not None:
                    self.on_progress(TransferProgress("write", done, total))

    async def _write_batch(self, batch: Batch) -> None:
        items: list[tuple[bytes, bytes]] = []
        records: list[tuple[bytes, bytes]] = []
        for piece in batch:
            if piece.blob is not None:
                slot = self.exported.slots[piece.entry.group_id]
                entry = group_field(slot.group_id, self._fences[piece.entry.fence])
                items.append(self._slot(slot))
                records.append((entry.encode(), piece.blob))
        await self._add(Key.SLOTS, items, records)
        keyspace = self.link.gateway.keyspace
        await self.link.gateway.write(
            [
                (
                    "SET",
                    keyspace.payload(
                        piece.entry.group_id, self._fences[piece.entry.fence], chunk=piece.chunk
                    ),
                    piece.payload,
                )
                for piece in batch
            ]
        )

    def _slot(self, slot: SlotRecord) -> tuple[bytes, bytes]:
        """Return a slot as this run keeps it: with fences of its own, and held by nobody."""
        kept = slot.payload_fence
        own = slot._replace(
            fence=self._fences[slot.fence],
            payload_fence=None if kept is None else self._fences[kept],
            epoch=None,
            batch=None,
            written=None,
        )
        return slot.group_id.encode(), own.packed

    async def _write_copies(self) -> None:
        schema = self.exported.header.checkpoint.schema
        await self._add_page(Key.META, list(migrated(self.exported.meta, schema=schema).items()))
        copies = read_copies(self.exported.folder)
        while page := await anyio.to_thread.run_sync(next, copies, None):
            key, items = page
            if key is Key.ADMISSIONS:
                items = [(index, _NOBODYS) for index, _ in items]
            if key not in (Key.META, Key.SLOTS):
                await self._add_page(key, items)

    async def _add_page(self, key: Key, items: Items) -> None:
        for at in range(0, len(items), _PAGE):
            for part in in_parts(items[at : at + _PAGE]):
                await self._add(key, part)

    async def _add(self, key: Key, items: Items, records: Items = ()) -> None:
        if not items:
            return
        self._digest.add(key, items)
        call = AddToImport(
            name=self.name,
            noun=key.value,
            items=tuple(text for item in items for text in item),
            records=tuple(text for item in records for text in item),
            saved_ids=(self.saved_id,),
        )
        await self._ask(call)

    async def _ask(self, call: StoreScript[R]) -> R:
        reply = await self.link.gateway.call(call, self.link.run.frame)
        return accept(reply)


def migrated(meta: Mapping[bytes, bytes], *, schema: int) -> dict[bytes, bytes]:
    """Return the copy of a control record as this schema has it; `migrate` does it for a run."""
    if schema == SCHEMA:
        return dict(meta)
    now = str(SCHEMA).encode()
    return {b"dataset": b"", **meta, b"schema": now, b"min_reader": now, b"min_writer": now}
