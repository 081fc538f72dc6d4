"""Checkpoints: the run as it was at one instant, under a name.

A checkpoint is a copy of the control plane: slots, prompts, cursor, loader position, tallies,
ledger. Payload is not copied: the collector leaves alone what a checkpoint refers to, so a group
that was trained or evicted afterwards is still there for a restore, until the checkpoint is
dropped. The cost of making one does not depend on payload bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from redis_replay._redis.checkpoint_scripts import CreateCheckpoint, MarkCheckpoint, Restore
from redis_replay._redis.frames import StoreScript
from redis_replay._redis.keys import Key
from redis_replay._redis.records import CheckpointRecord
from redis_replay._redis.refusals import Refusal, accept
from redis_replay.checkpoint_info import (
    CheckpointInfo,
    Incomplete,
    OnProgress,
    RestoreMode,
    RestoreReport,
    new_saved_id,
    now_ms,
    packed_extra,
    require_name,
)
from redis_replay.codec import Value
from redis_replay.errors import CheckpointDamaged, CheckpointMissing, StoreError
from redis_replay.exporting import ExportReport, export_checkpoint
from redis_replay.importing import import_checkpoint
from redis_replay.restoring import Restorer, require_trusted
from redis_replay.samplers.config import SamplerConfig
from redis_replay.samplers.factory import judge_sampler
from redis_replay.samplers.trust import require_keepable
from redis_replay.saved_state import drop_saved, read_digest
from redis_replay.selection import validate_version
from redis_replay.session import Link
from redis_replay.verification import CUT_SHORT, CheckpointVerification, verify_checkpoint

R = TypeVar("R")
_LOG = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run. `ReplayStore.checkpoints`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._restorer = Restorer(link)

    def require_sampler(self, cfg: SamplerConfig | Mapping[str, object]) -> None:
        """Return if checkpoints may be kept and restored under a sampler. Sends nothing.

        For set-up code, before the first checkpoint or restore. As with each sampler that is made
        on its buffers, this store refuses both from then on if the sampler is not trusted: a custom
        class must declare ``supports_buffer_checkpoint`` and ``supports_training_claims`` itself.

        Raises:
            ConfigurationError: the class does not declare them.
            ValueError, TypeError: the config is wrong, or its target no sampler; `create_sampler`.
        """
        trust = judge_sampler(cfg)
        self._link.samplers[trust.name] = trust
        require_keepable([trust])

    async def create(
        self,
        name: str,
        *,
        step: int | None = None,
        extra: Value = None,
        pin: bool = False,
        replace: bool = False,
        keep: int | None = None,
    ) -> CheckpointInfo:
        """Keep the run as it is at this instant under a name.

        One atomic script, and nobody is paused; its cost grows with the number of live groups, not
        with their bytes. A name from before a restore is given away, unless it is pinned.

        Args:
            name: 1 to 64 letters, digits, ``_``, ``.`` or ``-``.
            step: If given, the trainer version that the store must have.
            extra: A value of your own, at most 64 KiB encoded.
            pin: Whether retention leaves it alone.
            replace: Whether a checkpoint of this name is replaced.
            keep: If given, older checkpoints that are not pinned are dropped down to this many.

        Raises:
            ValueError, TypeError: a name, number or extra outside its limits.
            StepMismatch: the store's trainer version is another one.
            ConfigurationError: a sampler of this store is not trusted with it, `require_sampler`.
            CheckpointExists: the name is taken, or 128 checkpoints are kept.
        """
        require_name(name)
        if step is not None:
            validate_version("step", step)
        if keep is not None:
            validate_version("keep", keep, least=1)
        require_keepable(self._link.samplers.values())
        call = CreateCheckpoint(
            name=name,
            step=step,
            replace=int(replace),
            pinned=int(pin),
            created_ms=now_ms(),
            extra=packed_extra(extra),
            saved_ids=(new_saved_id(),),
        )
        return await self._link.tasks.finish(partial(self._create, call, keep))

    async def _create(self, call: CreateCheckpoint, keep: int | None) -> CheckpointInfo:
        record = await self._ask(call)
        return CheckpointInfo.of(await self._finish(record, keep))

    async def finish(self, name: str, *, keep: int | None = None) -> None:
        """Write the digest of a checkpoint that `commit_step` made, and drop what is too old.

        The step is settled: where the server does not answer, that is logged, and older ones are
        dropped after the next step. A checkpoint without a digest is as good to restore.

        Raises:
            CheckpointMissing: the step was settled before without this checkpoint.
        """
        try:
            await self._link.tasks.finish(partial(self._finish_named, name, keep))
        except StoreError as failure:
            _LOG.warning("checkpoint %r is kept, but not tidied up after: %s", name, failure)

    async def _finish_named(self, name: str, keep: int | None) -> None:
        await self._finish(await self.record(name), keep)

    async def _finish(self, record: CheckpointRecord, keep: int | None) -> CheckpointRecord:
        if not record.digest:
            digest = await read_digest(self._link.gateway, record)
            call = MarkCheckpoint(record.name, None, "", digest, (record.saved_id,))
            reply = await self._link.gateway.call(call, self._link.run.frame)
            if isinstance(reply, Refusal) and reply.code == "NO_CHECKPOINT":
                return record  # another host's retention has dropped it since
            record = accept(reply)
        older = [r for r in await self._records() if r.is_complete and not r.pinned]
        for known in older[: max(0, len(older) - keep) if keep is not None else 0]:
            await self._drop(known)
        await self._drop_remains()
        return record

    async def list(self) -> Sequence[CheckpointInfo]:
        """Return all checkpoints, oldest first. A pure read."""
        return [CheckpointInfo.of(record) for record in await self._records()]

    async def show(self, name: str) -> CheckpointInfo:
        """Return one checkpoint. A pure read.

        Raises:
            CheckpointMissing: there is none of this name; the message lists what there is.
        """
        return CheckpointInfo.of(await self.record(name))

    async def pin(self, name: str) -> CheckpointInfo:
        """Have retention leave a checkpoint alone. May be repeated.

        Raises:
            CheckpointMissing: there is none of this name.
        """
        return await self._mark(name, pinned=1)

    async def unpin(self, name: str) -> CheckpointInfo:
        """Undo `pin`. May be repeated."""
        return await self._mark(name, pinned=0)

    async def _mark(self, name: str, *, pinned: int) -> CheckpointInfo:
        record = await self.record(name)
        call = MarkCheckpoint(name, pinned, "", "", (record.saved_id,))
        return CheckpointInfo.of(await self._ask(call))

    async def drop(self, name: str) -> int:
        """Forget a checkpoint and free what nothing else needs. May be repeated after a failure.

        Works in slices; a crash in between is finished by the next `create` or `drop`.

        Returns:
            Groups whose rows only this checkpoint, or others too, referred to.

        Raises:
            CheckpointMissing: there is none of this name.
        """
        record = await self.record(name)
        return await self._link.tasks.finish(partial(self._drop_wholly, record))

    async def _drop_wholly(self, record: CheckpointRecord) -> int:
        given_back = await self._drop(record)
        await self._drop_remains()
        return given_back

    async def _drop(self, record: CheckpointRecord) -> int:
        return await drop_saved(self._link, record.name, record.saved_id)

    async def _drop_remains(self) -> None:
        for record in await self._records(remains=True):
            await self._drop(record)

    async def verify(self, name: str, *, deep: bool = False) -> CheckpointVerification:
        """Check a checkpoint's digest and that the rows it refers to are all there. A pure read.

        Args:
            name: Of the checkpoint.
            deep: Whether all rows are read and their checksums compared.

        Raises:
            CheckpointMissing: there is none of this name.
        """
        record = await self.record(name)
        if not record.is_complete:
            return CheckpointVerification(name, (CUT_SHORT,))
        size = self._link.run.settings.group_size
        return await verify_checkpoint(self._link.gateway, record, group_size=size, deep=deep)

    async def export(
        self, name: str, path: str | Path, *, on_progress: OnProgress | None = None
    ) -> ExportReport:
        """Write a checkpoint to a folder, beside a run that goes on. May be repeated.

        A folder with an earlier export is brought up to date: rows that it has are not written
        again. The earlier export stays valid until the last step, and if this one fails. The
        checkpoint is pinned meanwhile. Needs a fixed amount of memory beside the control plane's.

        Args:
            name: Of the checkpoint.
            path: Of the folder, which is made if need be.
            on_progress: Called with a `TransferProgress` after each batch.

        Raises:
            CheckpointMissing: there is none of this name.
            CheckpointDamaged: it, or rows of it, are not what was written.
            ConfigurationError: the folder holds something else, or is in use.
            SchemaMismatch: the folder holds an export of a newer version.
            OSError: the folder cannot be written.
        """
        record = await self.record(name)
        return await export_checkpoint(self._link, record, Path(path), on_progress)

    async def import_(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> CheckpointInfo:
        """Bring an exported checkpoint into this run, whichever run and server it is of.

        All files are checked first; nothing is written if one is wrong. The run itself does not
        change until the checkpoint is restored. Cut short, it leaves a checkpoint that is not
        complete and can be dropped.

        Args:
            path: Of the folder.
            name: Of the checkpoint here; by default the one it had.
            on_progress: Called with a `TransferProgress` after each batch.

        Raises:
            CheckpointMissing: there is no export, or the checkpoint was dropped meanwhile.
            CheckpointDamaged: a file is absent, cut off or altered; the message says which, where.
            CheckpointExists: the name is taken, or 128 checkpoints are kept.
            SchemaMismatch: a newer version of this package wrote it.
            ConfigurationError: the folder is being written.
            ValueError: a group stands in it twice; no name.
        """
        self._link.require_open()
        return await import_checkpoint(self._link, Path(path), name, on_progress)

    async def restore(
        self,
        name: str,
        *,
        mode: RestoreMode = "all",
        incomplete: Incomplete = "keep",
        regenerate_damaged: bool = False,
    ) -> RestoreReport:
        """Make the run what it was when the checkpoint was taken; newer groups are dropped.

        Verified first, then one atomic script; restoring twice is restoring once. Without an answer
        within the deadline it looks for one in the store for as long again; repeated after a
        `StoreUnavailable` it gives the first answer. The store epoch is raised: every session of
        every host ends, this store's too, and hosts must reopen.
        Claimed groups are ready, unfinished ones redispatch tickets; no attempt is counted. Fences,
        buffer order and the run's settings go on from where they are, and no payload is moved.

        Args:
            name: Of the checkpoint.
            mode: ``all``; ``prompts_only``: finished groups become tickets too, to be generated
                again; ``none``: no groups at all, admitted batches are dispatched again.
            incomplete: What becomes of a stamped batch with fewer groups than a full one. ``keep``:
                it stays as it is; ``fill``: it is handed to the next dispatcher for what is
                missing; ``drop``: its groups end as removed and it is dispatched again.
            regenerate_damaged: Whether finished groups whose rows are gone become tickets. Else
                they refuse the restore.

        Raises:
            CheckpointMissing: there is none of this name.
            CheckpointDamaged: it is not what was written, or rows are gone; nothing was changed.
            CheckpointMismatch: more groups than the capacity, or another group size, batch size or
                policy; nothing was changed.
            ConfigurationError: a sampler of this store is not trusted with it, `require_sampler`.
            StoreUnavailable: no answer; the message says whether it is known to have been applied.
            ValueError: an unknown mode.
        """
        if mode not in ("all", "prompts_only", "none"):
            raise ValueError(f"mode must be 'all', 'prompts_only' or 'none', got {mode!r}")
        if incomplete not in ("keep", "fill", "drop"):
            raise ValueError(f"incomplete must be 'keep', 'fill' or 'drop', got {incomplete!r}")
        await require_trusted(self._link, mode)
        record = await self.record(name)
        damaged = await self._checked(record, mode, regenerate_damaged=regenerate_damaged)
        call = Restore(
            name=name,
            mode=mode,
            incomplete="" if incomplete == "keep" else incomplete,
            token="",
            saved_ids=(record.saved_id,),
            damaged=tuple(damaged),
        )
        restored, left_out = await self._link.tasks.finish(
            partial(self._restorer.restore, call, record)
        )
        _LOG.warning("run restored from checkpoint %r: %s", name, restored)
        return RestoreReport(
            checkpoint=CheckpointInfo.of(record),
            ready=restored.ready,
            tickets=restored.tickets,
            quarantined=restored.quarantined,
            reopened=restored.reopened,
            left_out=left_out,
            regenerated=damaged,
            store_epoch=restored.store_epoch,
        )

    async def _checked(
        self, record: CheckpointRecord, mode: str, *, regenerate_damaged: bool
    ) -> dict[str, str]:
        found = await self.verify(record.name)
        if found.problems:
            raise CheckpointDamaged(
                f"checkpoint {record.name!r} cannot be restored: {'; '.join(found.problems)}",
                name=record.name,
            )
        damaged = dict(found.damaged) if mode == "all" else {}
        if damaged and not regenerate_damaged:
            listed = "; ".join(f"group {name!r}: {why}" for name, why in list(damaged.items())[:10])
            raise CheckpointDamaged(
                f"{len(damaged)} groups of checkpoint {record.name!r} would not come back "
                f"({listed}). Pass regenerate_damaged=True to generate them again.",
                name=record.name,
            )
        return damaged

    async def reopen(self) -> str | None:
        """Go on after a restore of this store that got no answer, if it was applied.

        Returns:
            The checkpoint's name, or ``None`` where there is none.
        """
        return await self._link.tasks.finish(self._restorer.reopen)

    async def record(self, name: str) -> CheckpointRecord:
        """Return a checkpoint's record.

        Raises:
            CheckpointMissing: there is none of this name.
        """
        require_name(name)
        records = {record.name: record for record in await self._records()}
        if name not in records:
            raise CheckpointMissing(
                f"the run has no checkpoint {name!r}; it has {sorted(records)}", name=name
            )
        return records[name]

    async def _records(self, *, remains: bool = False) -> Sequence[CheckpointRecord]:
        self._link.require_open()
        key = self._link.gateway.keyspace.control(Key.CHECKPOINTS)
        [stored] = await self._link.gateway.pipeline([("HGETALL", key)])
        records = [CheckpointRecord.parse(name.decode(), packed) for name, packed in stored.items()]
        wanted = [record for record in records if record.name.startswith("~") == remains]
        return sorted(wanted, key=lambda record: record.seq)

    async def _ask(self, call: StoreScript[R]) -> R:
        """Run a call in the caller's own task."""
        link = self._link
        reply = await link.gateway.call(call, link.run.frame)
        return accept(reply)
