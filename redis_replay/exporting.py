"""Writing a checkpoint to files, beside a run that goes on.

Payload is read in batches of bounded size; while one is written in a thread, the next is read. What
the folder's packs hold already is not written again. Every column is compared with its checksum on
the way, so that what is damaged is not exported. An export that fails, or dies, leaves the former
one as it was.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel

from redis_replay._redis.checkpoint_scripts import SAVED_KEYS, MarkCheckpoint
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key, group_field
from redis_replay._redis.records import CheckpointRecord, SlotRecord
from redis_replay._redis.transfer import Range
from redis_replay.blocks import BLOCKS
from redis_replay.checkpoint_files import (
    MANIFEST,
    Entry,
    ManifestWriter,
    locked,
    pack_name,
    prepare_folder,
    remove_others,
)
from redis_replay.checkpoint_info import CheckpointInfo, OnProgress, TransferProgress
from redis_replay.errors import CheckpointDamaged, PayloadCorrupted, ReplayError
from redis_replay.exported import ExportHeader, read_places
from redis_replay.group_record import unpack_record
from redis_replay.packs import BATCH_BYTES, BATCH_PIECES, Draft, PackWriter, content_of
from redis_replay.payloads import chunk_offsets
from redis_replay.run import stored_settings
from redis_replay.saved_state import Digest, SavedState, read_copy, read_saved
from redis_replay.session import Link
from redis_replay.tasks import SideThread, shielded
from redis_replay.verification import CUT_SHORT

_LOG = logging.getLogger(__name__)

_RECORDS: Final = 256
_RECORDS_A_TURN: Final = 32
_ENTRIES: Final = 500
_BLOCK_BYTES: Final = 1024 * 1024
_LEAST_USE: Final = 0.5
"""Share of a pack that must still be needed for it to be kept."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export wrote.

    Attributes:
        path: The folder.
        groups: Groups whose rows are in it.
        groups_written: Those of them that were not in it before.
        total_bytes: Bytes of all its files.
        written_bytes: Bytes that were written now.
    """

    path: Path
    checkpoint: CheckpointInfo
    groups: int
    groups_written: int
    total_bytes: int
    written_bytes: int


async def export_checkpoint(
    link: Link, record: CheckpointRecord, folder: Path, on_progress: OnProgress | None
) -> ExportReport:
    """Write a checkpoint, which retention leaves alone meanwhile; `Checkpoints.export`."""
    if not record.is_complete:
        raise CheckpointDamaged(f"checkpoint {record.name!r}: {CUT_SHORT}", name=record.name)
    work = Export(link.gateway, record, folder, on_progress)
    if record.pinned:
        return await work.run()
    await link.call(MarkCheckpoint(record.name, 1, "", "", (record.saved_id,)))
    try:
        return await work.run()
    finally:
        await shielded(_unpin, link, record)


async def _unpin(link: Link, record: CheckpointRecord) -> None:
    try:
        await link.call(MarkCheckpoint(record.name, 0, "", "", (record.saved_id,)))
    except ReplayError as failure:
        _LOG.warning("checkpoint %r is still pinned, or was dropped: %s", record.name, failure)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One chunk of a payload to read."""

    draft: Draft
    key: str
    length: int
    is_first: bool
    is_last: bool


@dataclass
class Export:
    """One export of a checkpoint to a folder; `run` it once."""

    gateway: Gateway
    record: CheckpointRecord
    folder: Path
    on_progress: OnProgress | None = None
    _packs: dict[str, int] = field(default_factory=dict)
    _places: dict[bytes, Entry] = field(default_factory=dict)
    _entries: list[Entry] = field(default_factory=list)
    _done_bytes: int = 0

    async def run(self) -> ExportReport:
        """Write the files.

        Raises:
            CheckpointDamaged: the checkpoint is not what was written, or rows of it are.
            ConfigurationError: the folder holds something else, or is in use.
            SchemaMismatch: it holds an export of a newer version.
            OSError: it cannot be written.
        """
        await anyio.to_thread.run_sync(prepare_folder, self.folder)
        with locked(self.folder, exclusive=True):
            if await anyio.Path(self.folder / MANIFEST).exists():
                found = await anyio.to_thread.run_sync(read_places, self.folder)
                self._packs, self._places = found
            former = tuple(self._packs)
            clean = partial(remove_others, self.folder, former)
            await anyio.to_thread.run_sync(clean)
            try:
                return await self._write()
            except BaseException:
                await shielded(anyio.to_thread.run_sync, clean)
                raise

    async def _write(self) -> ExportReport:
        saved = await read_saved(self.gateway, self.record)
        if saved.digest != (self.record.digest or saved.digest):
            raise self._damaged(f"its digest is {saved.digest}, written was {self.record.digest}")
        await self._choose_packs(saved)
        packs = PackWriter(self.folder)
        try:
            await self._write_groups(packs, saved)
        finally:
            await shielded(anyio.to_thread.run_sync, packs.discard)
        self._packs = {**self._packs, **packs.sizes}
        used = {entry.pack for entry in self._entries}
        self._packs = {token: size for token, size in self._packs.items() if token in used}
        manifest_bytes = await self._write_manifest(saved)
        await anyio.to_thread.run_sync(remove_others, self.folder, tuple(self._packs))
        return ExportReport(
            path=self.folder,
            checkpoint=CheckpointInfo.of(self.record),
            groups=len(self._entries),
            groups_written=sum(entry.pack in packs.sizes for entry in self._entries),
            total_bytes=manifest_bytes + sum(self._packs.values()),
            written_bytes=manifest_bytes + sum(packs.sizes.values()),
        )

    async def _choose_packs(self, saved: SavedState) -> None:
        """Keep the packs that are whole and still needed for the most part."""
        needed: dict[str, int] = dict.fromkeys(self._packs, 0)
        if self._packs:
            async for _, blob in self._records(saved.committed):
                place = self._places.get(content_of(blob))
                if place is not None:
                    needed[place.pack] += place.end - place.offset
        for token, size in list(self._packs.items()):
            stat = anyio.Path(self.folder / pack_name(token))
            is_whole = await stat.exists() and (await stat.stat()).st_size == size
            if not is_whole or needed[token] < _LEAST_USE * size:
                del self._packs[token]
        self._places = {
            content: place for content, place in self._places.items() if place.pack in self._packs
        }

    async def _records(
        self, slots: Sequence[SlotRecord]
    ) -> AsyncIterator[tuple[SlotRecord, bytes]]:
        key = self.gateway.keyspace.control(Key.GROUPS)
        for at in range(0, len(slots), _RECORDS):
            part = slots[at : at + _RECORDS]
            names = [group_field(slot.group_id, slot.payload_fence or 0) for slot in part]
            [stored] = await self.gateway.pipeline([("HMGET", key, *names)])
            for seen, (slot, blob) in enumerate(zip(part, stored, strict=True), 1):
                if blob is None:
                    raise self._damaged(f"the record of group {slot.group_id!r} is gone")
                yield slot, blob
                if seen % _RECORDS_A_TURN == 0:
                    await anyio.lowlevel.checkpoint()

    async def _write_groups(self, packs: PackWriter, saved: SavedState) -> None:
        total = sum(slot.payload_bytes or 0 for slot in saved.committed)
        async with SideThread[int]() as writer:
            async for batch in self._batches(saved.committed):
                payloads = await self._read(batch)
                self._tell(await writer.result(), total)
                writer.start(partial(self._put, packs, batch, payloads))
            self._tell(await writer.result(), total)
            await anyio.to_thread.run_sync(packs.finish)

    async def _batches(self, slots: Sequence[SlotRecord]) -> AsyncIterator[list[_Piece]]:
        batch: list[_Piece] = []
        size = 0
        async for slot, blob in self._records(slots):
            place = self._places.get(content_of(blob))
            if place is not None:
                fence = slot.payload_fence or 0
                self._entries.append(place._replace(group_id=slot.group_id, fence=fence))
                self._done_bytes += place.payload_bytes
                continue
            for piece in self._pieces(slot, blob):
                if batch and (size + piece.length > BATCH_BYTES or len(batch) == BATCH_PIECES):
                    yield batch
                    batch, size = [], 0
                batch.append(piece)
                size += piece.length + len(blob)
        if batch:
            yield batch

    def _pieces(self, slot: SlotRecord, blob: bytes) -> list[_Piece]:
        try:
            record = unpack_record(slot.group_id, blob)
            draft = Draft(slot, blob, record)
        except PayloadCorrupted as broken:
            raise self._damaged(str(broken)) from broken
        keys = record.payload_keys(self.gateway.keyspace, slot.payload_fence or 0)
        chunks = chunk_offsets(record.payload_bytes, record.chunk_bytes)
        last = len(chunks) - 1
        return [
            _Piece(draft, key, length, at == 0, at == last)
            for at, (key, (_, length)) in enumerate(zip(keys, chunks, strict=True))
        ]

    async def _read(self, batch: Sequence[_Piece]) -> list[memoryview]:
        """Return the payload of each piece; they share one block of memory."""
        block = BLOCKS.take(sum(piece.length for piece in batch))
        payloads: list[memoryview] = []
        at = 0
        for piece in batch:
            payloads.append(block[at : at + piece.length])
            at += piece.length
        wanted = [(p, to) for p, to in zip(batch, payloads, strict=True) if p.length]
        lengths = await self.gateway.read([Range(p.key, 0, True, to) for p, to in wanted])
        for (piece, _), length in zip(wanted, lengths, strict=True):
            if length != piece.length:
                raise self._damaged(
                    f"payload of group {piece.draft.slot.group_id!r} has {length} of "
                    f"{piece.length} bytes"
                )
        return payloads

    def _put(
        self, packs: PackWriter, batch: Sequence[_Piece], payloads: Sequence[memoryview]
    ) -> int:
        """Append a batch; runs in a thread, one batch at a time. Returns its bytes."""
        for piece, payload in zip(batch, payloads, strict=True):
            draft = piece.draft
            if piece.is_first:
                packs.begin_group()
                draft.pack, draft.offset = packs.token, packs.offset
                packs.write([draft.blob])
            try:
                draft.take(payload)
            except PayloadCorrupted as broken:
                raise self._damaged(str(broken)) from broken
            packs.write([payload])
            if piece.is_last:
                self._entries.append(draft.entry)
        return sum(piece.length for piece in batch)

    def _tell(self, written_bytes: int | None, total_bytes: int) -> None:
        self._done_bytes += written_bytes or 0
        if self.on_progress is not None:
            self.on_progress(TransferProgress("write", self._done_bytes, total_bytes))

    async def _write_manifest(self, saved: SavedState) -> int:
        writer = await anyio.to_thread.run_sync(ManifestWriter, self.folder)

        async def add(kind: str, value: Any) -> None:
            await anyio.to_thread.run_sync(writer.add, kind, value)

        try:
            await add("header", self._header(saved).as_wire())
            digest = Digest()
            for key in SAVED_KEYS:
                async for page in read_copy(self.gateway, self.record.saved_id, key):
                    digest.add(key, page)
                    for part in in_parts(page):
                        await add(key.value, [text for item in part for text in item])
            if digest.text != saved.digest:
                raise self._damaged("it was dropped meanwhile")
            await add("packs", list(self._packs.items()))
            for at in range(0, len(self._entries), _ENTRIES):
                await add("groups", self._entries[at : at + _ENTRIES])
            return await anyio.to_thread.run_sync(writer.finish)
        finally:
            await shielded(anyio.to_thread.run_sync, writer.discard)

    def _header(self, saved: SavedState) -> ExportHeader:
        keyspace = self.gateway.keyspace
        settings = stored_settings({name.decode(): text for name, text in saved.meta.items()})
        record = self.record.with_digest(saved.digest)
        return ExportHeader(record, keyspace.run, keyspace.partition, settings)

    def _damaged(self, what: str) -> CheckpointDamaged:
        name = self.record.name
        return CheckpointDamaged(f"checkpoint {name!r} cannot be exported: {what}", name=name)


def in_parts(items: Sequence[tuple[bytes, bytes]]) -> list[Sequence[tuple[bytes, bytes]]]:
    """Return items in parts of at most a megabyte, or of one item."""
    parts: list[Sequence[tuple[bytes, bytes]]] = []
    start, size = 0, 0
    for at, (name, value) in enumerate(items):
        if at > start and size + len(name) + len(value) > _BLOCK_BYTES:
            parts.append(items[start:at])
            start, size = at, 0
        size += len(name) + len(value)
    return [*parts, items[start:]]
