"""What a process reads from the store and writes into its log, to explain what others left open."""

from __future__ import annotations

from typing import Any, Protocol

from redis_replay import ReplayStore
from redis_replay.buffer import RedisReplayBuffer
from redis_replay.cut import DataPlaneMutationCut

SEEN_STORE = "store"


class Attached(Protocol):
    """A store or a session of one."""

    @property
    def buffer(self) -> RedisReplayBuffer:
        """Its slots."""
        ...

    def mutation(self) -> DataPlaneMutationCut:
        """Return a cut; entering it attaches and reads, leaving it empty changes nothing."""
        ...


async def look_at(store: ReplayStore, session: Attached) -> dict[str, Any]:
    """Read store epoch, trainer version, loader position and every live group with its state.

    Of a committed group also which attempt committed it. Attaches the session first, so nothing of
    an older session of the same name can follow.
    """
    async with session.mutation() as cut:
        loader_state = cut.loader_state
    slots = await session.buffer.slots()
    stats = await session.buffer.stats()
    return {
        "store_epoch": store.run.store_epoch,
        "trainer_version": stats.trainer_version,
        "prompts": position_of(loader_state),
        "slots": {slot.group_id: slot.state.value for slot in slots},
        "payloads": {
            slot.group_id: slot.payload_fence for slot in slots if slot.payload_fence is not None
        },
    }


def position_of(loader_state: bytes | None) -> int:
    """Return the index of the next prompt to dispatch, from the stored loader state."""
    return 0 if loader_state is None else int(loader_state)


def state_of(position: int) -> bytes:
    """Return the loader state that says which prompt is next."""
    return b"%d" % position
