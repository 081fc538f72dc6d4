"""Attachments: one epoch under one owner name, and what may still be done under it.

A script refuses the calls of an attachment that has ended; here that refusal becomes its error. The
reads of a trainer are refused as well, in the round trip that reads: a trainer that wakes up after
its lease would otherwise compute on groups that are somebody else's by now (D55).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Key, Keyspace
from redis_replay._redis.lua import Argument
from redis_replay._redis.records import ControlRecord, OwnerRecord
from redis_replay._redis.refusals import Refusal
from redis_replay.errors import ClaimLost, StaleOwner

R = TypeVar("R")

TRAINER: Final = "trainer"


@dataclass(frozen=True, slots=True)
class Attachment:
    """One attachment of a process, as the store knows it."""

    owner: str
    epoch: int
    role: str

    def accept(self, reply: R | Refusal) -> R:
        """Return a reply, or raise the error of a refusal."""
        if not isinstance(reply, Refusal):
            return reply
        raise self.ended() if reply.code == "FENCED" else reply.error

    def ended(self) -> StaleOwner:
        """Return the error of a call under this attachment after its end."""
        if self.role == TRAINER:
            return ClaimLost(
                f"trainer session {self.owner!r}, epoch {self.epoch}, has ended: it was silent for "
                "its lease, or another session took over. Its claims were given back and nothing "
                "was changed; attach again, with the model of the store's trainer version."
            )
        return StaleOwner(
            f"session {self.owner!r} has ended: it was silent for its lease, or was replaced under "
            "its name. Its groups were given back; attach again."
        )


@dataclass(frozen=True, slots=True)
class FencedReads:
    """Reads under an attachment, refused once it has ended."""

    gateway: Gateway
    attachment: Attachment
    store_epoch: int

    @property
    def keyspace(self) -> Keyspace:
        """How keys are spelled."""
        return self.gateway.keyspace

    @property
    def target(self) -> Target:
        """The server."""
        return self.gateway.target

    def observe(self, control: ControlRecord) -> None:
        """Keep a control record if it is the newest."""
        self.gateway.observe(control)

    async def pipeline(
        self, commands: Sequence[Sequence[Argument]], *, atomic: bool = False
    ) -> list[Any]:
        """Run reads in one round trip and return their replies in order.

        Raises:
            StaleOwner: the attachment has ended (`ClaimLost` for a trainer's).
            StaleStore: it has, by a restore.
            StoreError: as `Gateway.pipeline`.
        """
        if not commands:
            return []
        holder = ("HGET", self.keyspace.control(Key.OWNERS), self.attachment.owner)
        *replies, record = await self.gateway.pipeline([*commands, holder], atomic=atomic)
        attached = record is not None and OwnerRecord.parse(record).epoch == self.attachment.epoch
        if not attached:
            await self._refuse()
        return replies

    async def _refuse(self) -> None:
        """Say that the attachment has ended; of a run that is gone or has lost history its readers
        say that."""
        meta = self.keyspace.control(Key.META)
        [(seq, store_epoch)] = await self.gateway.pipeline([("HMGET", meta, "seq", "store_epoch")])
        seen = self.gateway.control
        if seq is None or (seen is not None and int(seq) < seen.seq):
            return
        if int(store_epoch) != self.store_epoch:
            raise Refusal("STALE_STORE", None, (store_epoch,)).error
        raise self.attachment.ended()
