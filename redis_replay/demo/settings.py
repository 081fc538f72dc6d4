"""Sizes and places of a demo run, the same for every process of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from redis_replay.errors import ConfigurationError
from redis_replay.opening import open_store
from redis_replay.samplers.config import SamplerConfig, parse_sampler_config
from redis_replay.store import ReplayStore
from redis_replay.store_options import URL_VARIABLE

GROUP_SIZE: Final = 8
GROUPS_PER_STEP: Final = 16
LOOKAHEAD_VERSIONS: Final = 2
CAPACITY: Final = GROUPS_PER_STEP * (LOOKAHEAD_VERSIONS + 1)

DEFAULT_STEPS: Final = 40
LEAST_STEPS: Final = 8
LEAST_WORKERS: Final = 2
LEASE_SECONDS: Final = 3.0
DEADLINE_SECONDS: Final = 30.0
KEPT_MODELS: Final = LOOKAHEAD_VERSIONS + 6
"""Weight versions whose files stay: redispatched groups may need one that is a few steps old."""

TRAINER: Final = "trainer"
SUPERVISOR: Final = "supervisor"
SAMPLERS: Final = ("in_order", "windowed", "ready_first", "weight_fifo")


def sampler_config(name: str) -> SamplerConfig:
    """Return the settings of a built-in sampler for the demo.

    Raises:
        ConfigurationError: no such sampler.
    """
    if name not in SAMPLERS:
        raise ConfigurationError(f"no sampler {name!r}; choose one of {', '.join(SAMPLERS)}")
    window = "max_lookahead_versions" if name == "in_order" else "max_staleness_versions"
    return parse_sampler_config({"name": name, window: LOOKAHEAD_VERSIONS})


def rollout_owner(number: int) -> str:
    """Return the stable owner name of a rollout process, counted from 1."""
    return f"rollout-{number}"


@dataclass(frozen=True, kw_only=True)
class WorkerOrders:
    """What one worker process is told: one JSON argument, and the address in the environment.

    Attributes:
        url: Address of the server.
        run: Name of the run in the store.
        owner: Stable owner name; a restarted process has that of its predecessor.
        life: 0 for the first process of the owner, one more with every restart.
        folder: Where logs and models are.
        seed: Seed of prompts, network and sampling.
        steps: Trainer version at which everybody leaves.
        sampler: Name of the sampler.
    """

    url: str
    run: str
    owner: str
    life: int
    folder: str
    seed: int
    steps: int
    sampler: str

    def to_json(self) -> str:
        """Return the argument; all but the address, which may hold a password."""
        return json.dumps({name: value for name, value in asdict(self).items() if name != "url"})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the argument, and the address from the environment."""
        return cls(url=os.environ[URL_VARIABLE], **json.loads(text))

    def open_store(self, *, deadline_seconds: float = DEADLINE_SECONDS) -> ReplayStore:
        """Return the run's store; the first process to open it creates it."""
        return open_store(
            self.url,
            run=self.run,
            capacity=self.capacity,
            group_size=self.group_size,
            groups_per_step=self.groups_per_step,
            deadline_seconds=deadline_seconds,
        )

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
        """Places of the buffer."""
        return CAPACITY

    @property
    def sampler_config(self) -> SamplerConfig:
        """Settings of the sampler."""
        return sampler_config(self.sampler)

    @property
    def module(self) -> str:
        """The module that this process runs."""
        role = "trainer" if self.owner == TRAINER else "rollout"
        return f"redis_replay.demo.worker_{role}"

    @property
    def in_lockstep(self) -> bool:
        """Whether the process goes on after a line of its log only when the supervisor says so."""
        return False

    @property
    def log_path(self) -> Path:
        """The log of this process alone."""
        return log_folder(Path(self.folder)) / f"{self.owner}.{self.life}.jsonl"

    def model_path(self, version: int) -> Path:
        """The model file of a weight version."""
        return model_folder(Path(self.folder)) / f"version-{version:06d}.npz"


def log_folder(folder: Path) -> Path:
    """Where the processes write their logs."""
    return folder / "logs"


def model_folder(folder: Path) -> Path:
    """Where the trainer writes its models."""
    return folder / "models"
