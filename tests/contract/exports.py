"""Runs to export, and what two runs must have in common to be the same state of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redis_replay import DynamicSampling, InOrderSamplerConfig, ReplayStore, create_sampler
from redis_replay._redis.keys import Key, group_field
from redis_replay._redis.records import SlotRecord
from redis_replay.group_record import unpack_record
from tests.contract.prompt_groups import record_of
from tests.harness import commit_ready, rows

KEPT_OF_META = (
    *(b"trainer_version", b"dispatch_index", b"gate_window", b"loader_state", b"admitted"),
    *(b"policy", b"windows", b"drained_step"),
)
OWN_OF_A_SLOT = ("fence", "payload_fence", "epoch", "batch", "written")
HOSTILE_IDS = ("../../escape", "a/b\\c", "d\x00\n:e", "ünï:%41 {x}")


async def fill(store: ReplayStore) -> None:
    """Bring a run to step 1, with groups in every state, odd ids, prompts, tallies and a ledger."""
    async with store.trainer(owner="job") as trainer, store.rollout(owner="host") as host:
        sampler = create_sampler(trainer.buffer, InOrderSamplerConfig(max_lookahead_versions=3))
        for step in (0, 1, 2):
            assert step == await sampler.admit(trainer_version_fn=lambda: 0)
        await commit_ready(host, 0, group_id="trained", target_step=0)
        await trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)
        await trainer.commit_step(0)
        async with host.mutation() as cut:
            cut.set_loader_state(b"\x00 at prompt 17")
        for number, group_id in enumerate(HOSTILE_IDS):
            await host.buffer.reserve(
                1, group_id=group_id, target_step=1 + number % 2, prompt_ref=group_id.encode()
            )
            await host.buffer.commit(
                group_id,
                rows(number, length=number + 1),
                start_weight_version=1,
                end_weight_version=1 + number,
            )
        await host.buffer.reserve(1, group_id="dull", target_step=1)
        await host.filter(DynamicSampling()).commit(
            "dull", record_of([1.0, 1.0]), start_weight_version=1, end_weight_version=1
        )
        await host.buffer.reserve(1, group_id="unfinished", target_step=1, prompt_ref=b"p")
        await host.buffer.reserve(1, group_id="bad", target_step=1)
        await host.buffer.remove(["bad"])
        await store.buffer.claim_for_training([HOSTILE_IDS[0]])


async def essence(store: ReplayStore) -> dict[str, Any]:
    """Return what must be equal of a run and of one that was restored from its export."""
    gateway = store.buffer.session.link.gateway
    keys = [Key.META, Key.SLOTS, Key.PROMPTS, Key.STEPS, Key.TALLY, Key.COUNTERS, Key.ENDS]
    names = [gateway.keyspace.control(key) for key in (*keys, Key.ADMISSIONS, Key.GROUPS)]
    meta, slots, *others, admissions, records = await gateway.pipeline(
        [("HGETALL", name) for name in names]
    )
    found: dict[str, Any] = dict(zip(keys[2:], others, strict=True))
    found["meta"] = {name: meta.get(name) for name in KEPT_OF_META}
    found["admissions"] = sorted(admissions)
    found["groups"] = {}
    for group_id, packed in slots.items():
        slot = SlotRecord.parse(group_id, packed)
        kept = {
            name: getattr(slot, name) for name in SlotRecord._fields if name not in OWN_OF_A_SLOT
        }
        fence = slot.payload_fence
        if fence is not None:
            blob = records[group_field(slot.group_id, fence).encode()]
            names = unpack_record(slot.group_id, blob).payload_keys(gateway.keyspace, fence)
            kept["record"] = blob
            kept["payload"] = await gateway.pipeline([("GET", name) for name in names])
        found["groups"][slot.group_id] = kept
    return found


def names_in(folder: Path) -> list[str]:
    """Return what lies in a folder, at any depth; packs by their kind."""
    return sorted(path.relative_to(folder).as_posix()[:7] for path in folder.rglob("*"))


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def pack_in(folder: Path) -> Path:
    """Return the only pack in a folder."""
    [pack] = folder.glob("groups-*")
    return pack
