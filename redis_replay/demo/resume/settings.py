"""Sizes and places of a resume run, the same for every process of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from redis_replay.demo.settings import TRAINER, WorkerOrders, model_folder, rollout_owner
from redis_replay.samplers.config import InOrderSamplerConfig, SamplerConfig

STEPS: Final = 12
GROUPS_PER_STEP: Final = 4
GROUP_SIZE: Final = 8
SAVE_EVERY_STEPS: Final = 3
KEPT_CHECKPOINTS: Final = 2
HOSTS: Final = 2
MAX_LOOKAHEAD: Final = 4

_RANK: Final = "rank"


class PolicyName(StrEnum):
    """What is trained."""

    TORCH = "torch"
    NUMPY = "numpy"


def rank_owner(rank: int) -> str:
    """Return the name of a trainer rank's process, counted from 1; rank 0 is the trainer."""
    return f"{_RANK}-{rank}"


def role_of(owner: str) -> str:
    """Return ``trainer``, ``rank`` or ``rollout``."""
    return owner.partition("-")[0]


def checkpoint_name(step: int) -> str:
    """Return the name of the store's checkpoint that belongs to the model of a step."""
    return f"step-{step}"


@dataclass(frozen=True, kw_only=True)
class ResumeOrders(WorkerOrders):
    """What a worker of a resume run is told.

    Attributes:
        lookahead: How many versions old the weights are that a batch is generated with.
        ranks: Trainer processes.
        policy: What is trained.
    """

    lookahead: int
    ranks: int
    policy: str

    @property
    def group_size(self) -> int:
        """Answers in each group."""
        return GROUP_SIZE

    @property
    def groups_per_step(self) -> int:
        """Groups in one training batch."""
        return GROUPS_PER_STEP

    @property
    def capacity(self) -> int:
        """Places of the buffer: a live batch and the lookahead."""
        return GROUPS_PER_STEP * (self.lookahead + 1)

    @property
    def sampler_config(self) -> SamplerConfig:
        """Settings of the sampler."""
        return InOrderSamplerConfig(max_lookahead_versions=self.lookahead)

    @property
    def module(self) -> str:
        """The module that this process runs."""
        return f"redis_replay.demo.resume.worker_{role_of(self.owner)}"

    @property
    def in_lockstep(self) -> bool:
        """Whether the process goes on after a line of its log only when the supervisor says so."""
        return True

    @property
    def owners(self) -> list[str]:
        """All processes of the run."""
        ranks = [rank_owner(rank) for rank in range(1, self.ranks)]
        return [TRAINER, *ranks, *(rollout_owner(number + 1) for number in range(HOSTS))]

    @property
    def models(self) -> Path:
        """Folder of the model checkpoints."""
        return model_folder(Path(self.folder))

    @property
    def weights(self) -> Path:
        """Folder in which weights are handed to those that generate and to the ranks."""
        return Path(self.folder) / "weights"

    def weights_path(self, version: int) -> Path:
        """Where the weights of a version are, as long as they are handed out."""
        return self.weights / f"version-{version:06d}.npz"

    @property
    def exchange(self) -> Path:
        """Folder in which the ranks find their batches and each other's gradients."""
        return Path(self.folder) / "exchange"
