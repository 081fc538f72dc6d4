"""Refusal codes of the scripts, and the error each becomes.

A refusal is data: the script wrote nothing. The table is complete against the scripts' headers,
held by a house test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from redis_replay import errors
from redis_replay._redis.records import ControlRecord, unpack_items

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A script's no: its code, the control record where it could be read, and what it names."""

    code: str
    control: ControlRecord | None
    details: tuple[bytes, ...]

    def __getitem__(self, at: int) -> str:
        return self.details[at].decode()

    @property
    def error(self) -> Exception:
        """The error to raise for it."""
        return REFUSALS[self.code](self)


Builder = Callable[[Refusal], Exception]


def _plain(kind: type[errors.ReplayError], text: str) -> Builder:
    return lambda r: kind(text.format(*(item.decode() for item in r.details)))


def _slot(kind: type[errors.SlotError], text: str) -> Builder:
    return lambda r: kind(text.format(*(item.decode() for item in r.details)), group_id=r[0])


def _full(unit: str, what: str) -> Builder:
    def build(r: Refusal) -> Exception:
        more = f" and {r[2]} more were asked for" if r.details[2:] and r[2] != "0" else ""
        return errors.BufferFull(
            f"the buffer is full: {r[1]} of {r[0]} {what} are taken{more}. Wait with "
            "reserve_when_free, or raise the capacity.",
            capacity=int(r[0]),
            occupancy=int(r[1]),
            unit=unit,
        )

    return build


def _wrong_state(r: Refusal) -> Exception:
    return errors.WrongState(
        f"group {r[0]!r} is {r[1]}, and this verb does not touch {r[1]} groups",
        group_id=r[0],
        state=r[1],
    )


def _mismatch(r: Refusal) -> Exception:
    unknown, missing = (
        [item.decode() for item in unpack_items(packed)] for packed in r.details[:2]
    )
    return errors.ClaimMismatch(
        f"the claims of this session are others: not owned here {unknown}, owned but not named "
        f"{missing}; nothing was changed",
        unknown=unknown,
        missing=missing,
    )


def _capacity(r: Refusal) -> Exception:
    return errors.CapacityTooSmall(
        f"the run has a capacity of {r[0]} groups and its sampler needs {r[1]}; with less, "
        f"dispatch would wait for ever. Open the run with capacity={r[1]} or more.",
        capacity=int(r[0]),
        required=int(r[1]),
    )


def _cursor(r: Refusal) -> Exception:
    stored = r.control.dispatch_index if r.control else -1
    return errors.CursorConflict(
        f"the run has admitted up to dispatch index {stored}, which is the truth; it cannot be "
        f"restored to {r[0]}",
        requested=int(r[0]),
        stored=stored,
    )


def _step(r: Refusal) -> Exception:
    version = r.control.trainer_version if r.control else -1
    return errors.StepMismatch(
        f"step {r[0]} cannot be committed: the store's trainer version is {version}. Load "
        f"the model of step {version} and train that step.",
        step=int(r[0]),
        trainer_version=version,
    )


def _version(r: Refusal) -> Exception:
    return ValueError(
        f"group {r[0]!r} was reserved with weight version {r[1]}, and start_weight_version "
        f"{r[2]} is not it (a larger one is for a redispatched group only)"
    )


def _passed(r: Refusal) -> Exception:
    version = r.control.trainer_version if r.control else -1
    return ValueError(f"step {r[0]} has passed: the trainer version is {version}")


def _checkpoint(kind: type[errors.CheckpointError], text: str) -> Builder:
    return lambda r: kind(
        text.format(*(item.decode() for item in r.details)), name=r[0] if r.details else ""
    )


def _absent_ranks(r: Refusal) -> Exception:
    ranks = [int(rank) for rank in r.details[1:]]
    return errors.UnacknowledgedRanks(
        f"batch {r[0]} waits for the acknowledgement of ranks {ranks}; nothing was settled",
        ranks=ranks,
    )


REFUSALS: Final[Mapping[str, Builder]] = {
    "MISSING": _plain(
        errors.StoreMissing,
        "the run is not on this server any more (flushed, or restarted empty); nothing was created",
    ),
    "SCHEMA": _plain(
        errors.SchemaMismatch, "the run needs a writer of schema {0} or newer than this package's"
    ),
    "LINEAGE": _plain(
        errors.StoreRegressed,
        "the run's history is another one now (lineage {0}); reopen the store",
    ),
    "REGRESSED": _plain(
        errors.StoreRegressed,
        "the server is at mutation {0} after mutation {1} had been acknowledged: it lost history; "
        "nothing was written. Reopen the store and reconcile.",
    ),
    "STALE_STORE": _plain(
        errors.StaleStore, "the run was restored (store epoch {0}); this session must reopen it"
    ),
    "REUSED": _plain(
        errors.CallConflict, "one call number was used for two different calls of a session"
    ),
    "EXPIRED": _plain(
        errors.CallConflict, "the answer to this call is no longer kept (call {0} came after it)"
    ),
    "FENCED": _plain(
        errors.StaleOwner,
        "this session has ended: it was silent for a lease, detached, or replaced under its name. "
        "Its groups were given back; attach again.",
    ),
    "CORRUPT": _plain(
        errors.StoreCorrupted,
        "group {0!r} is listed in a sorted set that does not fit its record; nothing was written. "
        "Run the audit.",
    ),
    "UNKNOWN": _slot(
        errors.UnknownGroup,
        "group {0!r} has no live slot: it was never reserved, or was trained, evicted, aborted or "
        "removed since",
    ),
    "STATE": _wrong_state,
    "DUPLICATE": _slot(
        errors.DuplicateGroup, "group {0!r} is live already; it was not touched. Use a fresh id."
    ),
    "ATTEMPT": _slot(
        errors.StaleAttempt,
        "group {0!r} belongs to another attempt now (attempt {1}); this result was not stored",
    ),
    "VERSION": _version,
    "PAYLOAD": _slot(
        errors.PayloadMissing,
        "the payload of group {0!r} has {2} of {1} bytes on the server; the group stays reserved",
    ),
    "TALLY": lambda r: ValueError(
        f"the rewards of group {r[0]!r} are too large to be added to those of step {r[1]}: their "
        "sum would be beyond a float64; nothing was changed"
    ),
    "FULL": _full("groups", "places"),
    "FULL_BYTES": _full("bytes", "payload bytes"),
    "GATE": _plain(errors.AdmissionConflict, "the admission gate is closed"),
    "CONFLICT": _plain(
        errors.AdmissionConflict,
        "the {0} moved since the cut was opened (now {1}); nothing was applied. Open a new cut.",
    ),
    "CURSOR": _cursor,
    "CAPACITY": _capacity,
    "POLICY": _plain(
        errors.PolicyMismatch,
        "the run is bound to the policy {0!r}; pass switch_policy=True to open_store to change it",
    ),
    "POLICY_LIVE": _plain(
        errors.PolicyMismatch,
        "the run is bound to {0!r} and holds {1} groups; a switch to or from 'in_order' needs them "
        "dropped or restamped first",
    ),
    "ALIVE": _plain(errors.ClaimError, "the session is alive (heartbeat {0}); it was not ended"),
    "TOO_MANY": _plain(
        errors.TooManyClaims,
        "the session holds {0} claims and would take {1} more; a step settles at most {2}. Commit "
        "or requeue first, or select fewer.",
    ),
    "STEP": _step,
    "MISMATCH": _mismatch,
    "NOTHING": _plain(
        errors.ClaimMismatch,
        "this session holds no claims, so there is no step to commit; use skip_step to "
        "close a step without training",
    ),
    "ACKS": _absent_ranks,
    "BATCH": _plain(
        errors.ClaimMismatch, "batch {0} is not a live claim of this trainer and epoch"
    ),
    "RECEIVER": _plain(errors.ClaimError, "no live session has the owner name {0!r}"),
    "PASSED": _passed,
    "DATASET": _plain(
        errors.RunMismatch,
        "the run's loader position belongs to the dataset {0!r}, asked was {1!r}; another host may "
        "have changed it. Open the run again.",
    ),
    "NO_CHECKPOINT": _checkpoint(
        errors.CheckpointMissing, "the run has no checkpoint {0!r}; list() names those it has"
    ),
    "CHECKPOINT_EXISTS": _checkpoint(
        errors.CheckpointExists,
        "the run has a checkpoint {0!r} already; choose another name, drop it, or pass "
        "replace=True",
    ),
    "CHECKPOINTS_FULL": _plain(
        errors.CheckpointExists,
        "the run keeps {0} checkpoints, the most it can; nothing was done. Drop some first; with "
        "keep= each new one drops older ones after it.",
    ),
    "CHECKPOINT_BUILDING": _checkpoint(
        errors.CheckpointDamaged,
        "checkpoint {0!r} is {1}, not complete: its import never ended. Import it again.",
    ),
    "CHECKPOINT_DAMAGED": _checkpoint(
        errors.CheckpointDamaged,
        "the control record of checkpoint {0!r} is not whole; nothing was changed",
    ),
    "CHECKPOINT_SETTINGS": _plain(
        errors.CheckpointMismatch,
        "the checkpoint was made with {0} {1} and the run has {2}; nothing was changed. Restore it "
        "into a run with {0}={1}.",
    ),
    "CHECKPOINT_CAPACITY": _plain(
        errors.CheckpointMismatch,
        "the checkpoint holds {1} groups and the run has a capacity of {0}; nothing was changed. "
        "Open the run with capacity={1} or more, or restore with incomplete='drop'.",
    ),
    "CHECKPOINT_STEPS": _plain(
        errors.CheckpointMismatch,
        "which batches are incomplete is not known: the run was opened without groups_per_step",
    ),
    "SELECTED": _plain(
        errors.CheckpointError,
        "groups that a sampler without training claims has selected are being trained: a "
        "checkpoint would hold them neither in its buffer nor in a model, so none was made and "
        "nothing was changed. Make it when their step is committed.",
    ),
    "IN_USE": _plain(
        errors.RunInUse,
        "the {1} session {0!r} works on the run, so it is not deleted; nothing was changed. Close "
        "it, or end it by its lease; force=True deletes the run all the same.",
    ),
    "CHECKPOINTS_MOVED": _plain(
        errors.CheckpointMissing, "the run's checkpoints changed meanwhile; look again"
    ),
}


def accept(reply: R | Refusal) -> R:
    """Return the reply, or raise the error of a refusal."""
    if isinstance(reply, Refusal):
        raise reply.error
    return reply
