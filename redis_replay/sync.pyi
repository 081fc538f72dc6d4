"""The blocking API as type checkers see it; written by scripts/sync_stub.py."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol

from redis_replay import AuditReport as AuditReport
from redis_replay import BaseSampler as BaseSampler
from redis_replay import Bookmark as Bookmark
from redis_replay import BufferStats as BufferStats
from redis_replay import CheckpointInfo as CheckpointInfo
from redis_replay import CheckpointVerification as CheckpointVerification
from redis_replay import Completion as Completion
from redis_replay import CustomSamplerConfig as CustomSamplerConfig
from redis_replay import DynamicSampling as DynamicSampling
from redis_replay import Eviction as Eviction
from redis_replay import ExportReport as ExportReport
from redis_replay import FieldOptions as FieldOptions
from redis_replay import FilterOutcome as FilterOutcome
from redis_replay import GroupState as GroupState
from redis_replay import InOrderSamplerConfig as InOrderSamplerConfig
from redis_replay import KVBatchMeta as KVBatchMeta
from redis_replay import PolicyPreview as PolicyPreview
from redis_replay import PromptGroupRecord as PromptGroupRecord
from redis_replay import ReadyFirstSamplerConfig as ReadyFirstSamplerConfig
from redis_replay import Replacement as Replacement
from redis_replay import ReplayError as ReplayError
from redis_replay import Reservation as Reservation
from redis_replay import RestoreReport as RestoreReport
from redis_replay import ResumeReport as ResumeReport
from redis_replay import Rule as Rule
from redis_replay import SamplerConfig as SamplerConfig
from redis_replay import Selection as Selection
from redis_replay import SlotView as SlotView
from redis_replay import StepCommit as StepCommit
from redis_replay import StepRewardStats as StepRewardStats
from redis_replay import StepTarget as StepTarget
from redis_replay import TransferProgress as TransferProgress
from redis_replay import Violation as Violation
from redis_replay import WeightFifoSamplerConfig as WeightFifoSamplerConfig
from redis_replay import WindowedSamplerConfig as WindowedSamplerConfig
from redis_replay import __version__ as __version__
from redis_replay import drain_step_reward_metrics as drain_step_reward_metrics
from redis_replay import errors as errors
from redis_replay import lag_metrics as lag_metrics
from redis_replay import mask_sample_flagged as mask_sample_flagged
from redis_replay import participating_rewards as participating_rewards
from redis_replay import record_group_rewards as record_group_rewards
from redis_replay import required_buffer_capacity_for_config as required_buffer_capacity_for_config
from redis_replay import rewards_carry_no_signal as rewards_carry_no_signal
from redis_replay import sampler_supports_buffer_checkpoint as sampler_supports_buffer_checkpoint
from redis_replay import sampler_supports_training_claims as sampler_supports_training_claims
from redis_replay._redis.gateway import TransferWay
from redis_replay._redis.records import CheckpointRecord
from redis_replay.attachment import Attachment
from redis_replay.buffer import Rows
from redis_replay.checkpoint_info import Incomplete, OnProgress, RestoreMode
from redis_replay.codec import Value
from redis_replay.end_of_data import Tail
from redis_replay.forms import ArrayForm
from redis_replay.group_reads import Row
from redis_replay.protocols import LiveCut
from redis_replay.run import OpenedRun
from redis_replay.samplers.trust import Trust
from redis_replay.trainer import OnDropped

__all__ = [
    "AuditReport",
    "BaseSampler",
    "Bookmark",
    "BufferStats",
    "CheckpointInfo",
    "CheckpointVerification",
    "Checkpoints",
    "Completion",
    "CustomSamplerConfig",
    "DataPlaneMutationCut",
    "DynamicSampling",
    "Eviction",
    "ExportReport",
    "FieldOptions",
    "FilterOutcome",
    "GroupFilter",
    "GroupState",
    "InOrderSampler",
    "InOrderSamplerConfig",
    "KVBatchMeta",
    "PolicyPreview",
    "PromptGroupRecord",
    "PromptGroupSampler",
    "ReadyFirstSampler",
    "ReadyFirstSamplerConfig",
    "RedisReplayBuffer",
    "Replacement",
    "ReplayError",
    "ReplayStore",
    "Reservation",
    "RestoreReport",
    "ResumeReport",
    "RolloutSession",
    "Rule",
    "SamplePlane",
    "SamplerConfig",
    "Selection",
    "SlotView",
    "StepCommit",
    "StepRewardStats",
    "StepTarget",
    "TrainerRank",
    "TrainerSession",
    "TransactionalAdmissionSampler",
    "TransferProgress",
    "Violation",
    "WeightFifoSampler",
    "WeightFifoSamplerConfig",
    "WindowedSampler",
    "WindowedSamplerConfig",
    "__version__",
    "create_sampler",
    "drain_step_reward_metrics",
    "errors",
    "lag_metrics",
    "mask_sample_flagged",
    "open_store",
    "participating_rewards",
    "record_group_rewards",
    "required_buffer_capacity_for_config",
    "rewards_carry_no_signal",
    "sampler_supports_buffer_checkpoint",
    "sampler_supports_training_claims",
]

class Checkpoints:
    """The checkpoints of one run. `ReplayStore.checkpoints`."""
    def require_sampler(self, cfg: SamplerConfig | Mapping[str, object]) -> None:
        """Return if checkpoints may be kept and restored under a sampler. Sends nothing."""
    def create(
        self,
        name: str,
        *,
        step: int | None = None,
        extra: Value = None,
        pin: bool = False,
        replace: bool = False,
        keep: int | None = None,
    ) -> CheckpointInfo:
        """Keep the run as it is at this instant under a name."""
    def finish(self, name: str, *, keep: int | None = None) -> None:
        """Write the digest of a checkpoint that `commit_step` made, and drop what is too old."""
    def list(self) -> Sequence[CheckpointInfo]:
        """Return all checkpoints, oldest first. A pure read."""
    def show(self, name: str) -> CheckpointInfo:
        """Return one checkpoint. A pure read."""
    def pin(self, name: str) -> CheckpointInfo:
        """Have retention leave a checkpoint alone. May be repeated."""
    def unpin(self, name: str) -> CheckpointInfo:
        """Undo `pin`. May be repeated."""
    def drop(self, name: str) -> int:
        """Forget a checkpoint and free what nothing else needs. May be repeated after a
        failure."""
    def verify(self, name: str, *, deep: bool = False) -> CheckpointVerification:
        """Check a checkpoint's digest and that the rows it refers to are all there. A pure
        read."""
    def export(
        self, name: str, path: str | Path, *, on_progress: OnProgress | None = None
    ) -> ExportReport:
        """Write a checkpoint to a folder, beside a run that goes on. May be repeated."""
    def import_(
        self, path: str | Path, *, name: str | None = None, on_progress: OnProgress | None = None
    ) -> CheckpointInfo:
        """Bring an exported checkpoint into this run, whichever run and server it is of."""
    def restore(
        self,
        name: str,
        *,
        mode: RestoreMode = "all",
        incomplete: Incomplete = "keep",
        regenerate_damaged: bool = False,
    ) -> RestoreReport:
        """Make the run what it was when the checkpoint was taken; newer groups are dropped."""
    def reopen(self) -> str | None:
        """Go on after a restore of this store that got no answer, if it was applied."""
    def record(self, name: str) -> CheckpointRecord:
        """Return a checkpoint's record."""

class DataPlaneMutationCut:
    """One unit of work; ``with store.mutation() as cut``."""
    def __init__(self, buffer: RedisReplayBuffer) -> None: ...
    def require_live(self) -> None:
        """Return if the cut still records."""
    @property
    def dispatch_index(self) -> int:
        """The dispatch cursor as the cut was opened with it."""
    @property
    def loader_state(self) -> bytes | None:
        """The loader state as the cut was opened with it, ``None`` when none was ever set."""
    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The reservations with their fences, after the block has ended."""
    def record_admission(self, *, seen_version: int) -> int:
        """Record the advance of the dispatch cursor and return the admitted index."""
    def reserve(
        self,
        weight_version: int,
        *,
        target_step: int | None = None,
        group_id: str | None = None,
        prompt_ref: bytes | None = None,
        replacement_index: int = 0,
    ) -> str:
        """Record a reservation and return its group id; arguments as
        `RedisReplayBuffer.reserve`."""
    @property
    def is_exhausted(self) -> bool:
        """Whether the data had ended, as the cut was opened."""
    def set_loader_state(self, state: bytes, *, exhausted: bool = False) -> None:
        """Record the data loader's position; it conflicts if somebody moved it since."""
    def __enter__(self) -> DataPlaneMutationCut: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class GroupFilter:
    """Commits of one session under one filter: ``rollout.filter(DynamicSampling(...))``."""

    buffer: RedisReplayBuffer
    settings: DynamicSampling
    def commit(
        self,
        group_id: str,
        record: PromptGroupRecord,
        *,
        start_weight_version: int,
        end_weight_version: int,
        fence: int | None = None,
        replacement: Replacement | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
    ) -> FilterOutcome:
        """Store a group that carries signal, else end it as filtered."""
    def fail(
        self,
        group_id: str,
        *,
        reason: str = "failed",
        fence: int | None = None,
        replacement: Replacement | None = None,
    ) -> FilterOutcome:
        """End a group whose rollout failed for good, and reserve a replacement where asked."""
    def __init__(self, buffer: RedisReplayBuffer, settings: DynamicSampling) -> None: ...

class InOrderSampler:
    """The batch of the current step, exactly."""

    supports_buffer_checkpoint: ClassVar[bool]
    supports_training_claims: ClassVar[bool]
    def __init__(
        self,
        buffer: RedisReplayBuffer,
        *,
        max_lookahead_versions: int,
        warmup_lookahead_versions: int | None = None,
    ) -> None: ...
    def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Wait for the gate, advance the cursor by exactly one and return the stamp."""
    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch, as of the newest reply this process has seen."""
    def set_dispatch_index(self, resume_from_trainer_version: int) -> None:
        """Seed the cursor of a run that never admitted: the next batch gets this index."""
    def restore_dispatch_index(self, dispatch_index: int) -> None:
        """Seed the exact cursor; `flush` raises `CursorConflict` where the run holds another."""
    def refresh(self) -> None:
        """Read the control record, so that the synchronous readers are current."""
    def flush(self) -> None:
        """Write what setters staged, and bind the policy at the first call. May be repeated."""
    def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim groups stamped for the current step."""
    def evict(self, *, current_train_weight: int) -> int:
        """Drop ready groups of passed steps; return how many."""
    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether an unfinished rollout can no longer be selected."""
    @property
    def is_on_policy(self) -> bool:
        """Whether the live gate window is 0."""
    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return places for one live batch plus each lookahead batch."""
    @property
    def gate_window(self) -> int:
        """The window in force: staged here, else as stored, else as configured."""
    def set_gate_window(self, gate_window: int) -> None:
        """Retune the live window for every dispatcher; written before the next awaited call."""
    def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Wait until the gate is open; changes nothing and may be cancelled at any instant."""
    def commit_admission(self, cut: LiveCut) -> int | None:
        """Record the advance in a live cut and return the stamp (synchronous)."""
    max_lookahead_versions: int
    warmup_lookahead_versions: int | None
    peak_lookahead_versions: int

class PromptGroupSampler(Protocol):
    """Staleness policy shared by the rollout hosts and the trainer of a run."""

    supports_buffer_checkpoint: ClassVar[bool]
    def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Block until the next prompt batch may dispatch, then advance the cursor by one."""
    def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim up to ``max_prompt_groups`` eligible groups for training; never wait."""
    def evict(self, *, current_train_weight: int) -> int:
        """Drop ready groups that can never be selected again; return how many."""
    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether an unfinished rollout can no longer be selected."""
    @property
    def is_on_policy(self) -> bool:
        """Whether the policy admits no staleness at all."""
    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return the places the policy needs, in groups, or ``None`` if any number will do."""
    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch, ``-1`` before the first."""
    def set_dispatch_index(self, resume_from_trainer_version: int) -> None:
        """Resume from a trainer version: the next admitted batch gets this index."""
    def restore_dispatch_index(self, dispatch_index: int) -> None:
        """Set the exact cursor, before the first admission."""

class ReadyFirstSampler:
    """Whatever is ready first, of any past version."""

    supports_buffer_checkpoint: ClassVar[bool]
    supports_training_claims: ClassVar[bool]
    def __init__(self, buffer: RedisReplayBuffer, *, max_staleness_versions: int) -> None: ...
    def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Wait for the gate, advance the cursor by exactly one and return the stamp."""
    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch, as of the newest reply this process has seen."""
    def set_dispatch_index(self, resume_from_trainer_version: int) -> None:
        """Seed the cursor of a run that never admitted: the next batch gets this index."""
    def restore_dispatch_index(self, dispatch_index: int) -> None:
        """Seed the exact cursor; `flush` raises `CursorConflict` where the run holds another."""
    def refresh(self) -> None:
        """Read the control record, so that the synchronous readers are current."""
    def flush(self) -> None:
        """Write what setters staged, and bind the policy at the first call. May be repeated."""
    def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim ready groups in buffer order, those from the future excepted."""
    def evict(self, *, current_train_weight: int) -> int:
        """Drop nothing."""
    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether an unfinished rollout can no longer be selected."""
    @property
    def is_on_policy(self) -> bool:
        """Whether the window is 0."""
    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return places for one live batch plus each lookahead batch."""
    @property
    def gate_window(self) -> int:
        """The window in force: staged here, else as stored, else as configured."""
    def set_gate_window(self, gate_window: int) -> None:
        """Retune the live window for every dispatcher; written before the next awaited call."""
    def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Wait until the gate is open; changes nothing and may be cancelled at any instant."""
    def commit_admission(self, cut: LiveCut) -> int | None:
        """Record the advance in a live cut and return the stamp (synchronous)."""
    max_staleness_versions: int

class RedisReplayBuffer:
    """The slots of one run and partition as a session sees and changes them."""

    session: Any
    claims: Any
    admission: Any
    holdings: Any
    commits: Any
    selections: Any
    @property
    def partition_id(self) -> str:
        """The partition of all its groups."""
    def remember_sampler(self, trust: Trust) -> None:
        """Know a sampler that works on this buffer, for what it must be trusted with."""
    def selecting_for_good(self) -> RedisReplayBuffer:
        """Return this buffer for a sampler without training claims; `Selections`."""
    def reserve(
        self,
        weight_version: int,
        *,
        target_step: int | None = None,
        group_id: str | None = None,
        prompt_ref: bytes | None = None,
        replacement_index: int = 0,
    ) -> Reservation:
        """Give a new group a place in the buffer."""
    def reserve_many(
        self,
        weight_version: int,
        *,
        count: int,
        target_step: int | None = None,
        group_ids: Sequence[str] | None = None,
        prompt_refs: Sequence[bytes | None] | None = None,
    ) -> list[Reservation]:
        """Give a batch of new groups places in the buffer, all or none, in one script."""
    def reserve_when_free(
        self,
        weight_version: int,
        *,
        target_step: int | None = None,
        group_id: str | None = None,
        prompt_ref: bytes | None = None,
        replacement_index: int = 0,
    ) -> Reservation:
        """Wait until there is a place, then `reserve`. Cancelled, it holds nothing."""
    def take_tickets(self, *, max_tickets: int, weight_version: int) -> list[Reservation]:
        """Take redispatch tickets: reserved groups whose holder is gone, in buffer order."""
    def commit(
        self,
        group_id: str,
        record_or_rows: Rows | PromptGroupRecord,
        *,
        start_weight_version: int,
        end_weight_version: int,
        fence: int | None = None,
        tags: Sequence[Mapping[str, Any]] | None = None,
        rollout_metrics: Mapping[str, Any] | None = None,
        zero_variance: bool | None = None,
    ) -> None:
        """Store a finished group and make it ready. Never waits for a place: it has one."""
    def abort(self, group_id: str, *, fence: int | None = None, reason: str = "aborted") -> None:
        """End a reserved group whose rollout will not finish; its place is free at once."""
    def remove(self, group_ids: Sequence[str], *, reason: str = "removed") -> int:
        """Take reserved, ready or quarantined groups out of the buffer, all or none."""
    def remove_group(self, group_id: str, *, reason: str = "removed") -> None:
        """`remove` for one group."""
    def evict(self, eviction: Eviction) -> int:
        """Drop the ready groups an eviction names and free their payload; return how many."""
    def claim(self, selection: Selection) -> tuple[KVBatchMeta | None, int]:
        """Claim what a policy's rule picks; `Claims.claim`."""
    def claim_for_training(self, group_ids: Sequence[str]) -> KVBatchMeta:
        """Claim named ready groups, all or none, in the order given; `Claims.claim_exactly`."""
    def training_owned_group_ids(self) -> list[str]:
        """Return the groups this session has claimed and not settled, in buffer order."""
    def training_owned_replay_groups(self) -> list[KVBatchMeta]:
        """Return the metas of the groups this session has claimed, one each, in buffer order."""
    def release_training_claims(self, group_ids: Sequence[str]) -> None:
        """Consume exactly the named claims, which must be all that this session owns."""
    def requeue(self, group_ids: Sequence[str]) -> int:
        """Give claimed groups back untrained; `Claims.requeue`. No attempt is counted."""
    def quarantine(self, group_ids: Sequence[str], *, reason: str = "quarantined") -> int:
        """Take ready or own claimed groups out of training; `Claims.quarantine`."""
    def reinstate(self, group_ids: Sequence[str]) -> int:
        """Bring quarantined groups back to be trained or generated; `Claims.reinstate`."""
    def promote_ready_group(self, *, to_target_step: int) -> int | None:
        """Lend a ready group of the furthest later step to a step; return the step it came
        from."""
    def count_for_target_step(self, step: int) -> int:
        """Return how many groups are reserved, ready or claimed for a target step. A pure
        read."""
    def size(self) -> int:
        """Return how many groups hold a place: reserved, ready and claimed. A pure read."""
    def stats(self) -> BufferStats:
        """Return live counts and totals, read in one instant."""
    def rewards(self, group_ids: Sequence[str]) -> list[tuple[float, ...] | None]:
        """Return the rewards of groups in the order given, one per sample. A pure read."""
    def slots(self) -> list[SlotView]:
        """Return a view of every live slot in buffer order, read in one instant."""

class ReplayStore:
    """An opened run. Use it as an async context manager, in one task; its objects may be
    shared between tasks, not between processes: a fork's copy raises `ForkedStore`.
    Stores that one task opens are closed in the reverse order, as nested ``with``
    blocks do."""

    buffer: RedisReplayBuffer
    samples: SamplePlane
    checkpoints: Checkpoints
    def discard(self, *, force: bool = False) -> None:
        """Delete the run with its checkpoints and payload, and close the store. Not to be
        undone."""
    def close(self) -> None:
        """Wake waiters, give back what the sessions hold, finish calls under way. Repeatable."""
    def trainer(
        self,
        *,
        owner: str,
        world: int = 1,
        lease_seconds: float = 120.0,
        takeover: bool = False,
        on_dropped: OnDropped = "shrink",
        min_batch_fraction: float = 1.0,
        tail: Tail = "train",
    ) -> TrainerSession:
        """Return a trainer session: ``with store.trainer(owner="job-7") as trainer``."""
    def trainer_rank(self, *, owner: str, epoch: int, rank: int) -> TrainerRank:
        """Return a rank of a trainer group, joined with the owner and epoch that its leader
        broadcast."""
    def rollout(
        self, *, owner: str, lease_seconds: float = 60.0, takeover: bool = False
    ) -> RolloutSession:
        """Return a rollout session: ``with store.rollout(owner="host-3") as rollout``."""
    def mutation(self) -> DataPlaneMutationCut:
        """Return a mutation cut of the implicit session; sessions have their own
        ``mutation()``."""
    @property
    def run(self) -> OpenedRun:
        """The run as it is in force."""
    @property
    def trainer_version(self) -> int:
        """The store's trainer version in the newest reply."""
    def publish_trainer_version(self, trainer_version: int) -> None:
        """Raise the trainer version; a smaller one changes nothing. Atomic; may be repeated."""
    def bookmark(self) -> Bookmark:
        """Return where the store is, to be saved with a model. A pure read."""
    def resume(
        self,
        *,
        model_step: int | None = None,
        bookmark: Bookmark | None = None,
        take_over: bool = False,
        mode: RestoreMode = "all",
        incomplete: Incomplete = "keep",
        regenerate_damaged: bool = False,
        dry_run: bool = False,
    ) -> ResumeReport:
        """Bring the store and a model together and say where to go on;
        `redis_replay.recovery`."""
    def preview(
        self,
        cfg: SamplerConfig,
        *,
        step: int,
        checkpoint: str | None = None,
        mode: RestoreMode = "all",
    ) -> PolicyPreview:
        """Return what a policy would take at a step, were all claims given back. A pure read."""
    def stats(self) -> BufferStats:
        """Return live counts and totals, read in one instant."""
    def filter(self, settings: DynamicSampling | None = None) -> GroupFilter:
        """Return commits of the implicit session under dynamic sampling; `GroupFilter`."""
    def step_target(self, step: int) -> StepTarget:
        """Return what a step wanted, has and can still get; `read_step_target`."""
    def drain_step_reward_metrics(self, step: int) -> dict[str, float]:
        """Return the reward metrics of a step and forget it; `drain_stored_metrics`."""
    def audit(self) -> AuditReport:
        """Check every invariant of the keyspace; a pure read. `redis_replay.audit`."""
    def collect_garbage(self) -> int:
        """Free the payload of groups that are gone and return the number of entries.
        Repeatable."""
    def find_orphans(self) -> list[str]:
        """Free payload that nothing refers to; `Collector.find_orphans`."""
    def __enter__(self) -> ReplayStore: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class RolloutSession:
    """``with store.rollout(owner="host-3") as rollout``; its ``buffer`` acts under the
    owner."""

    buffer: RedisReplayBuffer
    samples: SamplePlane
    @property
    def owner(self) -> str:
        """The owner name."""
    @property
    def epoch(self) -> int:
        """Number of this attachment, for ranks of a trainer to join with."""
    def mutation(self) -> DataPlaneMutationCut:
        """Return a mutation cut whose reservations belong to this session."""
    def filter(self, settings: DynamicSampling | None = None) -> GroupFilter:
        """Return commits under dynamic sampling; `GroupFilter`."""
    def take_tickets(self, *, max_tickets: int, weight_version: int) -> list[Reservation]:
        """Take redispatch tickets: reserved groups whose holder is gone, in buffer order."""
    def __enter__(self) -> RolloutSession: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class SamplePlane:
    """Rows of one run and partition, under one session. `ReplayStore.samples`."""

    session: Any
    claimant: Attachment | None
    def get_samples(
        self,
        samples: KVBatchMeta | Sequence[str],
        *,
        select_fields: Sequence[str] | None = None,
        arrays: ArrayForm = "read_only",
        out: Mapping[str, Any] | None = None,
    ) -> list[Row]:
        """Return the rows of samples in the order asked, one dictionary per sample."""
    def put_samples(
        self,
        sample_ids: Sequence[str],
        *,
        fields: Mapping[str, Sequence[Value]],
        tags: Sequence[Mapping[str, Value]] | None = None,
    ) -> None:
        """Write columns back to rows that this session, or its trainer, holds claimed."""
    def list_sample_ids(self) -> list[str]:
        """Return the ids of all rows of ready and claimed groups, in buffer order. A pure
        read."""
    def clear_samples(self, sample_ids: Sequence[str]) -> int:
        """Remove whole groups by their samples and return the number of groups."""

class TrainerRank:
    """One rank of a trainer group: reads its slice of the leader's batches and
    acknowledges them."""

    rank: int
    samples: SamplePlane
    def read_slice(self, batch: int) -> KVBatchMeta:
        """Return this rank's rows of a claimed batch: the ``rank``-th of ``world`` equal runs."""
    def acknowledge(self, batch: int) -> None:
        """Record that this rank is done with a batch. Atomic; may be repeated."""

class TrainerSession:
    """``with store.trainer(owner="job-7") as trainer``; its ``buffer`` acts under the
    owner."""

    buffer: RedisReplayBuffer
    samples: SamplePlane
    @property
    def owner(self) -> str:
        """The owner name."""
    @property
    def epoch(self) -> int:
        """Number of this attachment, for ranks of a trainer to join with."""
    def mutation(self) -> DataPlaneMutationCut:
        """Return a mutation cut whose reservations belong to this session."""
    @property
    def batches(self) -> tuple[int, ...]:
        """Numbers of the claims that this session holds, for ranks to read."""
    @property
    def trainer_version(self) -> int:
        """The store's trainer version in the newest reply."""
    def select(
        self,
        sampler: PromptGroupSampler,
        *,
        min_prompt_groups: int,
        max_prompt_groups: int,
        current_train_weight: int | None = None,
        deadline_seconds: float | None = None,
    ) -> tuple[KVBatchMeta, int]:
        """Wait until a sampler on this session's buffer selects a batch, and claim it."""
    def commit_step(
        self, step: int, *, checkpoint: str | None = None, keep: int | None = None
    ) -> StepCommit:
        """Consume all claims of this session and raise the trainer version to ``step + 1``."""
    def skip_step(
        self, step: int, *, checkpoint: str | None = None, keep: int | None = None
    ) -> StepCommit:
        """Close a step that has nothing to train: raise the trainer version all the same."""
    def bookmark(self) -> Bookmark:
        """Return where the store is, for the model of the step that was just trained. A pure
        read."""
    def step_target(self, step: int) -> StepTarget:
        """Return what a step wanted, has and can still get; `read_step_target`."""
    def drain_step_reward_metrics(self, step: int) -> dict[str, float]:
        """Return the reward metrics of a step and forget it; `drain_stored_metrics`."""
    def abort_step(self) -> int:
        """Give back all claims of a step that failed; an attempt is counted for each group."""
    def requeue(self) -> int:
        """Give back all claims untrained, without a counted attempt. Atomic."""
    def transfer_claims(self, *, to: str) -> int:
        """Hand all claims to another live session by its owner name; returns the number of
        groups."""
    def adopt_claims(self) -> tuple[KVBatchMeta | None, int]:
        """Read the groups handed to this session, so that it may train and settle them."""
    def __enter__(self) -> TrainerSession: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

class TransactionalAdmissionSampler(Protocol):
    """Sampler whose wait is separate from the step that records the admission."""
    def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Wait until one admission can be recorded; change nothing."""
    def commit_admission(self, cut: LiveCut) -> int | None:
        """Record the advance of the cursor in a live cut and return the stamp."""

class WeightFifoSampler:
    """The oldest in-window version's groups, and no others before them."""

    supports_buffer_checkpoint: ClassVar[bool]
    supports_training_claims: ClassVar[bool]
    def __init__(self, buffer: RedisReplayBuffer, *, max_staleness_versions: int) -> None: ...
    def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Wait for the gate, advance the cursor by exactly one and return the stamp."""
    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch, as of the newest reply this process has seen."""
    def set_dispatch_index(self, resume_from_trainer_version: int) -> None:
        """Seed the cursor of a run that never admitted: the next batch gets this index."""
    def restore_dispatch_index(self, dispatch_index: int) -> None:
        """Seed the exact cursor; `flush` raises `CursorConflict` where the run holds another."""
    def refresh(self) -> None:
        """Read the control record, so that the synchronous readers are current."""
    def flush(self) -> None:
        """Write what setters staged, and bind the policy at the first call. May be repeated."""
    def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim groups of the oldest version in the window, once enough of them are ready."""
    def evict(self, *, current_train_weight: int) -> int:
        """Drop ready groups with a start weight below the window; return how many."""
    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether an unfinished rollout can no longer be selected."""
    @property
    def is_on_policy(self) -> bool:
        """Whether the window is 0."""
    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return places for one live batch plus each lookahead batch."""
    @property
    def gate_window(self) -> int:
        """The window in force: staged here, else as stored, else as configured."""
    def set_gate_window(self, gate_window: int) -> None:
        """Retune the live window for every dispatcher; written before the next awaited call."""
    def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Wait until the gate is open; changes nothing and may be cancelled at any instant."""
    def commit_admission(self, cut: LiveCut) -> int | None:
        """Record the advance in a live cut and return the stamp (synchronous)."""
    max_staleness_versions: int

class WindowedSampler:
    """Any ready group of the last ``max_staleness_versions`` versions."""

    supports_buffer_checkpoint: ClassVar[bool]
    supports_training_claims: ClassVar[bool]
    def __init__(
        self,
        buffer: RedisReplayBuffer,
        *,
        max_staleness_versions: int,
        sample_freshest_first: bool = False,
        min_groups_for_streaming_train: int | None = None,
    ) -> None: ...
    def admit(self, *, trainer_version_fn: Callable[[], int]) -> int | None:
        """Return no stamp at once."""
    @property
    def dispatch_index(self) -> int:
        """Index of the last admitted batch, as of the newest reply this process has seen."""
    def set_dispatch_index(self, resume_from_trainer_version: int) -> None:
        """Seed the cursor of a run that never admitted: the next batch gets this index."""
    def restore_dispatch_index(self, dispatch_index: int) -> None:
        """Seed the exact cursor; `flush` raises `CursorConflict` where the run holds another."""
    def refresh(self) -> None:
        """Read the control record, so that the synchronous readers are current."""
    def flush(self) -> None:
        """Write what setters staged, and bind the policy at the first call. May be repeated."""
    def select(
        self, *, current_train_weight: int, min_prompt_groups: int, max_prompt_groups: int
    ) -> tuple[KVBatchMeta | None, int]:
        """Claim groups of the window, oldest place first or freshest version first."""
    def evict(self, *, current_train_weight: int) -> int:
        """Drop ready groups with a start weight below the window; return how many."""
    def should_abort_inflight(
        self, *, start_weight_version: int, current_train_weight: int
    ) -> bool:
        """Return whether the rollout's start weight has left the window."""
    @property
    def is_on_policy(self) -> bool:
        """Whether the window is 0."""
    def required_buffer_capacity(self, groups_per_step: int) -> int | None:
        """Return the smallest streaming batch, ``None`` when it was not given."""
    max_staleness_versions: int
    sample_freshest_first: bool
    min_groups_for_streaming_train: int | None
    def wait_until_admissible(self, *, trainer_version_fn: Callable[[], int]) -> None:
        """Return at once: this policy has no gate."""
    def commit_admission(self, cut: LiveCut) -> int | None:
        """Return no stamp and move no cursor; an expired cut is still refused."""

def create_sampler(
    buffer: object,
    cfg: SamplerConfig | Mapping[str, object],
    *,
    min_groups_for_streaming_train: int | None = None,
) -> PromptGroupSampler:
    """Build the sampler that ``cfg`` names; the store is not touched."""

def open_store(
    url: str | None = None,
    *,
    run: str,
    client: Any = None,
    partition: str = "rollout_data",
    capacity: int | None = None,
    group_size: int | None = None,
    groups_per_step: int | None = None,
    max_payload_bytes: int | None = None,
    max_attempts: int | None = None,
    max_requeues: int | None = None,
    journal_events: int | None = None,
    dataset: str | None = None,
    new_dataset: bool = False,
    create: bool = True,
    switch_policy: bool = False,
    allow_unsafe_server: bool = False,
    deadline_seconds: float = 30.0,
    transfer: TransferWay = "channel",
    fields: Mapping[str, FieldOptions] | None = None,
    discard_on_exit: bool = False,
) -> ReplayStore:
    """Open a run: ``with open_store(...) as store``. Creates it if it is not there."""
