"""Rows of committed groups: what was written back to them, and what was committed.

A read asks for the bytes it needs and nothing else, of many groups in one round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import anyio.lowlevel

from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.transfer import Progress
from redis_replay.arrays import HandOut, read_only
from redis_replay.codec import decode_value
from redis_replay.damage import Damage
from redis_replay.decoding import Decoding, decoded_rows
from redis_replay.errors import PayloadCorrupted
from redis_replay.group_reads import GroupRead, Row, WantedRows, plan_read
from redis_replay.outputs import Outputs

_GROUPS_A_TURN: Final = 16
"""Groups that are planned before other tasks have their turn."""

_MOST_PASSING_BYTES: Final = 16 * 1024 * 1024
"""What may be received for groups under way that nothing refers to once they are decoded."""

_WRITTEN_SLICE: Final = 8
"""Groups whose written-back cells are held encoded and decoded at one time."""


async def read_groups(
    gateway: Gateway,
    wanted: Sequence[WantedRows],
    *,
    fields: Sequence[str] | None,
    hand_out: HandOut = read_only,
    outputs: Outputs | None = None,
    damage: Damage,
    known: dict[str, None],
) -> dict[str, list[Row]]:
    """Return the rows of each group, in the order in which they are wanted, but of damaged groups.

    Groups are decoded while others are on their way. Not atomic; may be repeated.

    Args:
        gateway: To the server.
        wanted: The groups.
        fields: Columns to read, ``None`` for all.
        hand_out: What becomes of each array (`forms`).
        outputs: Arrays of the caller that columns are read into; undefined after a failure.
        damage: Where groups are noted whose payload is gone, has lost bytes or fails its checksum.
        known: Where the fields are noted that the groups have, in their order.

    Raises:
        PayloadCorrupted: A cell that was written back is damaged.
        ValueError: No such row, or a field that does not fit into its array.
        TypeError: A field that has an array holds something else.
    """
    cells = await _read_written(gateway, wanted, fields, hand_out)
    decode = partial(decoded_rows, fields=fields, hand_out=hand_out, outputs=outputs)
    plan = partial(plan_read, gateway.keyspace, fields=fields, hand_out=hand_out, outputs=outputs)
    found: dict[str, list[Row]] = {}
    reads: list[GroupRead] = []
    passing_bytes = 0
    for at, (one, written) in enumerate(zip(wanted, cells, strict=True)):
        if at % _GROUPS_A_TURN == 0:
            await anyio.lowlevel.checkpoint()
        with damage.noted(one.slot):
            for names in (one.record.directory.fields, *written.values()):
                known.update(dict.fromkeys(names))
            read = plan(one, written=written)
            reads.append(read)
            passing_bytes += read.passing_bytes
        if passing_bytes > _MOST_PASSING_BYTES:
            found |= await _received(gateway, reads, decode, damage)
            reads, passing_bytes = [], 0
    return found | await _received(gateway, reads, decode, damage)


async def _received(
    gateway: Gateway,
    reads: Sequence[GroupRead],
    decode: Callable[[GroupRead], list[Row]],
    damage: Damage,
) -> dict[str, list[Row]]:
    """Receive and decode groups; note those that are damaged."""
    decoding = Decoding(reads, decode)

    def attempt() -> Progress:
        nonlocal decoding
        decoding = Decoding(reads, decode)
        return decoding

    await gateway.read([part for read in reads for part in read.ranges], attempt)
    await decoding.finish()
    for read in reads:
        if error := decoding.damaged.get(read.group_id):
            damage.found.setdefault(read.group_id, (read.wanted.slot, error))
    return decoding.found


async def _read_written(
    gateway: Gateway,
    wanted: Sequence[WantedRows],
    fields: Sequence[str] | None,
    hand_out: HandOut,
) -> list[dict[int, Row]]:
    """Return the cells that were written back to each group, by row and column."""
    result: list[dict[int, Row]] = [{} for _ in wanted]
    having = [(at, one) for at, one in enumerate(wanted) if one.slot.written is not None]
    for first in range(0, len(having), _WRITTEN_SLICE):
        part = having[first : first + _WRITTEN_SLICE]
        commands = [_ask_for_written(gateway.keyspace, one, fields) for _, one in part]
        replies = await gateway.ask_payload(commands)
        for (at, one), command, reply in zip(part, commands, replies, strict=True):
            found = reply.items() if fields is None else zip(command[2:], reply, strict=True)
            result[at] = _written_cells(one.slot.group_id, found, hand_out)
    return result


def _ask_for_written(
    keyspace: Keyspace, wanted: WantedRows, fields: Sequence[str] | None
) -> tuple[str, ...]:
    slot = wanted.slot
    key = keyspace.written(slot.group_id, slot.payload_fence or 0, slot.written or 0)
    if not fields:
        return ("HGETALL", key) if fields is None else ("HMGET", key, "")
    return ("HMGET", key, *(f"{row}:{name}" for row in wanted.rows for name in fields))


def _written_cells(
    group_id: str, found: Iterable[tuple[bytes | str, bytes | None]], hand_out: HandOut
) -> dict[int, Row]:
    cells: dict[int, Row] = {}
    for place, encoded in found:
        if encoded is not None:
            text = place if isinstance(place, str) else place.decode()
            row, _, name = text.partition(":")
            try:
                value = decode_value(encoded, f"{group_id}_g{row}.{name}", hand_out=hand_out)
            except PayloadCorrupted as error:
                raise PayloadCorrupted(
                    f"{error}; it was written back, so write it again or requeue the group",
                    group_id=group_id,
                    field=name,
                    row=int(row),
                ) from error
            cells.setdefault(int(row), {})[name] = value
    return cells
