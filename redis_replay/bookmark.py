"""The bookmark: what a model checkpoint keeps of the store, so that both can be compared later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgpack

from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key
from redis_replay.errors import StoreMissing

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Where the store was when a model was saved; about a hundred bytes, and the trained ids.

    Attributes:
        lineage: The history that the store has.
        store_epoch: Raised by every restore.
        seq: The newest mutation.
        step: The model's step: the trainer version that the store has, or will have once the step
            being trained is committed.
        trained: Ids of the groups that the model has been trained on and that the store had not
            settled yet.
    """

    lineage: str
    store_epoch: int
    seq: int
    step: int
    trained: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return it for a model checkpoint."""
        packed: bytes = msgpack.packb(
            (_FORMAT, self.lineage, self.store_epoch, self.seq, self.step, self.trained)
        )
        return packed

    @classmethod
    def from_bytes(cls, packed: bytes) -> Bookmark:
        """Undo `to_bytes`.

        Raises:
            ValueError: it is no bookmark, or one of a newer format.
        """
        try:
            version, lineage, store_epoch, seq, step, trained = msgpack.unpackb(packed)
        except (ValueError, TypeError, msgpack.UnpackException) as broken:
            raise ValueError(f"this is no bookmark: {broken}") from broken
        if version != _FORMAT:
            raise ValueError(f"the bookmark has format {version!r}, known is {_FORMAT}")
        return cls(lineage, store_epoch, seq, step, tuple(trained))


async def read_bookmark(gateway: Gateway) -> Bookmark:
    """Return the store's position. A pure read.

    Raises:
        StoreMissing: the run is not there.
    """
    meta = gateway.keyspace.control(Key.META)
    [found] = await gateway.pipeline(
        [("HMGET", meta, "lineage", "store_epoch", "seq", "trainer_version")]
    )
    if found[0] is None:
        raise StoreMissing(f"run {gateway.keyspace.run!r} is not on {gateway.target.address}")
    return Bookmark(found[0].decode(), int(found[1]), int(found[2]), int(found[3]))
