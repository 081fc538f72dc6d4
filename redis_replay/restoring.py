"""Restores of one store, each under a token, so that what became of one without an answer is found.

The script leaves the token and its answer in the run's control record. A repeated restore is
refused there as stale; whose the last restore was then tells whether the first attempt applied.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from redis_replay._redis.checkpoint_scripts import Restore, Restored
from redis_replay._redis.keys import Key
from redis_replay._redis.records import CheckpointRecord, unpack_items
from redis_replay._redis.refusals import Refusal, accept
from redis_replay.errors import ConfigurationError, StoreUnavailable
from redis_replay.samplers.trust import require_restorable
from redis_replay.saved_state import read_saved
from redis_replay.session import Link

_LOG = logging.getLogger(__name__)
LeftOut = Mapping[str, bytes | None]


async def require_trusted(link: Link, mode: str) -> None:
    """Return if buffered groups may come back under the samplers of a run. A pure read.

    Raises:
        ConfigurationError: a sampler of this store is not trusted with it, or the run is bound to a
            custom one that this store has not been told of.
    """
    if mode == "none":
        return
    require_restorable(link.samplers.values())
    [policy] = await link.gateway.pipeline(
        [("HGET", link.gateway.keyspace.control(Key.META), "policy")]
    )
    name = (policy or b"").decode()
    if ":" in name and name not in link.samplers:
        raise ConfigurationError(
            f"the run is bound to the custom sampler {name!r}, and whether groups may be restored "
            "under it is not known here; nothing was written. Name it first with "
            "checkpoints.require_sampler (--custom-sampler on the command line), or restore with "
            "mode='none', which brings no groups back."
        )


@dataclass
class Restorer:
    """Restores the run of one link.

    Attributes:
        link: Its frame is renewed by a restore.
    """

    link: Link
    _unanswered: dict[Restore, str] = field(default_factory=dict[Restore, str])

    async def restore(self, call: Restore, record: CheckpointRecord) -> tuple[Restored, LeftOut]:
        """Restore a checkpoint, or find that an earlier attempt without an answer has done it.

        Runs in the caller's own task. ``call`` comes without a token.

        Raises:
            StoreUnavailable: no answer; the message says what is known.
        """
        if call not in self._unanswered:
            await self.reopen()
        token = self._unanswered.setdefault(call, secrets.token_hex(8))
        async with self.link.restoring:
            restored = await self._applied(replace(call, token=token))
            self.link.restored(restored.store_epoch)
        self._unanswered.pop(call, None)
        self.link.tasks.start(self.link.collect)
        return restored, await self._left_out(record) if restored.left_out else {}

    async def reopen(self) -> str | None:
        """Go on after a restore of this store that got no answer and has applied.

        Returns:
            The checkpoint's name, or ``None`` where no restore was unanswered or none has applied.
        """
        for call, token in list(self._unanswered.items()):
            restored = await self._answer_to(token)
            if restored is not None:
                del self._unanswered[call]
                self.link.restored(restored.store_epoch)
                _LOG.warning(
                    "run restored from checkpoint %r, as found now: %s", call.name, restored
                )
                return call.name
        return None

    async def _applied(self, call: Restore) -> Restored:
        link = self.link
        try:
            reply = await link.gateway.call(call, link.run.frame)
        except StoreUnavailable as failure:
            return await self._found_after(failure, call)
        if isinstance(reply, Refusal) and reply.code == "STALE_STORE":
            return await self._answer_to(call.token) or accept(reply)
        return accept(reply)

    async def _found_after(self, failure: StoreUnavailable, call: Restore) -> Restored:
        """Return the answer that is in the store, once the deadline has passed without a reply."""
        again = (
            "Call it, or resume, again with this store: it returns the first one's report if that "
            "has been applied, and restores if not. Any other call may say StaleStore until then."
        )
        try:
            restored = await self._answer_to(call.token)
        except StoreUnavailable:
            raise StoreUnavailable(
                f"the restore of checkpoint {call.name!r} got no answer, so it is open whether it "
                f"was applied ({failure}). {again}"
            ) from failure
        if restored is None:
            raise StoreUnavailable(
                f"the restore of checkpoint {call.name!r} got no answer and has not been applied "
                f"so far, but may still be under way ({failure}). {again}"
            ) from failure
        return restored

    async def _answer_to(self, token: str) -> Restored | None:
        """Return the answer to the run's last restore if that was the one of the token."""
        gateway = self.link.gateway
        meta = gateway.keyspace.control(Key.META)
        [[found, kept]] = await gateway.pipeline([("HMGET", meta, "restored_by", "restored")])
        return Restored(*map(int, unpack_items(kept))) if found == token.encode() else None

    async def _left_out(self, record: CheckpointRecord) -> LeftOut:
        """Return what was not restored. Looks at the live groups first, before others end some."""
        gateway = self.link.gateway
        [live] = await gateway.pipeline([("HKEYS", gateway.keyspace.control(Key.SLOTS))])
        known = {group_id.decode() for group_id in live}
        saved = await read_saved(gateway, record)
        left = [slot.group_id for slot in saved.slots if slot.group_id not in known]
        prompts = gateway.keyspace.saved(record.saved_id, Key.PROMPTS)
        found: Sequence[bytes | None] = await gateway.pipeline(
            [("HGET", prompts, group_id) for group_id in left]
        )
        return dict(zip(left, found, strict=True))
