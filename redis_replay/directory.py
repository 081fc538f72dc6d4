"""The directory of a group's payload: which bytes are which rows of which field.

A payload is one byte string, laid out column by column in the order of the fields. Each column
starts at the next multiple of 16 and holds its rows back to back: the raw bytes of arrays that
share one dtype, or one encoded cell per row. The directory travels apart from it (in the group's
record) as msgpack; `entries` says what stands in each entry::

    [format, rows, payload bytes, [entry, ...]]

The format written is the lowest that can say what there is to say, so that a group that needs
nothing new is still read by older versions of this package; formats from 1 to `DIRECTORY_FORMAT`
are read (D58). ``checksum`` is the xxh3_64 of the column's bytes. A read of less than a whole
column is therefore unverified, and `ByteRange.whole_column` says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import xxhash

from redis_replay.entries import entry_of, read_entry
from redis_replay.errors import PayloadCorrupted, SchemaMismatch
from redis_replay.layout import Column, aligned

DIRECTORY_FORMAT: Final = 2
MAX_ROWS: Final = 65_536
MAX_FIELD_NAME_BYTES: Final = 256
_FIRST_FORMAT: Final = 1
_MALFORMED: Final = (ValueError, TypeError, LookupError, OverflowError)


@dataclass(frozen=True, slots=True)
class ByteRange:
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


@dataclass(frozen=True, slots=True)
class Directory:
    """All columns of one payload.

    Attributes:
        row_count: Rows of the group.
        payload_bytes: Length of the whole payload.
        columns: In the order of the fields, which is the order of the bytes.
        checksums: xxh3_64 of the bytes of each column.
    """

    row_count: int
    payload_bytes: int
    columns: tuple[Column, ...]
    checksums: tuple[int, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of all fields, in the order in which they were given."""
        return tuple(column.name for column in self.columns)

    def select(self, fields: Sequence[str] | None) -> tuple[Column, ...]:
        """Return the columns of these fields in this order, all of them for ``None``.

        Raises:
            ValueError: A field is named that the payload has not; the message lists what it has.
        """
        if fields is None:
            return self.columns
        return tuple([column for column, _ in self.with_checksums(fields)])

    def with_checksums(self, fields: Sequence[str] | None) -> Sequence[tuple[Column, int]]:
        """Return the columns of `select`, each with the checksum of its bytes. Raises as it."""
        both = tuple(zip(self.columns, self.checksums, strict=True))
        if fields is None:
            return both
        by_name = {column.name: (column, checksum) for column, checksum in both}
        unknown = [name for name in fields if name not in by_name]
        if unknown:
            raise ValueError(
                f"no field {', '.join(map(repr, unknown))}; there are "
                f"{', '.join(map(repr, by_name))}"
            )
        return [by_name[name] for name in dict.fromkeys(fields)]

    def to_bytes(self) -> bytes:
        """Return the packed directory."""
        entries = list(map(entry_of, self.columns, self.checksums))
        is_first = all(column.is_plain for column in self.columns)
        written = _FIRST_FORMAT if is_first else DIRECTORY_FORMAT
        return msgpack.packb([written, self.row_count, self.payload_bytes, entries])

    @classmethod
    def from_bytes(
        cls, encoded: bytes, *, group_id: str | None = None, checksum: int | None = None
    ) -> Directory:
        """Read a packed directory.

        Args:
            encoded: What `to_bytes` returned.
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
            unpacked: Any = msgpack.unpackb(encoded)
            require_known_format(
                unpacked[0], known=DIRECTORY_FORMAT, what=f"group {group_id!r}: its directory"
            )
            return cls(*_read_directory(*unpacked))
        except (*_MALFORMED, msgpack.UnpackException) as error:
            raise PayloadCorrupted(
                f"group {group_id!r}: unreadable payload directory: {error}", group_id=group_id
            ) from error


def directory_checksum(encoded: bytes) -> int:
    """Return the xxh3_64 of a packed directory; it covers all columns through their checksums."""
    return xxhash.xxh3_64_intdigest(encoded)


def require_known_format(found: object, *, known: int, what: str) -> None:
    """Return if what has a format may be read here.

    Raises:
        SchemaMismatch: A newer version of this package wrote it; it is not damaged.
        ValueError: It is no format at all.
    """
    if type(found) is not int or found < _FIRST_FORMAT:
        raise ValueError(f"{found!r} is no format")
    if found > known:
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
    runs = [(0, directory.row_count)] if rows is None else list(_runs(directory, rows=rows))
    plan: list[ByteRange] = []
    for column in directory.select(fields):
        plan += _plan_of_column(column, runs)
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


def _read_directory(
    directory_format: int, row_count: Any, payload_bytes: Any, entries: Any
) -> tuple[int, int, tuple[Column, ...], tuple[int, ...]]:
    if type(row_count) is not int or not 1 <= row_count <= MAX_ROWS:
        raise ValueError(f"{row_count!r} rows")
    columns: list[Column] = []
    checksums: list[int] = []
    position = 0
    for entry in entries:
        column, checksum = read_entry(entry, row_count=row_count, directory_format=directory_format)
        if column.offset != aligned(position):
            raise ValueError(f"column {column.name!r} starts at {column.offset}")
        position = column.offset + column.length
        columns.append(column)
        checksums.append(checksum)
    if type(payload_bytes) is not int or payload_bytes != position:
        raise ValueError(f"the columns end at {position}, the payload at {payload_bytes!r}")
    if not columns or len({column.name for column in columns}) != len(columns):
        raise ValueError("no fields, or one of them twice")
    return row_count, payload_bytes, tuple(columns), tuple(checksums)
