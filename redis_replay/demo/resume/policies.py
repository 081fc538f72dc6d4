"""Which learner a policy's name stands for."""

from __future__ import annotations

import importlib.util

from redis_replay.demo.resume.learner import Learner
from redis_replay.demo.resume.numpy_learner import NumpyLearner
from redis_replay.demo.resume.settings import PolicyName
from redis_replay.errors import ConfigurationError


def create_learner(policy: str, *, seed: int) -> Learner:
    """Return an untrained learner.

    Raises:
        ConfigurationError: its library is not installed.
    """
    if policy == PolicyName.NUMPY:
        return NumpyLearner(seed)
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            "the policy 'torch' needs torch: pip install 'redis-replay[torch]', or --policy numpy"
        )
    from redis_replay.demo.resume.torch_learner import TorchLearner

    return TorchLearner(seed)
