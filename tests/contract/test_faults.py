"""A broken exchange with the server: applied exactly once, and the caller gets the first answer.

Every verb runs twice in the same situation, once undisturbed and once through a proxy that breaks
its exchange. Answer, slots, totals and journal must be the same.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from redis_replay._redis import connect
from redis_replay._redis.lua import ScriptCall, load_script
from redis_replay._redis.run_scripts import Publish
from redis_replay._redis.scripts import (
    Abort,
    Admit,
    ApplyCut,
    Claim,
    Commit,
    Evict,
    Promote,
    Remove,
    Requeue,
    Reserve,
    Settle,
    TakeTickets,
    Transfer,
)
from redis_replay.selection import Eviction
from tests.chaos.proxy import Fault, fault_proxy, through
from tests.contract.stage import Stage, opened_stage
from tests.harness import rows

pytestmark = pytest.mark.anyio

SOCKET_TIMEOUT_SECONDS = 0.25


async def nothing(stage: Stage) -> None:
    """Prepare nothing."""


async def select_first(stage: Stage) -> None:
    await stage.select()


async def leave_a_ticket(stage: Stage) -> None:
    async with stage.store.rollout(owner="leaver") as leaver:
        await leaver.buffer.reserve(0, group_id="ticket", target_step=1, prompt_ref=b"prompt")


async def reserve(stage: Stage) -> Any:
    return await stage.rollout.buffer.reserve(0, group_id="new", target_step=1)


async def commit(stage: Stage) -> Any:
    await stage.rollout.buffer.commit("d", rows(7), start_weight_version=0, end_weight_version=1)
    [row] = await stage.rollout.samples.get_samples(["d_g0"], select_fields=["reward"])
    return row


async def commit_step(stage: Stage) -> Any:
    return await stage.trainer.commit_step(0)


async def admit(stage: Stage) -> Any:
    return await stage.sampler.admit(trainer_version_fn=lambda: 0)


async def cut(stage: Stage) -> Any:
    async with stage.rollout.mutation() as unit:
        step = stage.sampler.commit_admission(unit)
        for name in ("e", "f"):
            unit.reserve(0, target_step=step, group_id=name)
        unit.set_loader_state(b"position")
    return unit.reservations


async def requeue(stage: Stage) -> Any:
    return await stage.trainer.abort_step()


async def transfer(stage: Stage) -> Any:
    return await stage.trainer.transfer_claims(to="host")


async def take_tickets(stage: Stage) -> Any:
    return await stage.rollout.take_tickets(max_tickets=2, weight_version=1)


async def evict(stage: Stage) -> Any:
    return await stage.trainer.buffer.evict(Eviction(below=1, by_target_step=True))


async def promote(stage: Stage) -> Any:
    return await stage.trainer.buffer.promote_ready_group(to_target_step=0)


async def abort(stage: Stage) -> Any:
    return await stage.rollout.buffer.abort("d")


async def remove(stage: Stage) -> Any:
    return await stage.trainer.buffer.remove(["a", "d"])


async def publish(stage: Stage) -> Any:
    return await stage.store.publish_trainer_version(3)


Act = Callable[[Stage], Awaitable[Any]]

EXCHANGES: dict[str, tuple[type[ScriptCall[Any]], Act, Act]] = {
    "reserve": (Reserve, nothing, reserve),
    "commit": (Commit, nothing, commit),
    "claim": (Claim, nothing, Stage.select),
    "commit_step": (Settle, select_first, commit_step),
    "admit": (Admit, nothing, admit),
    "cut": (ApplyCut, nothing, cut),
    "requeue": (Requeue, select_first, requeue),
    "transfer": (Transfer, select_first, transfer),
    "take_tickets": (TakeTickets, leave_a_ticket, take_tickets),
    "evict": (Evict, nothing, evict),
    "promote": (Promote, nothing, promote),
    "abort": (Abort, nothing, abort),
    "remove": (Remove, nothing, remove),
    "publish": (Publish, nothing, publish),
}
BRIEF_FAULTS = (Fault.RESET_AFTER_REQUEST, Fault.LATE_REPLY)
MAIN_VERBS = ("reserve", "commit", "claim", "commit_step", "admit", "cut")
CASES = [
    (verb, fault)
    for verb in EXCHANGES
    for fault in Fault
    if verb in MAIN_VERBS or fault in BRIEF_FAULTS
]


@pytest.mark.parametrize(("verb", "fault"), CASES)
async def test_a_broken_exchange_is_applied_once_and_answered_with_the_first_answer(
    real_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    fault: Fault,
) -> None:
    call, prepare, act = EXCHANGES[verb]
    run = f"test-{secrets.token_hex(6)}"
    async with opened_stage(real_server, f"{run}-calm") as calm:
        await prepare(calm)
        expected = await act(calm), await calm.outcome()

    monkeypatch.setattr(connect, "SILENCE_SECONDS", SOCKET_TIMEOUT_SECONDS)
    upstream = Path(urlsplit(real_server).path)
    async with fault_proxy(tmp_path, upstream) as proxy, opened_stage(proxy.url, run) as broken:
        await prepare(broken)
        answer = await through(proxy, fault, load_script(call).sha, lambda: act(broken))
        assert expected == (answer, await broken.outcome())
        assert () == (await broken.store.audit()).violations
