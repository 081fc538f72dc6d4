"""Groups of one read, decoded as soon as their bytes have come, while others are on their way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, Final

import anyio.lowlevel
import anyio.to_thread

from redis_replay.arrays import HandOut, read_only
from redis_replay.errors import PayloadDamaged, PayloadMissing, ReplayError
from redis_replay.group_reads import GroupRead, Row
from redis_replay.outputs import Outputs
from redis_replay.payloads import ABSENT, decode_columns, decode_whole

_TURN_BYTES: Final = 1024 * 1024
"""What is decoded before other tasks have their turn."""

_GROUP_COSTS_BYTES: Final = 128 * 1024
"""A group costs as much time to decode as that many bytes, beside its own."""

_LARGE_BYTES: Final = 16 * 1024 * 1024
"""What takes a thread of its own to verify and decode, so that the event loop goes on."""


_FAILURES: Final = (ReplayError, ValueError, TypeError, MemoryError)


class Decoding:
    """One attempt at a read.

    Args:
        reads: Its groups; their ranges are asked for one after the other.
        decode: Returns the rows of a group whose bytes have come.

    Attributes:
        found: Rows by group id, in the order in which they are wanted.
        damaged: What is wrong with the groups that are damaged, by id.
    """

    def __init__(
        self, reads: Sequence[GroupRead], decode: Callable[[GroupRead], list[Row]]
    ) -> None:
        self.found: dict[str, list[Row]] = {}
        self.damaged: dict[str, PayloadDamaged] = {}
        self._reads = reads
        self._decode = decode
        self._places = [(at, part) for at, read in enumerate(reads) for part in read.ranges]
        self._left = [len(read.ranges) for read in reads]
        self._complete: deque[GroupRead] = deque()
        self._failure: Exception | None = None

    def arrived(self, at: int, length: int) -> None:
        """As `transfer.Progress.arrived`."""
        index, part = self._places[at]
        read = self._reads[index]
        if length != len(part.target):
            self._note_missing(read, length, len(part.target))
        self._left[index] -= 1
        if self._left[index] == 0 and read.wanted.record.payload_bytes <= _LARGE_BYTES:
            self._complete.append(read)

    def meanwhile(self) -> int:
        """Decode a group of which all bytes have come. As `transfer.Progress.meanwhile`."""
        if not self._complete or self._failure is not None:
            return 0
        read = self._complete.popleft()
        try:
            self._keep(read)
        except _FAILURES as failure:
            self._failure = failure  # raised by `finish`, where no connection is in use
        return read.wanted.record.payload_bytes + _GROUP_COSTS_BYTES

    async def finish(self) -> None:
        """Decode what is left, now that all has come.

        Raises:
            ValueError, TypeError: a cell does not fit into its array.
            ConfigurationError: a dtype or a form needs a package that is not installed.
        """
        decoded = 0
        for read in self._reads:
            if self._failure is not None:
                raise self._failure
            if read.group_id in self.found:
                continue
            if read.wanted.record.payload_bytes > _LARGE_BYTES:
                await anyio.to_thread.run_sync(self._keep, read)
            else:
                self._keep(read)
            decoded += read.wanted.record.payload_bytes + _GROUP_COSTS_BYTES
            if decoded > _TURN_BYTES:
                decoded = 0
                await anyio.lowlevel.checkpoint()

    def _keep(self, read: GroupRead) -> None:
        if read.group_id in self.damaged:
            return
        try:
            self.found[read.group_id] = self._decode(read)
        except PayloadDamaged as error:
            self.damaged[read.group_id] = error

    def _note_missing(self, read: GroupRead, length: int, expected: int) -> None:
        self.damaged.setdefault(
            read.group_id,
            PayloadMissing(
                f"the payload of group {read.group_id!r} has lost bytes: {length} of {expected} "
                "came back",
                group_id=read.group_id,
            ),
        )


def decoded_rows(
    read: GroupRead,
    *,
    fields: Sequence[str] | None,
    outputs: Outputs | None,
    hand_out: HandOut = read_only,
) -> list[Row]:
    """Return the wanted rows in order, once all targets are filled.

    Raises:
        PayloadCorrupted: they are damaged.
        ValueError, TypeError: a cell does not fit into its array.
    """
    directory = read.wanted.record.directory
    if read.payload is not None:
        columns = decode_whole(directory, read.payload, group_id=read.group_id, hand_out=hand_out)
    else:
        columns = decode_columns(
            directory,
            read.buffers,
            fields=read.fields,
            rows=read.rows,
            group_id=read.group_id,
            hand_out=hand_out,
        )
    rows = range(directory.row_count) if read.rows is None else read.rows
    cells_of_rows = zip(*columns.values(), strict=True) if columns else repeat((), len(rows))
    result: list[dict[str, Any]] = [*map(dict, map(zip, repeat(tuple(columns)), cells_of_rows))]
    if directory.layout.has_absent_rows:
        result = [_without_absent(cells) for cells in result]
    if read.written:
        for at, row in enumerate(rows):
            result[at] = _with_written(result[at], read.written.get(row), fields)
    if outputs is not None:
        for row, cells in zip(rows, result, strict=True):
            outputs.put(read.group_id, row, cells)
    if read.rows is None and read.wanted.rows != tuple(rows):
        return [result[row] for row in read.wanted.rows]
    return result


def _without_absent(cells: dict[str, Any]) -> Row:
    return {name: cell for name, cell in cells.items() if cell is not ABSENT}


def _with_written(cells: Row, written: Row | None, fields: Sequence[str] | None) -> Row:
    """Return the cells of a row with those that were written back to it, in the order asked."""
    if not written:
        return cells
    merged = {**cells, **written}
    return merged if fields is None else {name: merged[name] for name in fields if name in merged}
