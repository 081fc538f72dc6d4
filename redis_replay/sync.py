"""The blocking API: every public name of `redis_replay`, for programs without an event loop.

::

    from redis_replay.sync import InOrderSamplerConfig, create_sampler, open_store

    with open_store("redis://127.0.0.1:6379/0", run="math") as store:
        with store.trainer(owner="job-0") as trainer:
            sampler = create_sampler(trainer.buffer, InOrderSamplerConfig())
            batch, groups = trainer.select(sampler, min_prompt_groups=4, max_prompt_groups=4)

Names, arguments, results and errors are those of the asynchronous API. Methods block, ``async
with`` is ``with``, and any thread may call. All calls on a store run in one thread of its own
(`redis_replay.blocking`); a callback, such as ``trainer_version_fn``, runs there too: it may read
properties, and can make no call. A custom sampler is written as for the asynchronous API.

A call that is interrupted, by Ctrl-C or by another signal's handler, is cancelled, and what it was
given goes back. A store belongs to the process that opened it: in a forked one, such as a worker of
a data loader, every use raises `ForkedStore`, and to a spawned one it cannot be sent.
"""

from __future__ import annotations

from typing import Any

import redis_replay
from redis_replay.blocking import counterpart

__all__ = redis_replay.__all__  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Return the blocking counterpart of a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return counterpart(getattr(redis_replay, name))


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
