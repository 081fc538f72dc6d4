"""The packs of an exported checkpoint: groups appended to them, and read back in batches.

A group is its record with its payload behind it. On the way in every column is compared with its
checksum, on the way out the whole group with the one in the manifest.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final

import anyio
import xxhash

from redis_replay._redis.records import SlotRecord
from redis_replay.arrays import Buffer
from redis_replay.blocks import BLOCKS
from redis_replay.checkpoint_files import Entry, PartialFile, pack_name
from redis_replay.checkpoint_info import OnProgress, TransferProgress
from redis_replay.errors import CheckpointDamaged, PayloadCorrupted
from redis_replay.exported import Exported, read_exported
from redis_replay.group_record import GroupRecord, unpack_record
from redis_replay.payloads import Column, chunk_offsets

PACK_BYTES: Final = 256 * 1024 * 1024
"""A pack that has reached this size takes no further group."""

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bytes of rows that are read at once, or one chunk of rows if that is larger."""

BATCH_PIECES: Final = 256
_SCRATCH_BYTES: Final = 256 * 1024


class PackWriter:
    """Appends groups to packs, a new one whenever the last has become large enough."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: PartialFile | None = None
        self.token = ""
        self.sizes: dict[str, int] = {}
        """Bytes of each finished pack."""

    @property
    def offset(self) -> int:
        """Where the next byte goes."""
        return self._file.written_bytes if self._file else 0

    def begin_group(self) -> None:
        """Have room for a group, in a new pack if need be."""
        if self._file is not None and self._file.written_bytes >= PACK_BYTES:
            self.finish()
        if self._file is None:
            self.token = secrets.token_hex(8)
            self._file = PartialFile(self._folder, pack_name(self.token))

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append bytes of the group that was begun."""
        assert self._file is not None
        self._file.write(pieces)

    def finish(self) -> None:
        """Finish the last pack, if there is one."""
        if self._file is not None:
            self._file.finish()
            self.sizes[self.token] = self._file.written_bytes
            self._file = None

    def discard(self) -> None:
        """Remove what was not finished."""
        if self._file is not None:
            self._file.discard()
            self._file = None


class Draft:
    """A group on its way into a pack."""

    def __init__(self, slot: SlotRecord, blob: bytes, record: GroupRecord) -> None:
        self.slot, self.blob, self.record = slot, blob, record
        self.pack, self.offset = "", 0
        self._hash = xxhash.xxh3_64(blob)
        directory = record.directory
        self._columns = deque(zip(directory.columns, directory.checksums, strict=True))
        self._column_hash = xxhash.xxh3_64()
        self._at = 0

    def take(self, payload: memoryview) -> None:
        """Compare the next bytes of the payload with the checksums of the columns in it.

        Raises:
            PayloadCorrupted: a column fails its checksum.
        """
        self._hash.update(payload)
        end = self._at + len(payload)
        while self._columns:
            column, checksum = self._columns[0]
            stop = column.offset + column.length
            self._column_hash.update(
                payload[max(column.offset - self._at, 0) : max(stop - self._at, 0)]
            )
            if stop > end:
                break
            self._close(column, checksum)
        self._at = end

    def _close(self, column: Column, checksum: int) -> None:
        if self._column_hash.intdigest() != checksum:
            raise PayloadCorrupted(
                f"group {self.slot.group_id!r}, field {column.name!r}: the stored bytes fail their "
                "checksum",
                group_id=self.slot.group_id,
            )
        self._columns.popleft()
        self._column_hash = xxhash.xxh3_64()

    @property
    def entry(self) -> Entry:
        """Where it lies, now that all of it was taken."""
        return Entry(
            group_id=self.slot.group_id,
            fence=self.slot.payload_fence or 0,
            pack=self.pack,
            offset=self.offset,
            record_bytes=len(self.blob),
            payload_bytes=self.record.payload_bytes,
            checksum=self._hash.intdigest(),
            content=content_of(self.blob),
        )


def content_of(blob: bytes) -> bytes:
    """Return what a group is recognized by: its record has the checksums of all its columns."""
    return xxhash.xxh3_128_digest(blob)


@dataclass(frozen=True, slots=True)
class Piece:
    """One chunk of a group's payload, as read; the first one comes with the record."""

    entry: Entry
    record: GroupRecord
    blob: bytes | None
    chunk: int
    payload: memoryview


Batch = list[Piece]


async def check_export(folder: Path, *, on_progress: OnProgress | None = None) -> Exported:
    """Read all files of an export and compare them with what was written. Opens nothing else.

    Raises:
        CheckpointMissing: there is no export.
        CheckpointDamaged: a file is absent, cut off or altered; the message says which and where.
        SchemaMismatch: a newer version of this package wrote it.
        ValueError: a group stands in it twice.
    """
    exported = await anyio.to_thread.run_sync(read_exported, folder)
    total, done = exported.payload_bytes, 0
    parts = _check_parts(exported)
    while checked := await anyio.to_thread.run_sync(next, parts, None):
        done += checked
        if on_progress is not None:
            on_progress(TransferProgress("check", done, total))
    return exported


def _check_parts(exported: Exported) -> Iterator[int]:
    """Compare all groups with their checksums; yield the bytes of each part that was. Blocks.

    Everything goes through one little buffer, which stays where the processor reads it fastest.
    """
    scratch = memoryview(bytearray(_SCRATCH_BYTES))
    checked = 0
    for entry, file, path in _read_entries(exported):
        blob, _ = _read_record(file, path, entry)
        found = xxhash.xxh3_64(blob)
        left = entry.payload_bytes
        while left and (count := file.readinto(scratch[:left])):
            found.update(scratch[:count])
            left -= count
        _require_checksum(found.intdigest(), path, entry)
        checked += entry.payload_bytes + len(blob)
        if checked > BATCH_BYTES:
            yield checked
            checked = 0
    if checked:
        yield checked


def read_batches(exported: Exported) -> Iterator[Batch]:
    """Yield the rows of all groups in batches of bounded size, compared with their checksums.

    Blocks.

    Raises:
        CheckpointDamaged: a pack is absent, cut off or altered.
    """
    batch: Batch = []
    size = 0
    pieces = (piece for where in _read_entries(exported) for piece in _read_group(*where))
    for piece in pieces:
        if batch and (size + len(piece.payload) > BATCH_BYTES or len(batch) == BATCH_PIECES):
            yield batch
            batch, size = [], 0
        batch.append(piece)
        size += len(piece.payload) + len(piece.blob or b"")
    if batch:
        yield batch


def _read_entries(exported: Exported) -> Iterator[tuple[Entry, BufferedReader, Path]]:
    """Yield where each group lies, with its pack opened."""
    paths = {token: exported.folder / pack_name(token) for token in exported.packs}
    for token, size in exported.packs.items():
        _check_size(paths[token], size)
    with ExitStack() as opened:
        token, file = "", None
        for entry in exported.entries:
            if file is None or entry.pack != token:
                opened.close()
                token = entry.pack
                file = opened.enter_context(paths[token].open("rb"))
            yield entry, file, paths[token]


def _check_size(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointDamaged(f"{path} is gone; nothing was changed") from None
    if found != size:
        raise CheckpointDamaged(
            f"{path} has {found} bytes, written were {size}: it was cut off or altered; nothing "
            "was changed"
        )


def _read_group(entry: Entry, file: BufferedReader, path: Path) -> Iterator[Piece]:
    blob, record = _read_record(file, path, entry)
    found = xxhash.xxh3_64(blob)
    for at, (_, length) in enumerate(chunk_offsets(entry.payload_bytes, record.chunk_bytes)):
        payload = BLOCKS.take(length)
        payload = payload[: file.readinto(payload)]
        found.update(payload)
        yield Piece(entry, record, blob if at == 0 else None, at, payload)
    _require_checksum(found.intdigest(), path, entry)


def _require_checksum(found: int, path: Path, entry: Entry) -> None:
    if found != entry.checksum:
        raise _altered(path, entry, "they fail their checksum")


def _read_record(file: BufferedReader, path: Path, entry: Entry) -> tuple[bytes, GroupRecord]:
    """Return the record of a group and leave the file where its payload begins."""
    file.seek(entry.offset)
    blob = file.read(entry.record_bytes)
    return blob, _record_of(blob, path, entry)


def _record_of(blob: bytes, path: Path, entry: Entry) -> GroupRecord:
    if content_of(blob) != entry.content:
        raise _altered(path, entry, "their record fails its checksum")
    try:
        record = unpack_record(entry.group_id, blob)
    except PayloadCorrupted as broken:
        raise _altered(path, entry, str(broken)) from broken
    if record.payload_bytes != entry.payload_bytes:
        raise _altered(path, entry, f"their record speaks of {record.payload_bytes} bytes")
    return record


def _altered(path: Path, entry: Entry, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{path} is not what was written: bytes {entry.offset} to {entry.end}, of group "
        f"{entry.group_id!r}: {what}; nothing was changed"
    )


def bytes_of(batch: Batch) -> int:
    """Return the bytes of records and payloads in a batch."""
    return sum(len(piece.payload) + len(piece.blob or b"") for piece in batch)
