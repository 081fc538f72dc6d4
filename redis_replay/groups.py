"""Committed groups as readers need them: their records, their payload keys, their metadata.

A record (`group_record`) is written once at commit, under group id and the committing attempt's
fence, and is freed with the payload (D9). Its facts never change; what changes about a group is in
its slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import repeat
from typing import Any, Final, cast

from redis_replay._redis.gateway import Reads
from redis_replay._redis.keys import Key, Keyspace, group_field
from redis_replay._redis.records import CommittedSlot
from redis_replay.codec import Value
from redis_replay.dynamic_sampling import PromptGroupRecord
from redis_replay.errors import PayloadMissing
from redis_replay.group_record import GroupRecord, unpack_record
from redis_replay.meta import KVBatchMeta, copied
from redis_replay.payloads import EncodedGroup, chunk_offsets

_MOST_KNOWN: Final = 1024
_copy: Final = dict[str, Any].copy


def payload_writes(
    encoded: EncodedGroup, keyspace: Keyspace, group_id: str, *, fence: int, chunk_bytes: int
) -> list[tuple[str, bytes | memoryview]]:
    """Return the keys of a payload and the bytes of each, in order."""
    payload = memoryview(encoded.payload)
    return [
        (
            keyspace.payload(group_id, fence, chunk=at),
            encoded.payload if length == len(payload) else payload[offset : offset + length],
        )
        for at, (offset, length) in enumerate(chunk_offsets(len(payload), chunk_bytes))
    ]


async def read_records(reads: Reads, named: Sequence[tuple[str, int]]) -> list[GroupRecord]:
    """Read the records of groups, each named by id and payload fence.

    Raises:
        PayloadMissing: a record is gone.
        PayloadCorrupted: a record is damaged.
    """
    if not named:
        return []
    key = reads.keyspace.control(Key.GROUPS)
    fields = [group_field(group_id, fence) for group_id, fence in named]
    [stored] = await reads.pipeline([("HMGET", key, *fields)])
    records: list[GroupRecord] = []
    for (group_id, _), blob in zip(named, stored, strict=True):
        if blob is None:
            raise PayloadMissing(
                f"the record of group {group_id!r} is gone from the server", group_id=group_id
            )
        records.append(unpack_record(group_id, blob))
    return records


@dataclass
class GroupRecords:
    """The records of one run. They never change (D9), so one that was read is kept for a while."""

    gateway: Reads
    _known: dict[tuple[str, int], GroupRecord] = field(default_factory=dict)

    async def read(self, slots: Sequence[CommittedSlot]) -> list[GroupRecord]:
        """Return the records of committed groups. Raises as `read_records`."""
        named = [(slot.group_id, slot.payload_fence or 0) for slot in slots]
        unknown = [name for name in named if name not in self._known]
        found = dict(zip(unknown, await read_records(self.gateway, unknown), strict=True))
        records = [self._known.get(name) or found[name] for name in named]
        self._remember(found)
        return records

    def keep(self, slots: Sequence[CommittedSlot], stored: Sequence[bytes]) -> None:
        """Keep records that came with a claim, one for each slot, empty where one is gone.

        Raises:
            PayloadCorrupted: a record is damaged.
        """
        self._remember(
            {
                (slot.group_id, slot.payload_fence or 0): unpack_record(slot.group_id, blob)
                for slot, blob in zip(slots, stored, strict=False)
                if blob and (slot.group_id, slot.payload_fence) not in self._known
            }
        )

    def _remember(self, found: Mapping[tuple[str, int], GroupRecord]) -> None:
        self._known.update(found)
        while len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]


def sample_ids_of(group_id: str, rows: int) -> list[str]:
    """Return the ids of a group's samples: ``{group_id}_g{row}``."""
    return list(map(group_id.__add__, _suffixes(rows)))


@cache
def _suffixes(rows: int) -> tuple[str, ...]:
    return tuple(f"_g{row}" for row in range(rows))


def split_sample_id(sample_id: str) -> tuple[str, int]:
    """Return the group and row of a sample id.

    Raises:
        ValueError: it is not of the form ``{group_id}_g{row}``.
    """
    group_id, _, row = sample_id.rpartition("_g")
    if not group_id or not (row.isascii() and row.isdigit()):
        raise ValueError(f"sample id {sample_id!r} is not of the form '<group id>_g<row>'")
    return group_id, int(row)


def grouped_ids(sample_ids: Sequence[str], group_size: int) -> list[tuple[str, tuple[int, ...]]]:
    """Return the groups and rows that sample ids name, in order, a whole group as one.

    Raises:
        ValueError: an id is not of the form ``{group_id}_g{row}``.
    """
    places: list[tuple[str, tuple[int, ...]]] = []
    every_row = tuple(range(group_size))
    at = 0
    while at < len(sample_ids):
        group_id, row = split_sample_id(sample_ids[at])
        whole = sample_ids[at : at + group_size] if row == 0 else []
        if whole and whole == sample_ids_of(group_id, group_size):
            places.append((group_id, every_row))
            at += group_size
        else:
            places.append((group_id, (row,)))
            at += 1
    return places


def batch_meta(
    partition_id: str,
    slots: Sequence[CommittedSlot],
    records: Sequence[GroupRecord],
    *,
    current_train_weight: int | None,
) -> KVBatchMeta:
    """Return the metas of groups concatenated in the order given.

    ``tags`` carry each row's group and versions beside the tags given at commit. ``extra_info`` has
    one entry per group: ``group_ids``, ``start_weight_versions``, ``target_steps``, ``rewards``,
    ``rollout_metrics`` and, for a selection, ``lags``.
    """
    sample_ids: list[str] = []
    lengths: list[int] = []
    tags: list[dict[str, Any]] = []
    for slot, record in zip(slots, records, strict=True):
        sample_ids += sample_ids_of(slot.group_id, len(record.lengths))
        lengths += record.lengths
        facts = {
            "group_id": slot.group_id,
            "start_weight_version": slot.start,
            "end_weight_version": slot.finish,
            "target_step": slot.target,
        }
        if any(record.tags):
            tags += [{**copied(tag), **facts} for tag in record.tags]
        else:
            tags += map(_copy, repeat(facts, len(record.tags)))
    extra: dict[str, Any] = {
        "group_ids": [slot.group_id for slot in slots],
        "start_weight_versions": [slot.start for slot in slots],
        "target_steps": [slot.target for slot in slots],
        "rewards": [list(r.rewards) if r.rewards is not None else None for r in records],
        "rollout_metrics": [copied(r.rollout_metrics) for r in records],
    }
    if current_train_weight is not None:
        extra["lags"] = [current_train_weight - slot.start for slot in slots]
    shared = set[str].intersection(*map(set[str], {record.fields for record in records}))
    return KVBatchMeta(
        partition_id=partition_id,
        task_name=None,
        sample_ids=sample_ids,
        fields=[name for name in records[0].fields if name in shared],
        sequence_lengths=lengths,
        extra_info=extra,
        tags=tags,
    )


def rows_of_record(record: PromptGroupRecord) -> list[dict[str, Value]]:
    """Return completions as rows: message_log, env_extras, truncated, reward, prompt_idx."""
    return [
        {
            "message_log": [dict(message) for message in completion.message_log],
            "env_extras": None if completion.env_extras is None else dict(completion.env_extras),
            "truncated": completion.truncated,
            "reward": cast(Value, completion.reward),
            "prompt_idx": record.prompt_idx,
        }
        for completion in record.completions
    ]


def as_rows(
    record_or_rows: Sequence[Mapping[str, Value]] | PromptGroupRecord,
) -> tuple[Sequence[Mapping[str, Value]], Mapping[str, Any]]:
    """Return the rows of a group and its rollout metrics, from either form."""
    if isinstance(record_or_rows, PromptGroupRecord):
        return rows_of_record(record_or_rows), record_or_rows.rollout_metrics
    return record_or_rows, {}
