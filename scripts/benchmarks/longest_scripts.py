"""P15: the longest script by SLOWLOG under a mixed load, and which verbs take longest.

The load is what rollout hosts and trainers do, in batches of 64: cuts, single reservations,
commits, drops with replacement, aborts, claims by every rule, requeues, hand-overs, settled steps,
eviction in its slices of 256, sessions that come and go. The limit of one call, 1,024 groups, is
measured too and stands among the details.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.results import Figure, Found
from benchmarks.scaling import RULES
from benchmarks.targets import WHOLE
from benchmarks.workload import (
    BATCH,
    VERSIONS,
    bare_rows,
    claim,
    commit_all,
    reserve,
    settle,
    settled_down,
)
from redis_replay._redis.lua import load_script
from redis_replay._redis.scripts import ALL_SCRIPTS
from redis_replay.selection import Eviction

_THRESHOLD_MICROSECONDS: Final = 100
_LOG_ENTRIES: Final = 100_000
_EVICTED: Final = 256
_MOST_A_CALL: Final = 1_024


def verbs_by_sha() -> dict[str, str]:
    """Return the verb of every script by the hash under which it is called."""
    return {load_script(call).sha: call.SCRIPT for call in ALL_SCRIPTS}


class ScriptLog:
    """The server's SLOWLOG, read as the longest milliseconds of each verb."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._verbs = verbs_by_sha()

    async def longest(self, load: Callable[[], Awaitable[object]]) -> dict[str, float]:
        """Run a load and return the longest script of each verb, in milliseconds."""
        await self._client.config_set("slowlog-max-len", _LOG_ENTRIES)
        await self._client.config_set("slowlog-log-slower-than", _THRESHOLD_MICROSECONDS)
        await self._client.slowlog_reset()
        await load()
        longest: dict[str, float] = {}
        for entry in await self._client.slowlog_get(_LOG_ENTRIES):
            words = entry["command"].split(b" ", 2)
            if words[0].upper() == b"EVALSHA":
                verb = self._verbs.get(words[1].decode(), "unknown")
                longest[verb] = max(longest.get(verb, 0.0), entry["duration"] / 1000)
        await self._client.config_set("slowlog-log-slower-than", -1)
        return longest


async def measure_longest_scripts(bench: Bench, store: Any, client: Any) -> Found:
    """Measure P15 on a filled buffer; afterwards it has as many groups as before."""
    bench.say("the longest script of a mixed load")
    log = ScriptLog(client)
    rounds = [await log.longest(lambda: mixed_load(store)) for _ in range(bench.rounds)]
    largest_calls = await log.longest(lambda: largest_calls_load(store))
    return Found(
        samples={"P15": {WHOLE: [max(one.values()) for one in rounds]}},
        details={
            "longest scripts": {
                "ms": _medians(rounds),
                f"ms, calls of {_MOST_A_CALL:,} groups": largest_calls,
            }
        },
    )


def _medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    verbs = {verb for one in rounds for verb in one}
    medians = {verb: Figure.of([one.get(verb, 0.0) for one in rounds]).value for verb in verbs}
    return dict(sorted(medians.items(), key=lambda item: -item[1]))


async def mixed_load(store: Any) -> None:
    """Make every call of a run, in batches of 64."""
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(store.rollout(owner="host"))
        trainer = await stack.enter_async_context(store.trainer(owner="job"))
        second = await stack.enter_async_context(store.trainer(owner="second"))
        for rule in RULES:
            await claim(trainer, rule=rule)
            await trainer.requeue()
        meta = await claim(trainer)
        await trainer.transfer_claims(to="second")
        await second.adopt_claims()
        await settle(second, meta)
        slots = await reserve(host, [1 + at % VERSIONS for at in range(BATCH)])
        await commit_all(host, slots, lambda _: bare_rows())
        await _end_some(host)
        await store.stats()
        await settled_down(store)
    async with store.rollout(owner="host") as host:  # its tickets, which nobody held meanwhile
        await reserve(host, [1] * BATCH)
    async with store.rollout(owner="host") as host:
        tickets = await host.take_tickets(max_tickets=BATCH, weight_version=1)
        for ticket in tickets:
            await host.buffer.abort(ticket.group_id)
    await settled_down(store)


async def _end_some(host: Any) -> None:
    """Reserve, commit and evict a slice of the oldest version, and lend a group."""
    slots = await reserve(host, [0] * _EVICTED)
    await commit_all(host, slots, lambda _: bare_rows())
    await host.buffer.promote_ready_group(to_target_step=1)
    await host.buffer.evict(Eviction(below=1))


async def largest_calls_load(store: Any) -> None:
    """Reserve, claim, requeue and settle as many groups as one call may have."""
    slots = await reserve(store, [1] * _MOST_A_CALL)
    await commit_all(store, slots, lambda _: bare_rows())
    await claim(store, _MOST_A_CALL)
    await store.buffer.claims.requeue_all(failed=False)
    await settle(store, await claim(store, _MOST_A_CALL))
    await settled_down(store)
