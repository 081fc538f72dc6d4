"""The metadata of a batch: which samples, with which columns, lengths and tags, without the bytes.

`KVBatchMeta` has the fields, the method names and the keyword names of the seed's class of that
name in NeMo RL's data plane, so that a training loop written for one runs on the other. It is
stricter where the seed lets things slip: what does not line up is refused when it is built, and no
method changes a meta or returns one that shares a list or dictionary with it.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_IMMUTABLE: Final = frozenset({type(None), bool, int, float, str, bytes})


@dataclass(frozen=True)
class KVBatchMeta:
    """The samples of a batch, in order.

    The dataclass is frozen but its lists are plain lists, which its owner may fill; a meta that
    came out of a method never shares them with another.

    Attributes:
        partition_id: The partition that all samples are in.
        task_name: The consumer the batch was made for, or ``None``.
        sample_ids: One unique id per row.
        fields: Columns that are known to exist, or ``None`` when nobody looked.
        sequence_lengths: One length per row, or ``None``.
        extra_info: Facts about the batch as a whole.
        tags: One dictionary of small facts per row (reward, weight version), or ``None``.
    """

    partition_id: str
    task_name: str | None
    sample_ids: list[str]
    fields: list[str] | None = None
    sequence_lengths: list[int] | None = None
    extra_info: dict[str, Any] = field(default_factory=dict[str, Any])
    tags: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        """Refuse what does not line up.

        Raises:
            ValueError: Lengths or tags are not one per sample, or an id or field stands twice.
            TypeError: Ids or fields are one string instead of several.
        """
        _refuse_repeated("sample_ids", self.sample_ids)
        if self.fields is not None:
            _refuse_repeated("fields", self.fields)
        for name, column in (("sequence_lengths", self.sequence_lengths), ("tags", self.tags)):
            if column is not None and len(column) != self.size:
                raise ValueError(
                    f"KVBatchMeta: {name} ({len(column)}) must align 1:1 with sample_ids "
                    f"({self.size})"
                )

    @property
    def size(self) -> int:
        """Number of rows; the seed's ``size``."""
        return len(self.sample_ids)

    def subset(self, indices: Sequence[int]) -> KVBatchMeta:
        """Return the rows at these positions, in this order; the seed's ``subset``.

        Raises:
            IndexError: There is no such position.
            ValueError: A position is given twice.
        """
        return self._with_rows(lambda column: [column[index] for index in indices])

    def slice(self, start: int, stop: int) -> KVBatchMeta:
        """Return the rows from ``start`` up to ``stop``; the seed's ``slice``."""
        return self._with_rows(lambda column: column[start:stop])

    def concat(self, *others: KVBatchMeta) -> KVBatchMeta:
        """Append the rows of ``others``; the seed's ``concat``.

        ``extra_info``, which is about a batch as a whole, stays this meta's own, as in the seed.
        Fields may be in another order; this meta's order is kept.

        Raises:
            ValueError: Partition, task or fields differ, lengths or tags are given on some metas
                only, or a sample is in two of them. Nothing is dropped to make it fit.
        """
        for other in others:
            self._refuse_mismatch(other)
        parts = (self, *others)
        return KVBatchMeta(
            partition_id=self.partition_id,
            task_name=self.task_name,
            sample_ids=[sample_id for part in parts for sample_id in part.sample_ids],
            fields=copied(self.fields),
            sequence_lengths=None
            if self.sequence_lengths is None
            else [length for part in parts for length in part.sequence_lengths or ()],
            extra_info=copied(self.extra_info),
            tags=None
            if self.tags is None
            else [copied(tag) for part in parts for tag in part.tags or ()],
        )

    def drop(self, indices: Sequence[int] | Sequence[str]) -> KVBatchMeta | None:
        """Return the other rows, ``None`` when none is left; the seed's ``drop``.

        Args:
            indices: Positions, as in the seed, or sample ids.

        Raises:
            IndexError: There is no such position.
            ValueError: There is no such sample.
        """
        position_of = {sample_id: index for index, sample_id in enumerate(self.sample_ids)}
        dropped: set[int] = set()
        for row in indices:
            if isinstance(row, str):
                if row not in position_of:
                    raise ValueError(f"KVBatchMeta.drop: there is no sample {row!r}")
                dropped.add(position_of[row])
            else:
                dropped.add(range(self.size)[row])
        kept = [index for index in range(self.size) if index not in dropped]
        return self.subset(kept) if kept else None

    def with_fields(self, field_names: Sequence[str]) -> KVBatchMeta:
        """Return it with more columns known, each once; the seed's ``with_fields``.

        Raises:
            TypeError: One string was given instead of several.
        """
        if isinstance(field_names, str):
            raise TypeError("KVBatchMeta.with_fields: field_names is one string, not several")
        return self._with_rows(
            lambda column: column, fields=list(dict.fromkeys([*(self.fields or ()), *field_names]))
        )

    def stamp_tags(
        self, scalars: Mapping[str, Collection[Any]] | Sequence[Mapping[str, Any]]
    ) -> KVBatchMeta:
        """Return it with these facts added to the tags of its rows.

        The seed's ``stamp_tags`` changes the meta itself instead.

        Args:
            scalars: For each name one value per row (a list or an array), as in the seed, or one
                mapping per row.

        Raises:
            ValueError: Not one value, or one mapping, per row; the message names both numbers.
        """
        tags: list[dict[str, Any]] = copied(self.tags) or [{} for _ in self.sample_ids]
        if isinstance(scalars, Mapping):
            for name, values in scalars.items():
                self._refuse_unaligned(repr(name), len(values))
                for tag, value in zip(tags, values, strict=True):
                    tag[name] = value
        else:
            self._refuse_unaligned("tags", len(scalars))
            for tag, added in zip(tags, scalars, strict=True):
                tag.update(added)
        return self._with_rows(lambda column: column, tags=tags)

    def _with_rows(self, choose: Callable[[list[Any]], list[Any]], **changes: Any) -> KVBatchMeta:
        """Return a copy that keeps the chosen rows, with other fields or tags where given."""
        lengths, tags = self.sequence_lengths, changes.get("tags", self.tags)
        return KVBatchMeta(
            partition_id=self.partition_id,
            task_name=self.task_name,
            sample_ids=list(choose(self.sample_ids)),
            fields=copied(changes.get("fields", self.fields)),
            sequence_lengths=None if lengths is None else list(choose(lengths)),
            extra_info=copied(self.extra_info),
            tags=None if tags is None else copied(choose(tags)),
        )

    def _refuse_mismatch(self, other: KVBatchMeta) -> None:
        for name, mine, theirs in (
            ("partition_id", self.partition_id, other.partition_id),
            ("task_name", self.task_name, other.task_name),
            ("fields", _in_one_order(self.fields), _in_one_order(other.fields)),
        ):
            if mine != theirs:
                raise ValueError(
                    f"KVBatchMeta.concat: {name} must match, but they are {mine!r} and {theirs!r}"
                )
        for name, mine_given, theirs_given in (
            (
                "sequence_lengths",
                self.sequence_lengths is not None,
                other.sequence_lengths is not None,
            ),
            ("tags", self.tags is not None, other.tags is not None),
        ):
            if mine_given != theirs_given:
                raise ValueError(
                    f"KVBatchMeta.concat: either all metas have {name} or none, but only "
                    f"{'the first' if mine_given else 'a later one'} has"
                )

    def _refuse_unaligned(self, name: str, count: int) -> None:
        if count != self.size:
            raise ValueError(
                f"KVBatchMeta.stamp_tags: {name} has {count} values for {self.size} samples"
            )


def _in_one_order(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)


def _refuse_repeated(name: str, values: Sequence[str]) -> None:
    if isinstance(values, str):
        raise TypeError(f"KVBatchMeta: {name} is one string, not several")
    if len(set(values)) != len(values):
        [(value, count)] = Counter(values).most_common(1)
        raise ValueError(f"KVBatchMeta: {name} must be unique, but {value!r} stands {count} times")


def copied(value: object) -> Any:
    """Copy lists and dictionaries all the way down, many times as fast as ``copy.deepcopy``."""
    if type(value) in _IMMUTABLE:
        return value
    return _COPY_CONTAINER.get(type(value), copy.deepcopy)(value)


def _copied_list(items: list[Any]) -> list[Any]:
    return [copied(item) for item in items]


def _copied_dict(items: dict[Any, Any]) -> dict[Any, Any]:
    return {key: copied(item) for key, item in items.items()}


_COPY_CONTAINER: Final[dict[type, Callable[[Any], Any]]] = {
    list: _copied_list,
    dict: _copied_dict,
}
