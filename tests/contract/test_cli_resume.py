"""``redis-replay resume`` on a real server."""

from __future__ import annotations

import secrets

import pytest

import redis_replay
from tests.command_line import CommandLine, busy_run
from tests.harness import commit_ready

pytestmark = pytest.mark.anyio


@pytest.fixture
def run() -> str:
    return f"cli-{secrets.token_hex(6)}"


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], real_server: str, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "100")
    return CommandLine(capsys, url=real_server)


async def test_a_dry_run_shows_what_each_sampler_would_take_and_changes_nothing(
    cli: CommandLine, real_server: str, run: str
) -> None:
    async with busy_run(real_server, run):
        seen = (await cli("resume", "--run", run, "--dry-run", "--json")).document
        assert ("continue", 1, {"learner": 1, "writer": 1}) == (
            seen["action"],
            seen["step"],
            seen["held"],
        )
        assert {"selected": ["b", "c"], "evicted": []} == seen["previews"]["in_order"]
        assert {"in_order", "windowed", "ready_first", "weight_fifo"} == seen["previews"].keys()
        shown = await cli("resume", "--run", run, "--dry-run")
        assert shown.out.startswith("Would: go on. Continue with step 1.")
        assert "held by learner" in shown.out
        again = (await cli("resume", "--run", run, "--dry-run", "--json")).document
        assert seen == again


async def test_taking_over_gives_back_what_others_hold(
    cli: CommandLine, real_server: str, run: str
) -> None:
    async with busy_run(real_server, run):
        done = (await cli("resume", "--run", run, "--take-over", "--json")).document
        assert ({}, 1, 2) == (done["held"], done["requeued"], done["redispatched"])


async def test_a_model_older_than_the_run_restores_its_checkpoint_or_says_what_there_is(
    cli: CommandLine, real_server: str, run: str
) -> None:
    async with redis_replay.open_store(real_server, run=run, capacity=4, group_size=2) as store:
        await store.checkpoints.create("start")
        await store.publish_trainer_version(3)
        group_id = await commit_ready(store, 3)
        refused = await cli("resume", "--run", run, "--model-step", "2")
        assert (2, "") == (refused.status, refused.out)
        assert "model is of step 2, the store of step 3" in refused.err
        shown = await cli("resume", "--run", run, "--model-step", "0")
        assert shown.out.startswith("Did: restore checkpoint 'start'. Continue with step 0.")
    async with redis_replay.open_store(real_server, run=run) as store:
        assert 0 == store.trainer_version
        assert group_id not in [slot.group_id for slot in await store.buffer.slots()]
