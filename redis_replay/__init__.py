"""A replay store for asynchronous RL post-training that outlives its processes, backed by Redis."""

from redis_replay import errors
from redis_replay.audit import AuditReport, Violation
from redis_replay.bookmark import Bookmark
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.checkpoint_info import CheckpointInfo, RestoreReport, TransferProgress
from redis_replay.checkpoints import Checkpoints
from redis_replay.cut import DataPlaneMutationCut
from redis_replay.dynamic_sampling import (
    Completion,
    PromptGroupRecord,
    StepRewardStats,
    drain_step_reward_metrics,
    mask_sample_flagged,
    participating_rewards,
    record_group_rewards,
    rewards_carry_no_signal,
)
from redis_replay.errors import ReplayError
from redis_replay.exporting import ExportReport
from redis_replay.fields import FieldOptions
from redis_replay.filtering import DynamicSampling, FilterOutcome, GroupFilter, Replacement
from redis_replay.meta import KVBatchMeta
from redis_replay.opening import open_store
from redis_replay.preview import PolicyPreview
from redis_replay.protocols import PromptGroupSampler, TransactionalAdmissionSampler
from redis_replay.rank import TrainerRank
from redis_replay.recovery import ResumeReport
from redis_replay.rollout import RolloutSession
from redis_replay.samplers.base import BaseSampler
from redis_replay.samplers.config import (
    CustomSamplerConfig,
    InOrderSamplerConfig,
    ReadyFirstSamplerConfig,
    SamplerConfig,
    WeightFifoSamplerConfig,
    WindowedSamplerConfig,
    required_buffer_capacity_for_config,
)
from redis_replay.samplers.factory import (
    create_sampler,
    sampler_supports_buffer_checkpoint,
    sampler_supports_training_claims,
)
from redis_replay.samplers.in_order import InOrderSampler
from redis_replay.samplers.ready_first import ReadyFirstSampler
from redis_replay.samplers.weight_fifo import WeightFifoSampler
from redis_replay.samplers.windowed import WindowedSampler
from redis_replay.samples import SamplePlane
from redis_replay.selection import Eviction, Rule, Selection, lag_metrics
from redis_replay.step_target import StepTarget
from redis_replay.store import ReplayStore
from redis_replay.trainer import StepCommit, TrainerSession
from redis_replay.types import BufferStats, GroupState, Reservation, SlotView
from redis_replay.verification import CheckpointVerification

__version__ = "0.1.0"

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
