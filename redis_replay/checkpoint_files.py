"""The files of an exported checkpoint: a manifest, and packs that hold the groups' rows.

::

    manifest              everything but the rows, and where in the packs those are
    groups-<16 digits>    a pack: records and payloads of many groups, back to back

A pack is complete before it has its name, and never changes. The manifest is written last and takes
the place of the former one in one step, so an export is there as soon as its manifest is, and a
later export to the same folder writes only what no pack holds yet. No name is made of anything that
a file says but sixteen digits (D77).

The manifest begins with `MAGIC` and its format, four bytes. Then come blocks: length of the body
(four bytes), xxh3_64 of the body (eight bytes), and the body, msgpack ``[kind, value]``. The last
block is of the kind ``end`` and counts the others. Numbers are little-endian.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgpack
import xxhash

from redis_replay.arrays import Buffer
from redis_replay.errors import (
    CheckpointDamaged,
    CheckpointMissing,
    ConfigurationError,
    SchemaMismatch,
)

FORMAT: Final = 1
MAGIC: Final = b"redis-replay\x00\xffCP"
MANIFEST: Final = "manifest"
MOST_BLOCK_BYTES: Final = 256 * 1024 * 1024
_PACK: Final = re.compile(r"groups-([0-9a-f]{16})")
_TOKEN: Final = re.compile(r"[0-9a-f]{16}")
_UNFINISHED: Final = ".writing-"
_BLOCK_HEAD_BYTES: Final = 12

_LOG = logging.getLogger(__name__)


class Entry(NamedTuple):
    """Where a group lies: its record, and behind it its payload.

    Attributes:
        fence: That of its payload, in the run that was exported.
        pack: Token of the pack.
        offset: Of the record in the pack.
        checksum: xxh3_64 of record and payload.
        content: xxh3_128 of the record, which has the checksums of all columns: equal ones are of
            equal groups.
    """

    group_id: str
    fence: int
    pack: str
    offset: int
    record_bytes: int
    payload_bytes: int
    checksum: int
    content: bytes

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.record_bytes + self.payload_bytes


def pack_name(token: str) -> str:
    """Return the file name of a pack.

    Raises:
        ValueError: the token is not sixteen hexadecimal digits.
    """
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ValueError(f"a pack is named by sixteen hexadecimal digits, not {token!r}")
    return f"groups-{token}"


class PartialFile:
    """A file under a temporary name, until `finish` gives it its own in one step."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._path = folder / f"{_UNFINISHED}{name}"
        self.file: BinaryIO = self._path.open("wb")
        self.written_bytes = 0

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append pieces."""
        self.file.writelines(pieces)
        self.written_bytes += sum(memoryview(piece).nbytes for piece in pieces)

    def finish(self) -> None:
        """Make the bytes durable and give the file its name, which is durable after a sync."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self._path.replace(self._folder / self._name)

    def discard(self) -> None:
        """Remove the file if it was not finished."""
        self.file.close()
        self._path.unlink(missing_ok=True)


class ManifestWriter:
    """Writes a manifest block by block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = PartialFile(folder, MANIFEST)
        self._file.write([MAGIC, FORMAT.to_bytes(4, "little")])
        self._blocks = 0

    def add(self, kind: str, value: Any) -> None:
        """Append a block."""
        body: bytes = msgpack.packb([kind, value])
        checksum = xxhash.xxh3_64_digest(body)[::-1]
        self._file.write([len(body).to_bytes(4, "little"), checksum, body])
        self._blocks += 1

    def finish(self) -> int:
        """Put the manifest in its place, once the packs are in theirs, and return its bytes."""
        self.add("end", self._blocks)
        sync_folder(self._folder)
        self._file.finish()
        sync_folder(self._folder)
        return self._file.written_bytes

    def discard(self) -> None:
        """Remove it if it was not finished."""
        self._file.discard()


def read_blocks(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield kind and value of each block of a manifest, verified; one is in memory at a time.

    Raises:
        CheckpointMissing: there is none.
        CheckpointDamaged: it is cut off or altered; the message says at which offset.
        SchemaMismatch: it has a newer format.
    """
    try:
        file = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointMissing(
            f"{path} does not exist: there is no export, or it was never finished"
        ) from None
    with file:
        size = os.fstat(file.fileno()).st_size
        _check_format(file, path)
        at = len(MAGIC) + 4
        blocks = 0
        while True:
            kind, value, end = _read_block(file, path, at=at, size=size)
            if kind == "end":
                if value != blocks or end != size:
                    raise _damaged(path, f"it ends at {end} of {size} bytes, after {blocks} blocks")
                return
            yield kind, value
            at, blocks = end, blocks + 1


def _check_format(file: BinaryIO, path: Path) -> None:
    head = file.read(len(MAGIC) + 4)
    if head[: len(MAGIC)] != MAGIC or len(head) < len(MAGIC) + 4:
        raise _damaged(path, "it does not begin like the manifest of an export")
    found = int.from_bytes(head[len(MAGIC) :], "little")
    if found > FORMAT:
        raise SchemaMismatch(
            f"{path} has format {found}; this package reads formats up to {FORMAT}. Install a "
            "newer redis-replay."
        )
    if found != FORMAT:
        raise _damaged(path, f"it says that it has format {found}, which never was")


def _read_block(file: BinaryIO, path: Path, *, at: int, size: int) -> tuple[str, Any, int]:
    head = file.read(_BLOCK_HEAD_BYTES)
    length = int.from_bytes(head[:4], "little")
    end = at + _BLOCK_HEAD_BYTES + length
    if len(head) < _BLOCK_HEAD_BYTES or end > size:
        raise _damaged(
            path, f"it is cut off: the block at offset {at} does not end in {size} bytes"
        )
    if length > MOST_BLOCK_BYTES:
        raise _damaged(path, f"the block at offset {at} says that it has {length} bytes")
    body = file.read(length)
    found = xxhash.xxh3_64_digest(body)[::-1]
    if found != head[4:]:
        raise _damaged(
            path,
            f"the block at offset {at} has the checksum {found.hex()}, written was "
            f"{head[4:].hex()}",
        )
    try:
        kind, value = msgpack.unpackb(body, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as broken:
        raise _damaged(path, f"the block at offset {at} is not readable: {broken}") from broken
    return str(kind), value, end


def _damaged(path: Path, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"{path} is not what was written: {what}; nothing was changed")


@contextmanager
def locked(folder: Path, *, exclusive: bool) -> Generator[None]:
    """Keep others from writing to a folder meanwhile; from reading it too, if exclusive.

    Raises:
        CheckpointMissing: there is no such folder.
        ConfigurationError: another process writes to it, or reads it.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointMissing(f"{folder} is no folder, so there is no export") from None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigurationError(
            f"another process is exporting to {folder}, or importing from it; wait for its end"
        ) from None
    except OSError as failure:
        if failure.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL):
            os.close(descriptor)
            raise
        _LOG.warning("the file system of %s has no locks; let no one else use it", folder)
    try:
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prepare_folder(path: Path) -> None:
    """Make the folder of an export if need be, and refuse one that holds something else.

    Raises:
        ConfigurationError: it is a file, or holds files that no export wrote.
        OSError: it cannot be made.
    """
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is a file; an export is a folder of its own")
    path.mkdir(parents=True, exist_ok=True)
    foreign = sorted(file.name for file in path.iterdir() if not _is_ours(file.name))
    if foreign:
        raise ConfigurationError(
            f"{path} holds {foreign[0]!r}, which no export wrote; name an empty or a new folder"
        )


def remove_others(path: Path, packs: Sequence[str]) -> None:
    """Remove what earlier exports left in a folder and no manifest names any more."""
    kept = {MANIFEST, *map(pack_name, packs)}
    for file in list(path.iterdir()):
        if _is_ours(file.name) and file.name not in kept:
            file.unlink(missing_ok=True)


def _is_ours(name: str) -> bool:
    return name == MANIFEST or name.startswith(_UNFINISHED) or bool(_PACK.fullmatch(name))
