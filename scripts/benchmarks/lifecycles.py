"""P13 and P14: the whole lifecycle of groups, the store's and each peer's, in turns.

A round of one group size puts its groups one by one, chooses them as a batch, reads all their rows
and releases them. The store runs on a server of its own with its client in this process; a peer
runs with its own server or actor behind a client in a worker. One peer after the other is started
and stopped, so that none disturbs another's comparison.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks.bench import Bench
from benchmarks.peers.installing import PEERS, PeerPackage, PeerUnavailable, installed
from benchmarks.processes import Lines, ProcessEnded, process_of_lines
from benchmarks.results import Figure, Found
from benchmarks.rows import Rows, group_rows
from benchmarks.servers import own_server
from benchmarks.transfer import commit_round, read_round
from benchmarks.turns import Side, ratios, take_turns
from benchmarks.workload import PROFILES, Profile, opened

_START_SECONDS: Final = 120.0
_ROUND_SECONDS: Final = 60.0
_CHOOSE_SECONDS: Final = 180.0
_CHOSEN_AMONG: Final = (1_000, 10_000)
_CHOICES: Final = 9
_PROJECT: Final = Path(__file__).parents[2]


def peers_folder() -> Path:
    """Return where peers are installed: ``REDIS_REPLAY_PEERS``, or ``.peers`` in the project."""
    return Path(os.environ.get("REDIS_REPLAY_PEERS") or _PROJECT / ".peers")


async def measure_lifecycles(bench: Bench) -> Found:
    """Measure P13 and P14; a peer that cannot be installed or run is skipped, in words."""
    found = Found()
    if not bench.peers:
        why = "peers are measured with --peers only"
        return Found(skipped={"P13": why, "P14": why})
    for peer in PEERS:
        if (peer.target or "P14") not in bench.wanted:
            continue
        bench.say(f"the lifecycle against {peer.title}")
        try:
            found.add(await _against(peer, bench))
        except PeerUnavailable as failure:
            bench.say(f"skipped: {failure}")
            found.skipped[f"{peer.target or 'also'} {peer.name}"] = str(failure)
    return found


@asynccontextmanager
async def _worker(peer: PeerPackage, bench: Bench) -> AsyncIterator[Lines]:
    python = await anyio.to_thread.run_sync(installed, peer, peers_folder())
    log = bench.folder / f"{peer.name}.log"
    # What the project's own environment says is nothing to a peer's, but for this package.
    env = {**os.environ, "PYTHONPATH": str(_PROJECT / "scripts")}
    command: list[str | Path] = [python, "-m", peer.module, *peer.arguments]
    with log.open("w") as written:
        async with process_of_lines(command, peer.title, env=env, log=written) as lines:
            try:
                yield lines
            except (ProcessEnded, TimeoutError) as failure:
                said = " ".join(log.read_text(errors="replace").splitlines()[-3:])
                why = str(failure) or "it did not answer in time"
                raise PeerUnavailable(f"{peer.title}: {why}; it said: {said}") from failure


async def _against(peer: PeerPackage, bench: Bench) -> Found:
    found, samples = Found(), dict[str, list[float]]()
    details: dict[str, Any] = {"title": peer.title, "groups/s": {}, "choose 64, ms": {}}
    async with _worker(peer, bench) as lines:
        with anyio.fail_after(_START_SECONDS):
            await lines.answer()
        for profile in PROFILES:
            seconds = await _profile(profile, lines, bench)
            part = f"{peer.name} {profile.name}" if peer.target == "P13" else profile.name
            samples[part] = ratios(seconds["peer"], seconds["ours"])
            details["groups/s"][profile.name] = {
                side: profile.groups / Figure.of(listed).value for side, listed in seconds.items()
            }
        for among in _CHOSEN_AMONG if peer.chooses else ():
            with anyio.fail_after(_CHOOSE_SECONDS):
                spent = await lines.ask("choose", among, _CHOICES)
            details["choose 64, ms"][str(among)] = Figure.of(spent).value * 1000
    if peer.target is not None:
        found.samples[peer.target] = samples
    found.details[f"peer {peer.name}"] = details
    return found


async def _profile(profile: Profile, lines: Lines, bench: Bench) -> dict[str, list[float]]:
    """Return the seconds of a round's lifecycle on both sides."""
    rows = group_rows(profile.tokens)

    async def peer() -> float:
        with anyio.fail_after(_ROUND_SECONDS):
            return float(await lines.ask("lifecycle", profile.tokens, profile.groups))

    with own_server() as socket:
        async with opened(socket, "lifecycle", profile.groups) as store:
            ours = partial(_our_lifecycle, store, rows, profile.groups)
            sides: dict[str, Side] = {"ours": ours, "peer": peer}
            return await take_turns(sides, bench.rounds, warmups=2)


async def _our_lifecycle(store: Any, rows: Rows, groups: int) -> float:
    return await commit_round(store, rows, groups) + await read_round(store, groups)
