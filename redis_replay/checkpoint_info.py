"""What is known of a checkpoint, and of a restore; what a checkpoint may be called."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from redis_replay._redis.records import CheckpointRecord
from redis_replay.codec import Value, decode_value, encode_value

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_MOST_EXTRA_BYTES: Final = 64 * 1024

RestoreMode = Literal["all", "prompts_only", "none"]
Incomplete = Literal["keep", "fill", "drop"]


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """What is known of a checkpoint.

    Attributes:
        step: The trainer version that it holds: the step to continue with.
        dispatch_index: The dispatch cursor.
        groups: Live groups by state.
        payload_bytes: Of the live groups.
        seq: The run's mutation that made it, or imported it.
        lineage: The history that it is of; that of another run, if it was imported.
        created_unix_seconds: By the clock of the host that made it.
        pinned: Whether retention leaves it alone.
        digest: Of the copies; empty while it is being made.
        extra: What the caller gave.
        is_complete: Whether it can be restored; not while, or after, its import was cut short.
    """

    name: str
    step: int
    dispatch_index: int
    groups: Mapping[str, int]
    payload_bytes: int
    seq: int
    store_epoch: int
    lineage: str
    schema: int
    created_unix_seconds: float
    pinned: bool
    digest: str
    extra: Any
    is_complete: bool

    @classmethod
    def of(cls, record: CheckpointRecord) -> CheckpointInfo:
        """Return what a record says."""
        return cls(
            name=record.name,
            step=record.trainer_version,
            dispatch_index=record.dispatch_index,
            groups={
                "reserved": record.reserved,
                "ready": record.ready,
                "claimed": record.claimed,
                "quarantined": record.quarantined,
            },
            payload_bytes=record.payload_bytes,
            seq=record.seq,
            store_epoch=record.store_epoch,
            lineage=record.lineage,
            schema=record.schema,
            created_unix_seconds=record.created_ms / 1000,
            pinned=record.pinned,
            digest=record.digest,
            extra=decode_value(record.extra, "extra") if record.extra else None,
            is_complete=record.is_complete,
        )


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore brought back.

    Attributes:
        checkpoint: What was restored.
        ready: Finished groups that are ready, those that were claimed included.
        tickets: Unfinished groups, which wait to be dispatched again.
        quarantined: Groups that were quarantined.
        reopened: Admitted batches that the next dispatcher gets again, to fill them.
        left_out: Groups of incomplete or unwanted batches, ended as removed: id to prompt.
        regenerated: Finished groups whose rows were damaged and that became tickets.
        store_epoch: The run's new store epoch, which refuses every session from before.
    """

    checkpoint: CheckpointInfo
    ready: int
    tickets: int
    quarantined: int
    reopened: int
    left_out: Mapping[str, bytes | None]
    regenerated: Mapping[str, str]
    store_epoch: int


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far an export or an import is.

    Attributes:
        stage: ``check``: the files are read and compared; ``write``: groups are moved.
        done_bytes: Of rows, in this stage.
    """

    stage: Literal["check", "write"]
    done_bytes: int
    total_bytes: int


OnProgress = Callable[[TransferProgress], None]


def require_name(name: str) -> str:
    """Return a checkpoint's name if it may be one.

    Raises:
        ValueError: it is not 1 to 64 letters, digits, ``_``, ``.`` or ``-``, the first no ``.``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"a checkpoint's name is 1 to 64 letters, digits, '_', '.' or '-' and begins with none "
            f"of the last two, got {name!r}"
        )
    return name


def packed_extra(extra: Value) -> bytes:
    """Return a caller's own value as it is stored.

    Raises:
        TypeError: it cannot be stored; the message names its path.
        ValueError: it is over 64 KiB.
    """
    packed = b"" if extra is None else encode_value(extra, "extra")
    if len(packed) > _MOST_EXTRA_BYTES:
        raise ValueError(f"extra has {len(packed)} bytes; at most {_MOST_EXTRA_BYTES} are kept")
    return packed


def new_saved_id() -> str:
    """Return an id that a checkpoint's copies lie under."""
    return secrets.token_hex(8)


def now_ms() -> int:
    """Return this host's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000
