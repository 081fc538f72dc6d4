"""One rank of a trainer group: what it reads and says of a batch of its leader (D25)."""

from __future__ import annotations

from redis_replay._redis.keys import Key
from redis_replay._redis.records import SlotRecord, unpack_items
from redis_replay._redis.run_scripts import Acknowledge
from redis_replay.attachment import TRAINER, Attachment, FencedReads
from redis_replay.errors import ClaimMismatch
from redis_replay.groups import batch_meta
from redis_replay.meta import KVBatchMeta
from redis_replay.samples import SamplePlane
from redis_replay.session import Link, Session


class TrainerRank:
    """One rank of a trainer group: reads its slice of the leader's batches and acknowledges them.

    Holds no lease of its own; it is fenced with the leader's session.

    Attributes:
        rank: Its number in the group.
        samples: The data plane under the leader's claims.
    """

    rank: int
    samples: SamplePlane

    def __init__(self, link: Link, *, owner: str, epoch: int, rank: int, session: Session) -> None:
        self._link = link
        self._leader = Attachment(owner, epoch, TRAINER)
        self.rank = rank
        self.samples = SamplePlane(session, claimant=self._leader)

    async def read_slice(self, batch: int) -> KVBatchMeta:
        """Return this rank's rows of a claimed batch: the ``rank``-th of ``world`` equal runs.

        A pure read, the same for a restarted rank.

        Raises:
            ClaimLost: the leader's session has ended.
            ClaimMismatch: the batch is not a live claim of this owner and epoch.
            ValueError: the rows do not divide by the number of ranks; none is ever left out.
        """
        meta, world = await self._read_batch(batch)
        if self.rank >= world:
            raise ValueError(f"rank {self.rank} is not below the trainer's world of {world}")
        if meta.size % world:
            raise ValueError(
                f"batch {batch} has {meta.size} rows, which do not divide by {world} ranks; choose "
                "groups per step and group size so that they do"
            )
        share = meta.size // world
        return meta.slice(self.rank * share, (self.rank + 1) * share)

    async def acknowledge(self, batch: int) -> None:
        """Record that this rank is done with a batch. Atomic; may be repeated.

        Raises:
            ClaimLost: the leader's session has ended.
            ClaimMismatch: the batch is not a live claim of this trainer.
        """
        leader = self._leader
        reply = await self._link.ask(Acknowledge(leader.owner, leader.epoch, batch, self.rank))
        leader.accept(reply)

    async def _read_batch(self, batch: int) -> tuple[KVBatchMeta, int]:
        leader, link = self._leader, self._link
        reads = FencedReads(link.gateway, leader, link.run.store_epoch)
        control = reads.keyspace.control
        [stored] = await reads.pipeline([("HGET", control(Key.BATCHES), batch)])
        items = unpack_items(stored) if stored is not None else []
        if not items or int(items[0]) != leader.epoch:
            raise ClaimMismatch(
                f"batch {batch} is not a live claim of {leader.owner!r}, epoch {leader.epoch}"
            )
        step, world, entries = int(items[1]), int(items[2]), items[3:]
        ids = [entry.partition(b":")[2] for entry in entries]
        [records] = await reads.pipeline([("HMGET", control(Key.SLOTS), *ids)])
        slots = [
            SlotRecord.parse(group_id, record)
            for group_id, record in zip(ids, records, strict=True)
            if record is not None
        ]
        if any(slot.batch != batch for slot in slots) or len(slots) != len(ids):
            raise ClaimMismatch(
                f"groups of batch {batch} were given back; it is not whole any more"
            )
        groups = await self._link.records.read(slots)
        meta = batch_meta(reads.keyspace.partition, slots, groups, current_train_weight=step)
        return meta, world
