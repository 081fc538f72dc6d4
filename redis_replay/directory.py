"""The directory of a group's payload: which bytes are which rows of which field.

A payload is one byte string, laid out column by column in the order of the fields. Each column
starts at the next multiple of 16 and holds its rows back to back: the raw bytes of arrays that
share one dtype, or one encoded cell per row. The directory travels apart from it (in the group's
record) as msgpack; `shorthand` says what stands in layout and numbers::

    [3, rows, layout, numbers, checksums]

Formats 1 and 2 (`entries`) are read for ever (D58). ``checksums`` are those of the columns, xxh3_64
as eight little-endian bytes each. A read of less than a whole column is therefore unverified, and
`ByteRange.whole_column` says so.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import msgpack
import xxhash

from redis_replay.entries import read_entries
from redis_replay.errors import PayloadCorrupted, SchemaMismatch
from redis_replay.layout import Column, Layout
from redis_replay.shorthand import read_layout, shorten

DIRECTORY_FORMAT: Final = 3
MAX_ROWS: Final = 65_536
MAX_FIELD_NAME_BYTES: Final = 256
_FIRST_FORMAT: Final = 1
_MALFORMED: Final = (ValueError, TypeError, LookupError, OverflowError, struct.error)


class ByteRange(NamedTuple):
    """Bytes of a payload that a reader needs, never empty.

    Attributes:
        field: The column they belong to.
        start_row: First row in them.
        stop_row: Row behind the last one.
        offset: First byte in the payload.
        length: Number of bytes, at least 1.
        whole_column: Whether it is all of the column, whose checksum will be verified.
        blob: Number of the value that it holds, which rows share; ``None`` for the rows themselves.
    """

    field: str
    start_row: int
    stop_row: int
    offset: int
    length: int
    whole_column: bool
    blob: int | None = None


@dataclass(slots=True)
class Directory:
    """All columns of one payload. Nobody changes one.

    Not frozen, which would double what a claim pays for each of its groups.

    Attributes:
        layout: Where they lie, and what they are; other groups share it.
        checksums: xxh3_64 of the bytes of each column.
    """

    layout: Layout
    checksums: tuple[int, ...]

    @property
    def row_count(self) -> int:
        """Rows of the group."""
        return self.layout.row_count

    @property
    def payload_bytes(self) -> int:
        """Length of the whole payload."""
        return self.layout.payload_bytes

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns, in the order of the fields, which is the order of the bytes."""
        return self.layout.columns

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all fields, in the order in which they were given."""
        return self.layout.fields

    def select(self, fields: Sequence[str] | None) -> tuple[Column, ...]:
        """Return the columns of these fields in this order, all of them for ``None``.

        Raises:
            ValueError: A field is named that the payload has not; the message lists what it has.
        """
        return tuple([self.columns[place] for place in self.layout.places(fields)])

    def with_checksums(self, fields: Sequence[str] | None) -> Iterable[tuple[Column, int]]:
        """Return the columns of `select`, each with the checksum of its bytes. Raises as it."""
        columns, checksums = self.layout.columns, self.checksums
        if fields is None:
            return zip(columns, checksums, strict=True)
        return [(columns[place], checksums[place]) for place in self.layout.places(fields)]

    @classmethod
    def from_bytes(
        cls, encoded: bytes, *, group_id: str | None = None, checksum: int | None = None
    ) -> Directory:
        """Read a packed directory.

        Args:
            encoded: What `pack_directory` returned, or what older versions of this package wrote.
            group_id: Named in errors.
            checksum: If given, the `directory_checksum` that the bytes must have.

        Raises:
            PayloadCorrupted: The bytes are damaged or contradict themselves.
            SchemaMismatch: A newer version of this package wrote them.
        """
        if checksum is not None and checksum != directory_checksum(encoded):
            raise PayloadCorrupted(
                f"group {group_id!r}: the payload directory fails its checksum", group_id=group_id
            )
        try:
            unpacked: Any = msgpack.unpackb(encoded, use_list=False)
            found = unpacked[0]
            if type(found) is not int or not _FIRST_FORMAT <= found <= DIRECTORY_FORMAT:
                refuse_format(
                    found, known=DIRECTORY_FORMAT, what=f"group {group_id!r}: its directory"
                )
            row_count = unpacked[1]
            if type(row_count) is not int or not 1 <= row_count <= MAX_ROWS:
                raise ValueError(f"{row_count!r} rows")
            if found < DIRECTORY_FORMAT:
                return cls(*read_entries(*unpacked))
            _, _, packed_layout, numbers, checksums = unpacked
            layout = read_layout(packed_layout, row_count, numbers)
            return cls(layout, _checksums_of(len(layout.columns)).unpack(checksums))
        except (*_MALFORMED, msgpack.UnpackException) as error:
            raise PayloadCorrupted(
                f"group {group_id!r}: unreadable payload directory: {error}", group_id=group_id
            ) from error


def pack_directory(
    columns: Sequence[Column], checksums: Sequence[int], *, lengths: Sequence[int]
) -> bytes:
    """Return the packed directory of a payload.

    Args:
        columns: All columns, in the order of their bytes.
        checksums: Of each column.
        lengths: Sequence length of each row.
    """
    layout, numbers = shorten(columns, lengths)
    packed = _checksums_of(len(columns)).pack(*checksums)
    encoded: bytes = msgpack.packb([DIRECTORY_FORMAT, len(lengths), layout, numbers, packed])
    return encoded


@lru_cache
def _checksums_of(columns: int) -> struct.Struct:
    return struct.Struct(f"<{columns}Q")


def directory_checksum(encoded: bytes) -> int:
    """Return the xxh3_64 of a packed directory; it covers all columns through their checksums."""
    return xxhash.xxh3_64_intdigest(encoded)


def refuse_format(found: object, *, known: int, what: str) -> NoReturn:
    """Say why something is not read here.

    Raises:
        SchemaMismatch: A newer version of this package wrote it; it is not damaged.
        ValueError: Its format is none at all.
    """
    if type(found) is not int or found <= known:
        raise ValueError(f"{found!r} is no format")
    raise SchemaMismatch(
        f"{what} has format {found}, and this version of redis-replay reads formats up to "
        f"{known}; install the version that wrote it"
    )


def read_plan(
    directory: Directory,
    *,
    fields: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
) -> list[ByteRange]:
    """Return the bytes to read for these fields and rows, all of them by default.

    Neighbouring rows of one column become one range; what they share comes before them. Rows and
    columns without bytes are left out, because GETRANGE cannot ask for nothing: length 0 at offset
    0 returns everything.

    Raises:
        ValueError: No such field, or no such row.
    """
    layout = directory.layout
    if rows is not None:
        return _plan_of_runs(layout, fields, list(_runs(directory, rows=rows)))
    plan_of = _kept_plan if layout.is_shared else _plan_of_all
    return list(plan_of(layout, None if fields is None else tuple(fields)))


def _plan_of_all(layout: Layout, fields: tuple[str, ...] | None) -> list[ByteRange]:
    return _plan_of_runs(layout, fields, [(0, layout.row_count)])


_kept_plan = lru_cache(maxsize=256)(_plan_of_all)


def _plan_of_runs(
    layout: Layout, fields: Sequence[str] | None, runs: Sequence[tuple[int, int]]
) -> list[ByteRange]:
    plan: list[ByteRange] = []
    for place in layout.places(fields):
        plan += _plan_of_column(layout.columns[place], runs)
    return plan


def _plan_of_column(column: Column, runs: Sequence[tuple[int, int]]) -> list[ByteRange]:
    name, bounds = column.name, column.bounds
    plan: list[ByteRange] = []
    for start_row, stop_row in runs:
        start, stop = bounds[start_row], bounds[stop_row]
        if start == stop:
            continue
        if start == bounds[0] and stop == column.length:
            return [ByteRange(name, start_row, stop_row, column.offset, column.length, True)]
        place = column.offset + start
        plan.append(ByteRange(name, start_row, stop_row, place, stop - start, False))
    if not plan or not column.storage.blobs:
        return plan
    shared = [
        ByteRange(name, 0, 0, column.offset + blob.offset, blob.length, False, blob=number)
        for number in column.blobs_of(row for run in runs for row in range(*run))
        for blob in [column.storage.blobs[number]]
    ]
    return shared + plan


def _runs(directory: Directory, *, rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the half-open runs of neighbouring rows, each row once, upwards."""
    wanted = sorted(set(rows))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < directory.row_count:
        raise ValueError(f"rows {wanted} are not all between 0 and {directory.row_count - 1}")
    start = 0
    for position in range(1, len(wanted) + 1):
        if position == len(wanted) or wanted[position] != wanted[position - 1] + 1:
            yield wanted[start], wanted[position - 1] + 1
            start = position
