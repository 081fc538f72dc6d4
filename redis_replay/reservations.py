"""Drafting reservations: the checks at the door, and the script calls made of them."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from redis_replay.selection import validate_version
from redis_replay.types import (
    MAX_GROUP_ID_BYTES,
    MAX_GROUPS_PER_CALL,
    MAX_PROMPT_REF_BYTES,
    Reservation,
)

NO_FENCE: Final = 0
"""Fence of a draft that the store has not given a place yet."""


class ReservationColumns(NamedTuple):
    """Reservations as the scripts take them: one tuple per column, of equal lengths."""

    group_ids: tuple[str, ...]
    weights: tuple[int, ...]
    targets: tuple[str, ...]
    prompt_refs: tuple[bytes, ...]
    replacements: tuple[int, ...]


def draft_reservation(
    weight_version: int,
    *,
    target_step: int | None,
    group_id: str | None,
    prompt_ref: bytes | None,
    replacement_index: int = 0,
) -> Reservation:
    """Check what a reservation is made of; nothing is sent.

    Raises:
        ValueError: a version, step, id or reference outside its limits.
        TypeError: a value of the wrong type.
    """
    validate_version("weight_version", weight_version)
    validate_version("replacement_index", replacement_index)
    if target_step is not None:
        validate_version("target_step", target_step)
    if group_id is None:
        group_id = secrets.token_hex(8)
    validate_group_id(group_id)
    if prompt_ref is not None:
        if not isinstance(prompt_ref, bytes):
            raise TypeError(f"prompt_ref must be bytes, got {type(prompt_ref).__name__}")
        if len(prompt_ref) > MAX_PROMPT_REF_BYTES:
            raise ValueError(
                f"prompt_ref of group {group_id!r} has {len(prompt_ref)} bytes; at most "
                f"{MAX_PROMPT_REF_BYTES} are kept. Store a reference, not the prompt."
            )
    return Reservation(
        group_id, NO_FENCE, weight_version, target_step, 1, prompt_ref, replacement_index
    )


def draft_reservations(
    weight_version: int,
    *,
    count: int,
    target_step: int | None,
    group_ids: Sequence[str] | None,
    prompt_refs: Sequence[bytes | None] | None,
) -> list[Reservation]:
    """Check what a batch of reservations is made of; nothing is sent.

    Raises:
        ValueError: as `draft_reservation`; too few or too many groups; another number of ids or
            references; an id twice.
        TypeError: as `draft_reservation`.
    """
    if not 1 <= count <= MAX_GROUPS_PER_CALL:
        raise ValueError(f"count must be 1 to {MAX_GROUPS_PER_CALL}, got {count}")
    for name, given in (("group_ids", group_ids), ("prompt_refs", prompt_refs)):
        if given is not None and len(given) != count:
            raise ValueError(f"{name} has {len(given)} entries for {count} groups")
    if group_ids is not None and len(set(group_ids)) != count:
        [(repeated, times)] = Counter(group_ids).most_common(1)
        raise ValueError(f"group {repeated!r} is named {times} times in one batch")
    return [
        draft_reservation(
            weight_version,
            target_step=target_step,
            group_id=None if group_ids is None else group_ids[at],
            prompt_ref=None if prompt_refs is None else prompt_refs[at],
        )
        for at in range(count)
    ]


def validate_group_id(group_id: str) -> None:
    """Refuse an id that no record can hold: not text, empty, too long, or lone surrogates.

    Raises:
        TypeError: not text.
        ValueError: empty, over 1,024 UTF-8 bytes, or not encodable.
    """
    if not isinstance(group_id, str):
        raise TypeError(f"group_id must be a str, got {group_id!r}")
    if not group_id:
        raise ValueError("group_id must not be empty")
    try:
        size = len(group_id.encode())
    except UnicodeEncodeError:
        raise ValueError(f"group_id {group_id!r} is not valid Unicode text") from None
    if size > MAX_GROUP_ID_BYTES:
        raise ValueError(
            f"group_id {group_id[:40]!r}... has {size} UTF-8 bytes; at most "
            f"{MAX_GROUP_ID_BYTES} are allowed"
        )


def as_columns(drafts: Sequence[Reservation]) -> ReservationColumns:
    """Return drafts as script arguments; references are marked, so that empty is not none."""
    return ReservationColumns(
        group_ids=tuple(draft.group_id for draft in drafts),
        weights=tuple(draft.weight_version for draft in drafts),
        targets=tuple("" if d.target_step is None else str(d.target_step) for d in drafts),
        prompt_refs=tuple(b"" if d.prompt_ref is None else b"=" + d.prompt_ref for d in drafts),
        replacements=tuple(draft.replacement_index for draft in drafts),
    )


def with_fence(draft: Reservation, fence: int) -> Reservation:
    """Return a draft as the reservation that the store made of it."""
    return replace(draft, fence=fence)
