"""Every error this package raises on purpose, as one tree.

::

    ReplayError
    ├── ConfigurationError              what you asked for cannot work; nothing was written
    │   ├── RunMismatch                 the run exists with other settings
    │   ├── RunInUse                    other sessions work on the run
    │   ├── PolicyMismatch              the run is bound to another sampler policy
    │   ├── CapacityTooSmall            the sampler would wait for ever in this capacity
    │   ├── UnsafeServer                the server may drop keys, or the client decodes bytes
    │   └── UnsupportedUrl              no such scheme, or a malformed address
    ├── StoreError                      the server, or what it holds, is not usable
    │   ├── StoreUnavailable            not reachable within the deadline
    │   ├── StoreRefused                the server said no: password, ACL, read-only, disk full
    │   ├── StoreOutOfMemory            maxmemory reached at the first write
    │   ├── StoreMissing                the run is not there
    │   ├── StoreRegressed              acknowledged history is gone
    │   ├── StaleStore                  the run was restored since this session attached
    │   ├── SchemaMismatch              written by an incompatible version of this package
    │   ├── StoreCorrupted              a key or record is not what it must be
    │   ├── StoreClosed                 the store object was closed
    │   ├── ForkedStore                 the store object is a forked process's copy
    │   └── EmbeddedServerError         the private server cannot start, be found or be stopped
    ├── SlotError                       one group is not where the call needs it
    │   ├── UnknownGroup                no live slot under this id
    │   ├── DuplicateGroup              a live slot has this id already
    │   ├── WrongState                  the slot is in another state
    │   ├── StaleAttempt                another attempt owns the slot now
    │   └── PayloadDamaged              rows of a live group cannot be read back
    │       ├── PayloadMissing          the payload is gone
    │       └── PayloadCorrupted        the payload does not match its directory
    ├── AdmissionError                  a dispatch did not happen
    │   ├── BufferFull                  no place for the reservation, by groups or by bytes
    │   ├── AdmissionConflict           cursor, gate or loader moved under the cut
    │   └── CursorConflict              a seed contradicts the stored dispatch cursor
    ├── ClaimError                      training ownership is not as the call assumes
    │   ├── StaleOwner                  this session was expired or replaced
    │   │   └── ClaimLost               a trainer's was: others have its claims
    │   ├── ClaimMismatch               the named claims are not exactly those of this step
    │   ├── StepMismatch                the store's trainer version is another one
    │   ├── UnacknowledgedRanks         not all ranks have acknowledged the batch
    │   ├── TooManyClaims               more groups than one step may hold
    │   ├── StepStarved                 the step lost groups that will never come
    │   └── DataExhausted               the data has ended and no batch is left
    ├── CheckpointError                 a checkpoint cannot be made or used
    │   ├── CheckpointMissing           no such checkpoint
    │   ├── CheckpointExists            the name, or every place, is taken
    │   ├── CheckpointDamaged           it is not what was written
    │   ├── CheckpointMismatch          it does not fit this run
    │   └── ResumeRefused               model and store cannot be brought together
    ├── CallConflict                    a call number was used twice or is too old
    └── CutExpired                      the mutation cut is no longer active (also RuntimeError)

Bad arguments are ``ValueError`` or ``TypeError``. Exceptions of the Redis client never escape.
"""

from __future__ import annotations

from collections.abc import Sequence


class ReplayError(Exception):
    """Root of the tree: catch it to catch everything this package raises on purpose."""


class ConfigurationError(ReplayError):
    """What you asked for cannot work. Change the named setting; nothing was written."""


class RunMismatch(ConfigurationError):
    """The run exists with other settings. Open it with its own, or choose another run name."""


class RunInUse(ConfigurationError):
    """Other sessions work on the run, which would be deleted under them. Nothing was changed."""


class PolicyMismatch(ConfigurationError):
    """The run is bound to another sampler policy. Ask for the switch, or use the stored policy."""


class CapacityTooSmall(ConfigurationError):
    """The sampler needs more places than the run has. Raise ``capacity`` to ``required``."""

    def __init__(self, message: str, *, capacity: int, required: int) -> None:
        super().__init__(message)
        self.capacity = capacity
        self.required = required


class UnsafeServer(ConfigurationError):
    """The server may drop keys, or the client cannot carry bytes. The message names the option."""


class UnsupportedUrl(ConfigurationError):
    """The address has an unknown scheme or is malformed. The message lists what is supported."""


class StoreError(ReplayError):
    """The server, or what it holds, is not usable."""


class StoreUnavailable(StoreError):
    """The server could not be reached within the deadline. Calls may be repeated as they are."""


class StoreRefused(StoreError):
    """The server answered no: wrong password, missing permission, read-only, disk full."""


class StoreOutOfMemory(StoreError):
    """The server is at its memory limit; nothing of this call was written. Free or add memory."""


class StoreMissing(StoreError):
    """The run is not on this server. It is never created silently in the middle of a run."""


class StoreRegressed(StoreError):
    """The server lost acknowledged history (failover, truncated log). Reconcile, then reopen."""


class StaleStore(StoreError):
    """The run was restored since this session attached. Reopen the store."""


class SchemaMismatch(StoreError):
    """The run was written by an incompatible version of this package. The message names both."""


class StoreCorrupted(StoreError):
    """A key or a record is not what it must be; nothing was written. Run the audit."""


class StoreClosed(StoreError):
    """The store or session was closed while, or before, this call ran."""


class ForkedStore(StoreError):
    """The store was opened by the process that this one was forked from. Open one in this process.

    The store of the parent, its sessions and what they hold are as they were.
    """


class EmbeddedServerError(StoreError):
    """The private server cannot be started, found or stopped. The message says what is missing."""


class SlotError(ReplayError):
    """One group is not where the call needs it. ``group_id`` names it."""

    def __init__(self, message: str, *, group_id: str | None = None) -> None:
        super().__init__(message)
        self.group_id = group_id


class UnknownGroup(SlotError):
    """No live slot has this id: never reserved, or trained, evicted, aborted or removed since."""


class DuplicateGroup(SlotError):
    """A live slot has this id already; it was not touched. Use a fresh id (or none)."""


class WrongState(SlotError):
    """The slot is live but in another state than this verb needs. ``state`` names it."""

    def __init__(self, message: str, *, group_id: str | None = None, state: str = "") -> None:
        super().__init__(message, group_id=group_id)
        self.state = state


class StaleAttempt(SlotError):
    """The slot was given to another attempt since. Drop this result; the other one counts."""


class PayloadDamaged(SlotError):
    """Rows of a live group cannot be read back; they are never returned.

    Attributes:
        field: The column that is damaged, where that is known.
        row: The row of it, where that is known.
        quarantined: Groups that this call took out of training for it; read the rest of the batch.
    """

    def __init__(
        self,
        message: str,
        *,
        group_id: str | None = None,
        field: str | None = None,
        row: int | None = None,
        quarantined: Sequence[str] = (),
    ) -> None:
        super().__init__(message, group_id=group_id)
        self.field = field
        self.row = row
        self.quarantined = tuple(quarantined)


class PayloadMissing(PayloadDamaged):
    """The payload of a live group is gone from the server."""


class PayloadCorrupted(PayloadDamaged):
    """The payload fails its checksum or does not fit its directory."""


class AdmissionError(ReplayError):
    """A dispatch did not happen; nothing was recorded."""


class BufferFull(AdmissionError):
    """No place for the reservation. ``capacity`` and ``occupancy`` are in ``unit``."""

    def __init__(self, message: str, *, capacity: int, occupancy: int, unit: str) -> None:
        super().__init__(message)
        self.capacity = capacity
        self.occupancy = occupancy
        self.unit = unit


class AdmissionConflict(AdmissionError):
    """Cursor, gate or loader moved since the cut was opened; nothing was applied. Try again."""


class CursorConflict(AdmissionError):
    """A seed contradicts the stored dispatch cursor, which is the truth. Both are attributes."""

    def __init__(self, message: str, *, requested: int, stored: int) -> None:
        super().__init__(message)
        self.requested = requested
        self.stored = stored


class ClaimError(ReplayError):
    """Training ownership is not as the call assumes; nothing was changed."""


class StaleOwner(ClaimError):
    """This session was expired, taken over or detached. Attach again; its work was given back."""


class ClaimLost(StaleOwner):
    """This trainer session was silent for its lease, or another took over. Nothing was changed.

    Every later call of the session raises it too. Drop what it has trained since its last step: the
    groups are ready again, or another trainer's. Attach again, with the model of the store's
    trainer version.
    """


class ClaimMismatch(ClaimError):
    """The named claims are not exactly those this step owns. Nothing was released."""

    def __init__(
        self, message: str, *, unknown: Sequence[str] = (), missing: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.unknown = tuple(unknown)
        self.missing = tuple(missing)


class StepMismatch(ClaimError):
    """The step is not the store's trainer version. ``step`` and ``trainer_version`` name both."""

    def __init__(self, message: str, *, step: int, trainer_version: int) -> None:
        super().__init__(message)
        self.step = step
        self.trainer_version = trainer_version


class UnacknowledgedRanks(ClaimError):
    """Not all ranks have acknowledged the batch. ``ranks`` lists who is missing."""

    def __init__(self, message: str, *, ranks: Sequence[int]) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class TooManyClaims(ClaimError):
    """A step would hold more groups than one script may settle. Commit or requeue first."""


class StepStarved(ClaimError):
    """A step cannot have enough groups any more, or did not have them in time. ``target`` has all
    numbers.

    Lower ``min_batch_fraction``, reserve replacements, or close the step with ``skip_step``.
    """

    def __init__(self, message: str, *, target: object) -> None:
        super().__init__(message)
        self.target = target


class DataExhausted(ClaimError):
    """The data has ended and no batch is left: the run is over. Nothing was claimed.

    Attributes:
        left_over: Ready groups that are no batch: a tail that is not wanted, or not eligible.
    """

    def __init__(self, message: str, *, left_over: int) -> None:
        super().__init__(message)
        self.left_over = left_over


class CheckpointError(ReplayError):
    """A checkpoint cannot be made or used; nothing was changed. ``name`` names it."""

    def __init__(self, message: str, *, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class CheckpointMissing(CheckpointError):
    """The run has no checkpoint of this name. The message says which it has, or where to look."""


class CheckpointExists(CheckpointError):
    """The name is taken, or the run keeps as many checkpoints as it can. Drop one, or rename."""


class CheckpointDamaged(CheckpointError):
    """The checkpoint or its file is not what was written. The message says what is wrong."""


class CheckpointMismatch(CheckpointError):
    """The checkpoint does not fit the run: both values are in the message, and the way out."""


class ResumeRefused(CheckpointError):
    """Model and store cannot be brought together. The message has both steps and the ways out."""


class CallConflict(ReplayError):
    """A call number was used for two different calls, or its answer is no longer kept."""


class CutExpired(ReplayError, RuntimeError):
    """The mutation cut is no longer active; nothing was recorded. Open a new one."""
