"""What a manifest says, checked: the header, the copies, and where each group's rows lie."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from redis_replay._redis.checkpoint_scripts import SAVED_KEYS
from redis_replay._redis.keys import Key
from redis_replay._redis.records import CheckpointRecord, SlotRecord
from redis_replay.checkpoint_files import MANIFEST, Entry, pack_name, read_blocks
from redis_replay.checkpoint_info import require_name
from redis_replay.errors import CheckpointDamaged, SchemaMismatch, StoreCorrupted
from redis_replay.groups import sample_ids_of
from redis_replay.reservations import validate_group_id
from redis_replay.run import NEEDED_FIELDS, SCHEMA, RunSettings
from redis_replay.saved_state import Digest, Items
from redis_replay.types import MAX_EXACT_INTEGER, GroupState

_LOCAL: Final = frozenset({"state", "saved_id", "pinned"})
"""What a checkpoint's record says about its place on the server that it was exported from."""


@dataclass(frozen=True)
class ExportHeader:
    """What an export is of.

    Attributes:
        checkpoint: Its record, without what only meant something on its server.
        run: Name of the run that was exported.
        partition: Its partition.
        settings: Those that the run had at that instant.
    """

    checkpoint: CheckpointRecord
    run: str
    partition: str
    settings: RunSettings

    def as_wire(self) -> dict[str, Any]:
        """Return the header as it is written."""
        record = self.checkpoint
        names = [part.name for part in fields(record) if part.name not in _LOCAL]
        return {
            "checkpoint": {name: getattr(record, name) for name in names},
            "run": self.run,
            "partition": self.partition,
            "settings": {name: getattr(self.settings, name) for name in RunSettings.__slots__},
        }

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> ExportHeader:
        """Undo `as_wire`.

        Raises:
            ValueError, TypeError, KeyError: something is absent or of another type.
        """
        own: dict[str, Any] = {"state": "complete", "saved_id": "", "pinned": False}
        stored: dict[str, Any] = {**own, **wire["checkpoint"]}
        record = CheckpointRecord(**stored)
        for part in fields(record):
            if type(getattr(record, part.name)).__name__ != part.type:
                raise TypeError(f"{part.name} is {getattr(record, part.name)!r}")
            if part.type == "int" and not -1 <= getattr(record, part.name) < MAX_EXACT_INTEGER:
                raise ValueError(f"{part.name} is {getattr(record, part.name)!r}")
        require_name(record.name)
        names = (wire["run"], wire["partition"])
        if not all(isinstance(name, str) and name for name in names):
            raise TypeError(f"run and partition are {names!r}")
        return cls(record, *names, RunSettings(**wire["settings"]))


@dataclass
class Exported:
    """An export by its manifest; the rows are in the packs that `entries` name.

    Attributes:
        folder: Where it lies.
        meta: The copy of the run's control record.
        slots: Every group, by id.
        packs: Token and bytes of each pack.
        entries: Where the rows of each finished group lie, in the order of packs and offsets.
    """

    folder: Path
    header: ExportHeader
    meta: dict[bytes, bytes] = field(default_factory=dict)
    slots: dict[str, SlotRecord] = field(default_factory=dict)
    packs: dict[str, int] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    digest: Digest = field(default_factory=Digest)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all records and payloads."""
        return sum(entry.record_bytes + entry.payload_bytes for entry in self.entries)

    @property
    def group_count(self) -> int:
        """How many groups have rows."""
        return len(self.entries)


def read_exported(folder: Path) -> Exported:
    """Read a manifest once and check it against itself; packs are not opened. Blocks.

    Raises:
        CheckpointMissing: there is no export.
        CheckpointDamaged: it is not what was written.
        SchemaMismatch: a newer version of this package wrote it.
        ValueError: a group stands in it twice; the message names it and a sample.
    """
    path = folder / MANIFEST
    found: Exported | None = None
    with _well_formed(path):
        for kind, value in read_blocks(path):
            if found is None:
                header = ExportHeader.read(value)
                _check_schema(path, header.checkpoint.schema)
                found = Exported(folder, header)
            else:
                _take(found, kind, value)
        if found is None:
            raise ValueError("it is empty")
        _check(found)
    found.entries.sort(key=lambda entry: (entry.pack, entry.offset))
    return found


def read_copies(folder: Path) -> Iterator[tuple[Key, Items]]:
    """Yield the pages of a manifest's copies, in the order in which they were written. Blocks.

    Raises:
        CheckpointDamaged: the manifest is not what was written.
    """
    known = {key.value: key for key in SAVED_KEYS}
    for kind, value in read_blocks(folder / MANIFEST):
        if kind in known:
            yield known[kind], items_of(value)


def read_places(folder: Path) -> tuple[dict[str, int], dict[bytes, Entry]]:
    """Return the packs of an export with their bytes, and its groups by content. Blocks.

    Raises:
        CheckpointDamaged, SchemaMismatch: as `read_exported`.
    """
    path = folder / MANIFEST
    packs: dict[str, int] = {}
    places: dict[bytes, Entry] = {}
    with _well_formed(path):
        for kind, value in read_blocks(path):
            if kind == "packs":
                packs.update(_packs_of(value))
            if kind == "groups":
                places.update((entry.content, entry) for entry in map(Entry._make, value))
    return packs, places


def items_of(flat: Sequence[bytes]) -> Items:
    """Return fields and values that a page holds in turn."""
    return list(zip(flat[::2], flat[1::2], strict=True))


class DuplicateInExport(ValueError):
    """A group stands in an export twice."""


@contextmanager
def _well_formed(path: Path) -> Generator[None]:
    """Say what is wrong with a manifest whose checksums are right.

    Raises:
        CheckpointDamaged: what the block read is not of the form it must have.
        ValueError: a group stands in it twice.
    """
    try:
        yield
    except DuplicateInExport as twice:
        raise ValueError(f"{path}: {twice}; nothing was changed") from None
    except (ValueError, TypeError, KeyError, AttributeError, StoreCorrupted) as broken:
        raise CheckpointDamaged(
            f"{path} is not what was written: {broken}; nothing was changed"
        ) from broken


def _check_schema(path: Path, schema: int) -> None:
    if schema > SCHEMA:
        raise SchemaMismatch(
            f"{path} has schema {schema}; this package reads schemas up to {SCHEMA}. Install a "
            "newer redis-replay."
        )


def _take(found: Exported, kind: str, value: Any) -> None:
    if kind == "packs":
        found.packs.update(_packs_of(value))
    elif kind == "groups":
        found.entries += [Entry._make(entry) for entry in value]
    else:
        key, items = Key(kind), items_of(value)
        found.digest.add(key, items)
        if key is Key.META:
            found.meta.update(items)
        if key is Key.SLOTS:
            for group_id, packed in items:
                _take_slot(found, SlotRecord.parse(group_id, packed))


def _packs_of(page: Sequence[Sequence[Any]]) -> dict[str, int]:
    for token, _ in page:
        pack_name(token)
    return {token: int(size) for token, size in page}


def _take_slot(found: Exported, slot: SlotRecord) -> None:
    validate_group_id(slot.group_id)
    if slot.group_id in found.slots:
        [sample_id] = sample_ids_of(slot.group_id, 1)
        raise DuplicateInExport(
            f"group {slot.group_id!r} stands in it twice, so sample {sample_id!r} does too"
        )
    numbers = (slot.order, slot.fence, slot.payload_fence or 0)
    if not 0 <= min(numbers) <= max(numbers) < MAX_EXACT_INTEGER:
        raise ValueError(f"group {slot.group_id!r} has a number outside 0 to 2**53")
    found.slots[slot.group_id] = slot


def _check(found: Exported) -> None:
    record = found.header.checkpoint
    if found.digest.text != record.digest:
        raise ValueError(f"its digest is {found.digest.text}, written was {record.digest}")
    absent = sorted(NEEDED_FIELDS - {name.decode() for name in found.meta})
    if absent:
        raise ValueError(f"its control record lacks {absent}")
    for state in GroupState:
        count = sum(slot.state is state for slot in found.slots.values())
        if count != getattr(record, state.value):
            written = getattr(record, state.value)
            raise ValueError(f"it has {count} {state.value} groups, written were {written}")
    _check_entries(found)


def _check_entries(found: Exported) -> None:
    placed: set[str] = set()
    for entry in found.entries:
        slot = found.slots.get(entry.group_id)
        if slot is None or slot.payload_fence != entry.fence:
            raise ValueError(f"it has rows of {entry.group_id!r}, which is no group of it")
        if entry.group_id in placed:
            raise DuplicateInExport(f"rows of group {entry.group_id!r} stand in it twice")
        placed.add(entry.group_id)
        size = found.packs.get(entry.pack)
        if size is None or not 0 <= entry.offset <= entry.end <= size or entry.record_bytes < 1:
            raise ValueError(f"the rows of group {entry.group_id!r} lie outside its packs")
        if entry.payload_bytes != slot.payload_bytes:
            raise ValueError(
                f"group {entry.group_id!r} has {entry.payload_bytes} bytes of rows in it instead "
                f"of {slot.payload_bytes}"
            )
    finished = {slot.group_id for slot in found.slots.values() if slot.payload_fence is not None}
    if absent := finished - placed:
        raise ValueError(f"the rows of group {min(absent)!r} are not in it")
