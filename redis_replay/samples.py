"""The data plane: rows of committed groups, read by column and row, and columns written back.

A read fetches the bytes it needs and nothing else. Trainers write columns (advantages, log
probabilities) back to rows they hold claimed; written cells are kept apart, win over committed ones
of the same name, and end with the claim. Names follow the seed's data plane client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from redis_replay._redis.keys import Key
from redis_replay._redis.lua import Argument
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.run_scripts import MarkWritten
from redis_replay._redis.scripts import Remove
from redis_replay.claims import distinct_ids
from redis_replay.codec import Value, decode_value, encode_value
from redis_replay.directory import read_plan
from redis_replay.errors import PayloadMissing, UnknownGroup
from redis_replay.groups import GroupRecord, read_records, sample_ids_of, split_sample_id
from redis_replay.meta import KVBatchMeta
from redis_replay.payloads import chunk_offsets, decode_columns
from redis_replay.session import Session
from redis_replay.types import MAX_GROUPS_PER_CALL, GroupState

_SLICE: Final = 64
Row = dict[str, Value]


@dataclass(frozen=True, slots=True)
class _Located:
    """A group whose rows are asked for: its slot, its record, the rows."""

    slot: SlotRecord
    record: GroupRecord
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SamplePlane:
    """Rows of one run and partition, under one session. `ReplayStore.samples`.

    Attributes:
        session: Whose reads these are.
        claimant: Owner and epoch whose claimed rows may be written; the session's own by default.
    """

    session: Session
    claimant: tuple[str, int] | None = None

    async def get_samples(
        self,
        samples: KVBatchMeta | Sequence[str],
        *,
        select_fields: Sequence[str] | None = None,
    ) -> list[Row]:
        """Return the rows of samples in the order asked, one dictionary per sample.

        Arrays are read-only views over the received bytes, without a copy. Reads only the selected
        columns and rows. Not atomic across groups; may be repeated.

        Args:
            samples: Sample ids, or the meta of a batch.
            select_fields: Columns to read; all of them by default.

        Raises:
            UnknownGroup: a group is not live, or is only reserved.
            PayloadMissing: a payload is gone.
            PayloadCorrupted: a payload fails its checksum.
            ValueError: a malformed sample id, or an unknown row or field.
        """
        sample_ids = samples.sample_ids if isinstance(samples, KVBatchMeta) else list(samples)
        wanted: dict[str, list[int]] = {}
        for sample_id in sample_ids:
            group_id, row = split_sample_id(sample_id)
            rows = wanted.setdefault(group_id, [])
            if row not in rows:
                rows.append(row)
        found: dict[str, Row] = {}
        ids = list(wanted)
        for at in range(0, len(ids), _SLICE):
            for located in await self._locate({i: wanted[i] for i in ids[at : at + _SLICE]}):
                found.update(await self._read(located, select_fields))
        return [found[sample_id] for sample_id in sample_ids]

    async def put_samples(
        self,
        sample_ids: Sequence[str],
        *,
        fields: Mapping[str, Sequence[Value]],
        tags: Sequence[Mapping[str, Value]] | None = None,
    ) -> None:
        """Write columns back to rows that this session, or its trainer, holds claimed.

        The claim is checked first, atomically; the cells become visible one by one. May be
        repeated.

        Args:
            sample_ids: Rows to write, of any number of groups.
            fields: Column name to one value per sample, in the same order.
            tags: One dictionary per sample, kept as the column ``tags``.

        Raises:
            ValueError: a column has not one value per sample, or a row is none of its group.
            TypeError: a value cannot be stored; nothing was written.
            ClaimMismatch: a group is claimed by somebody else; nothing was written.
            StaleOwner: the session that claimed has ended; nothing was written.
            SlotError: a group is not live or not claimed; nothing was written.
        """
        if tags is not None:
            fields = {**fields, "tags": [dict(tag) for tag in tags]}
        for name, values in fields.items():
            if len(values) != len(sample_ids):
                raise ValueError(
                    f"field {name!r} has {len(values)} values for {len(sample_ids)} samples"
                )
        cells: dict[str, list[Argument]] = {}
        for at, sample_id in enumerate(sample_ids):
            group_id, row = split_sample_id(sample_id)
            if row >= (self.session.link.run.settings.group_size or 0):
                raise ValueError(f"sample {sample_id!r}: its group has no row {row}")
            for name, values in fields.items():
                encoded = encode_value(values[at], f"{sample_id}.{name}")
                cells.setdefault(group_id, []).extend((f"{row}:{name}", encoded))
        group_ids = tuple(cells)
        keyspace = self.session.link.gateway.keyspace
        for at in range(0, len(group_ids), MAX_GROUPS_PER_CALL):
            part = group_ids[at : at + MAX_GROUPS_PER_CALL]
            owner, epoch = self.claimant or await self._attached()
            places = await self.session.link.call(MarkWritten(owner, epoch, part))
            await self.session.link.gateway.pipeline(
                [
                    ("HSET", keyspace.written(group_id, payload_fence, written), *cells[group_id])
                    for group_id, (payload_fence, written) in zip(part, places, strict=True)
                ]
            )

    async def _attached(self) -> tuple[str, int]:
        await self.session.attach()
        return self.session.owner, self.session.epoch

    async def list_sample_ids(self) -> list[str]:
        """Return the ids of all rows of ready and claimed groups, in buffer order. A pure read."""
        slots = await self._slots()
        committed = sorted(
            (s for s in slots if s.state in (GroupState.READY, GroupState.CLAIMED)),
            key=lambda slot: slot.order,
        )
        rows = self.session.link.run.settings.group_size or 0
        return [i for slot in committed for i in sample_ids_of(slot.group_id, rows)]

    async def clear_samples(self, sample_ids: Sequence[str]) -> int:
        """Remove whole groups by their samples and return the number of groups.

        Atomic. Their payload is freed afterwards.

        Raises:
            ValueError: only some rows of a group are named, for a group is never cut; or more than
                1,024 groups.
            SlotError: a group is not live, or is claimed; nothing was removed.
        """
        named: dict[str, set[int]] = {}
        for sample_id in sample_ids:
            group_id, row = split_sample_id(sample_id)
            named.setdefault(group_id, set()).add(row)
        size = self.session.link.run.settings.group_size or 0
        for group_id, rows in named.items():
            if rows != set(range(size)):
                raise ValueError(
                    f"group {group_id!r} has rows 0 to {size - 1}, and rows {sorted(rows)} "
                    "were named; samples are cleared by whole groups"
                )
        if not named:
            return 0
        removed = await self.session.call(Remove("cleared", group_ids=distinct_ids(named)))
        await self.session.link.collect()
        return removed

    async def _slots(self) -> list[SlotRecord]:
        gateway = self.session.link.gateway
        [stored] = await gateway.pipeline([("HGETALL", gateway.keyspace.control(Key.SLOTS))])
        return [SlotRecord.parse(group_id, record) for group_id, record in stored.items()]

    async def _locate(self, wanted: Mapping[str, Sequence[int]]) -> list[_Located]:
        gateway = self.session.link.gateway
        slots_key = gateway.keyspace.control(Key.SLOTS)
        [stored] = await gateway.pipeline([("HMGET", slots_key, *wanted)])
        slots: list[SlotRecord] = []
        for group_id, text in zip(wanted, stored, strict=True):
            slot = SlotRecord.parse(group_id.encode(), text) if text is not None else None
            if slot is None or slot.payload_fence is None:
                raise UnknownGroup(
                    f"group {group_id!r} has no committed rows: it is not live or only reserved",
                    group_id=group_id,
                )
            slots.append(slot)
        named = [(slot.group_id, slot.payload_fence or 0) for slot in slots]
        records = await read_records(gateway, named)
        return [
            _Located(slot, record, tuple(wanted[slot.group_id]))
            for slot, record in zip(slots, records, strict=True)
        ]

    async def _read(self, located: _Located, fields: Sequence[str] | None) -> dict[str, Row]:
        written = await self._written(located, fields)
        committed = self._committed_fields(located, fields, written)
        all_rows = list(range(located.record.directory.row_count))
        rows = None if sorted(located.rows) == all_rows else located.rows
        columns = await self._columns(located, committed, rows)
        result: dict[str, Row] = {}
        for at, row in enumerate(sorted(located.rows) if rows is None else rows):
            cells: Row = {name: column[at] for name, column in columns.items()}
            cells.update(written.get(row, {}))
            order = list(fields) if fields is not None else list(cells)
            result[f"{located.slot.group_id}_g{row}"] = {name: cells[name] for name in order}
        return result

    def _committed_fields(
        self,
        located: _Located,
        fields: Sequence[str] | None,
        written: Mapping[int, Row],
    ) -> list[str] | None:
        """Fields to read from the payload: those selected that not every row has written back."""
        if fields is None:
            return None
        everywhere = set.intersection(*(set(written.get(row, {})) for row in located.rows))
        return [name for name in dict.fromkeys(fields) if name not in everywhere]

    async def _columns(
        self, located: _Located, fields: Sequence[str] | None, rows: Sequence[int] | None
    ) -> dict[str, list[Value]]:
        directory = located.record.directory
        plan = read_plan(directory, fields=fields, rows=rows)
        if fields is None and rows is None:
            payload = await self._fetch(located, [(0, directory.payload_bytes)])
            view = memoryview(payload[0])
            buffers = {part: view[part.offset : part.offset + part.length] for part in plan}
        else:
            parts = await self._fetch(located, [(part.offset, part.length) for part in plan])
            buffers = {span: memoryview(part) for span, part in zip(plan, parts, strict=True)}
        return decode_columns(
            directory, buffers, fields=fields, rows=rows, group_id=located.slot.group_id
        )

    async def _fetch(self, located: _Located, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read byte ranges of a payload, each over as many chunks as it spans."""
        slot, record = located.slot, located.record
        keyspace = self.session.link.gateway.keyspace
        keys = record.payload_keys(keyspace, slot.payload_fence or 0)
        chunks = chunk_offsets(record.payload_bytes, record.chunk_bytes)
        commands: list[tuple[Argument, ...]] = []
        pieces: list[int] = []
        for offset, length in spans:
            touched = 0
            for key, (start, size) in zip(keys, chunks, strict=True):
                first, last = max(offset, start), min(offset + length, start + size)
                if first < last:
                    whole = first == start and last == start + size
                    part = (first - start, last - start - 1)
                    commands.append(("GET", key) if whole else ("GETRANGE", key, *part))
                    touched += 1
            pieces.append(touched)
        replies: list[bytes | None] = await self.session.link.gateway.pipeline(commands)
        result: list[bytes] = []
        at = 0
        for (_, length), count in zip(spans, pieces, strict=True):
            received = [reply or b"" for reply in replies[at : at + count]]
            at += count
            joined = received[0] if count == 1 else b"".join(received)
            if len(joined) != length:
                raise PayloadMissing(
                    f"the payload of group {slot.group_id!r} has lost bytes: {len(joined)} of "
                    f"{length} came back",
                    group_id=slot.group_id,
                )
            result.append(joined)
        return result

    async def _written(
        self, located: _Located, fields: Sequence[str] | None
    ) -> dict[int, dict[str, Value]]:
        slot = located.slot
        if slot.written is None or slot.payload_fence is None:
            return {}
        gateway = self.session.link.gateway
        key = gateway.keyspace.written(slot.group_id, slot.payload_fence, slot.written)
        [stored] = await gateway.pipeline([("HGETALL", key)])
        cells: dict[int, dict[str, Value]] = {}
        for place, encoded in stored.items():
            row, _, name = place.decode().partition(":")
            if fields is None or name in fields:
                value = decode_value(encoded, f"{slot.group_id}_g{row}.{name}")
                cells.setdefault(int(row), {})[name] = value
        return cells
