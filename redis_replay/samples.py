"""The data plane: rows of committed groups, read by column and row, and columns written back.

A read fetches the bytes it needs and nothing else. Trainers write columns (advantages, log
probabilities) back to rows they hold claimed; written cells are kept apart, win over committed ones
of the same name, and end with the claim. Names follow the seed's data plane client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis_replay._redis.gateway import Reads
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import Argument
from redis_replay._redis.records import SlotRecord
from redis_replay._redis.run_scripts import MarkWritten
from redis_replay._redis.scripts import Remove
from redis_replay._redis.selecting_scripts import LetGo
from redis_replay.attachment import Attachment, FencedReads
from redis_replay.claims import distinct_ids
from redis_replay.codec import Value, encode_value
from redis_replay.damage import Damage
from redis_replay.errors import UnknownGroup
from redis_replay.forms import ArrayForm, hand_out_as
from redis_replay.group_reads import Row, WantedRows
from redis_replay.groups import grouped_ids, sample_ids_of, split_sample_id
from redis_replay.meta import KVBatchMeta
from redis_replay.outputs import Outputs, as_it_is
from redis_replay.reading import read_groups
from redis_replay.selected import read_selected
from redis_replay.session import Session
from redis_replay.stats import read_named
from redis_replay.types import MAX_GROUPS_PER_CALL, GroupState

_SLICE: Final = 64


@dataclass(frozen=True, slots=True)
class SamplePlane:
    """Rows of one run and partition, under one session. `ReplayStore.samples`.

    Attributes:
        session: Whose reads these are.
        claimant: Whose claimed rows may be written; the session's own by default.
    """

    session: Session
    claimant: Attachment | None = None

    async def get_samples(
        self,
        samples: KVBatchMeta | Sequence[str],
        *,
        select_fields: Sequence[str] | None = None,
        arrays: ArrayForm = "read_only",
        out: Mapping[str, Any] | None = None,
    ) -> list[Row]:
        """Return the rows of samples in the order asked, one dictionary per sample.

        Arrays are read-only views over the received bytes, without a copy, one block of memory for
        each group; ``arrays`` asks for another form. A field that a row lacks, selected or not, is
        no key of its dictionary. Reads only the selected columns and rows. Not atomic across
        groups; may be repeated.

        Nothing is returned if a group is damaged: all of the read that are, ready or claimed by
        this session, are quarantined in this call, and the error names them. Read the others then.

        Args:
            samples: Sample ids, or the meta of a batch.
            select_fields: Columns to read; all of them by default.
            arrays: ``"read_only"``, ``"writable"`` or ``"torch"``; see `redis_replay.forms`.
            out: Field to a NumPy array or a tensor of the caller, such as pinned memory, whose
                i-th entry receives the i-th sample. Shape and dtype are those of the rows; a row
                may be shorter than its entry along its first axis, whose rest is left alone. The
                cells returned are views of it. What it holds after an error is undefined.

        Raises:
            UnknownGroup: a group is not live, or is only reserved.
            PayloadMissing: a payload is gone; ``quarantined`` names all groups that were.
            PayloadCorrupted: a payload fails its checksum; ``quarantined`` as before.
            SchemaMismatch: a newer version of this package wrote a group.
            ConfigurationError: a dtype, a compression or the form needs a package that is absent.
            ValueError: a malformed sample id, an unknown row or form, a field that none of the
                groups has, or an array in ``out`` that does not fit.
            TypeError: something in ``out`` is no array, or is for a field that holds none or that a
                row lacks.
        """
        sample_ids = samples.sample_ids if isinstance(samples, KVBatchMeta) else list(samples)
        places = grouped_ids(sample_ids, self.session.link.run.settings.group_size or 0)
        form, damage = hand_out_as(arrays), Damage()
        outputs = None
        if out:
            view = form if arrays == "torch" else as_it_is
            each = [(group_id, row) for group_id, rows in places for row in rows]
            outputs = Outputs(out, places=each, fields=select_fields, hand_out=view)
        wanted: dict[str, tuple[int, ...]] = {}
        for group_id, rows in places:
            wanted[group_id] = (*wanted[group_id], *rows) if group_id in wanted else rows
        found: dict[str, list[Row]] = {}
        known: dict[str, None] = {}
        ids = list(wanted)
        for at in range(0, len(ids), _SLICE):
            part = {i: tuple(dict.fromkeys(wanted[i])) for i in ids[at : at + _SLICE]}
            found |= await read_groups(
                self.session.link.gateway,
                await self._locate(part, damage),
                fields=select_fields,
                hand_out=form,
                outputs=outputs,
                damage=damage,
                known=known,
            )
        if damage.found:
            holder = self.claimant or await self._attached()
            ended = self.session.selected.slots
            await damage.raise_quarantined(self.session.link, holder, ended=ended)
        if unknown := [name for name in select_fields or () if found and name not in known]:
            raise ValueError(
                f"none of the {len(ids)} groups has a field {', '.join(map(repr, unknown))}; "
                f"there are {', '.join(map(repr, known))}"
            )
        return _in_order(places, wanted, found)

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
            ValueError: a column has not one value per sample, a row is none of its group, or a
                value is longer than the server accepts; nothing was written.
            TypeError: a value cannot be stored; nothing was written.
            ClaimMismatch: a group is claimed by somebody else, or was selected for good; nothing
                was written.
            StaleOwner: the session that claimed has ended (`ClaimLost` for a trainer's); nothing
                was written.
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
        named = [split_sample_id(sample_id)[0] for sample_id in sample_ids]
        self.session.selected.require_none("written back to", named)
        for at, sample_id in enumerate(sample_ids):
            group_id, row = split_sample_id(sample_id)
            if row >= (self.session.link.run.settings.group_size or 0):
                raise ValueError(f"sample {sample_id!r}: its group has no row {row}")
            for name, values in fields.items():
                encoded = encode_value(values[at], f"{sample_id}.{name}")
                if len(encoded) > self.session.link.longest_string_bytes:
                    raise ValueError(
                        f"sample {sample_id!r}, field {name!r}: {len(encoded)} bytes, but the "
                        f"server accepts {self.session.link.longest_string_bytes} in one value "
                        "(proto-max-bulk-len)"
                    )
                cells.setdefault(group_id, []).extend((f"{row}:{name}", encoded))
        group_ids = tuple(cells)
        keyspace = self.session.link.gateway.keyspace
        for at in range(0, len(group_ids), MAX_GROUPS_PER_CALL):
            part = group_ids[at : at + MAX_GROUPS_PER_CALL]
            holder = self.claimant or await self._attached()
            marked = await self.session.link.ask(MarkWritten(holder.owner, holder.epoch, part))
            places = holder.accept(marked)
            await self.session.link.gateway.write(
                [
                    ("HSET", keyspace.written(group_id, payload_fence, written), *cells[group_id])
                    for group_id, (payload_fence, written) in zip(part, places, strict=True)
                ]
            )

    async def _attached(self) -> Attachment:
        await self.session.attach()
        return self.session.attachment

    @property
    def _reads(self) -> Reads:
        """A rank's reads end with its leader's session."""
        if self.claimant is None:
            return self.session.reads
        link = self.session.link
        return FencedReads(link.gateway, self.claimant, link.run.store_epoch)

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

        Atomic. Their payload is freed afterwards. Groups that this session has selected for good
        have ended already: they are let go, in a call of their own.

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
        held = self.session.selected.slots
        ended = tuple(name for name in distinct_ids(named) if name in held)
        rest = tuple(name for name in named if name not in held)
        cleared = await self.session.call(Remove("cleared", group_ids=rest)) if rest else 0
        if ended:
            cleared += await self.session.call(LetGo(ended))
            self.session.selected.let_go(ended)
        await self.session.link.collect()
        return cleared

    async def _slots(self) -> list[SlotRecord]:
        reads = self._reads
        [stored] = await reads.pipeline([("HGETALL", reads.keyspace.control(Key.SLOTS))])
        return [SlotRecord.parse(group_id, record) for group_id, record in stored.items()]

    async def _locate(
        self, wanted: Mapping[str, tuple[int, ...]], damage: Damage
    ) -> list[WantedRows]:
        link = self.session.link
        slots: list[SlotRecord] = []
        named = dict(zip(wanted, await read_named(self._reads, list(wanted)), strict=True))
        named |= {i: slot for i, slot in self.session.selected.slots.items() if i in wanted}
        if any(slot is None for slot in named.values()):
            ended = await read_selected(self._reads)
            kept = {slot.group_id: slot for batch in ended.values() for slot in batch}
            named = {group_id: slot or kept.get(group_id) for group_id, slot in named.items()}
        for group_id, slot in named.items():
            if slot is None or slot.payload_fence is None:
                raise UnknownGroup(
                    f"group {group_id!r} has no committed rows: it is not live or only reserved",
                    group_id=group_id,
                )
            slots.append(slot)
        records = {r.group_id: r for r in await damage.read_records(link, slots)}
        return [
            WantedRows(slot, records[slot.group_id], wanted[slot.group_id])
            for slot in slots
            if slot.group_id in records
        ]


def _in_order(
    places: Sequence[tuple[str, tuple[int, ...]]],
    wanted: Mapping[str, tuple[int, ...]],
    found: Mapping[str, list[Row]],
) -> list[Row]:
    """Return the rows that were found of each group in the order in which samples are named."""
    result: list[Row] = []
    for group_id, rows in places:
        if wanted[group_id] is rows:
            result += found[group_id]
        else:
            order = dict.fromkeys(wanted[group_id])
            by_row = dict(zip(order, found[group_id], strict=True))
            result += [by_row[row] for row in rows]
    return result
