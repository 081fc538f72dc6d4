"""What holds for every script: repetition, refusals of its frame, and keys of another type."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay._redis.checkpoint_scripts import (
    AddToImport,
    Condemn,
    Discard,
    DropCheckpoint,
    MarkCheckpoint,
    Restore,
)
from redis_replay._redis.events import Wakeups
from redis_replay._redis.frames import SessionScript, StoreScript, UseUp
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import ScriptCall, load_script
from redis_replay._redis.refusals import Refusal
from redis_replay._redis.run_scripts import Attach, Bury, EndOwner, Heartbeat, OpenRun, ReadTogether
from redis_replay._redis.scripts import ALL_SCRIPTS, Claimed, Commit, Evict, Settle
from redis_replay._redis.selecting_scripts import SelectedForGood
from redis_replay.errors import (
    CallConflict,
    ReplayError,
    SchemaMismatch,
    StaleOwner,
    StaleStore,
    StoreCorrupted,
    StoreMissing,
    StoreRegressed,
)
from tests.contract.keyspace import control_key, nothing_changed, snapshot
from tests.contract.scene import CALLS, opened_scene, total_of
from tests.harness import Runs

pytestmark = pytest.mark.anyio

Script = type[ScriptCall[Any]]
OF_SESSIONS = [script for script in ALL_SCRIPTS if issubclass(script, SessionScript)]
OF_THE_RUN = [script for script in ALL_SCRIPTS if issubclass(script, StoreScript)]
FRAMED = [*OF_SESSIONS, *OF_THE_RUN]
BEATS_OR_ATTACHES = (Heartbeat, Attach)
HOUSEKEEPING = (AddToImport, Bury, Condemn, DropCheckpoint, MarkCheckpoint, UseUp)
"""They change nothing that a session sees, and are not counted as mutations."""


@pytest.fixture(autouse=True)
def no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no store read the journal: the fake server cannot serve a blocked reader another type."""

    async def nothing(wakeups: Wakeups) -> None:
        del wakeups

    monkeypatch.setattr(Wakeups, "read_forever", nothing)


def each(scripts: list[Script] | tuple[Script, ...]) -> Any:
    """Run a test for each script."""
    return pytest.mark.parametrize("script", scripts, ids=lambda script: script.SCRIPT)


def test_every_script_has_a_call() -> None:
    assert set(ALL_SCRIPTS) == set(CALLS)


@each([script for script in FRAMED if script not in (Heartbeat, Discard)])
async def test_a_call_changes_something_and_counts_as_one_mutation(
    runs: Runs, script: Script
) -> None:
    async with opened_scene(runs) as scene:
        before, events = await total_of(runs, "seq"), await event_count(runs)
        content = await snapshot(runs)
        await scene.apply(CALLS[script](scene))
        assert content != await snapshot(runs)
        if script not in HOUSEKEEPING:
            assert before + 1 == await total_of(runs, "seq")
            assert events + 1 == await event_count(runs)


async def event_count(runs: Runs) -> int:
    """Return the length of the journal."""
    return int(await runs.client.xlen(control_key(runs, Key.EVENTS)))


@each(OF_SESSIONS)
async def test_a_repeated_number_gets_the_first_answer_and_changes_nothing(
    runs: Runs, script: Script
) -> None:
    async with opened_scene(runs) as scene:
        call = CALLS[script](scene)
        first = kept_answer(await scene.apply(call))
        async with nothing_changed(runs):
            assert first == kept_answer(await scene.apply(call))
            assert first == kept_answer(await scene.apply(call))


def kept_answer(reply: Any) -> Any:
    """Return what a repetition answers too: all but the records of claimed groups."""
    return reply._replace(records=[]) if isinstance(reply, Claimed | SelectedForGood) else reply


@each(OF_SESSIONS)
async def test_a_number_used_for_another_call_or_too_old_is_refused(
    runs: Runs, script: Script
) -> None:
    async with opened_scene(runs) as scene:
        call = CALLS[script](scene)
        await scene.apply(call)
        async with nothing_changed(runs):
            reused = await scene.send(call, digest="other")
            expired = await scene.send(call, number=1600 - 16)
        assert ("REUSED", "EXPIRED") == (reused.code, expired.code)
        assert (CallConflict, CallConflict) == (type(reused.error), type(expired.error))
        assert "call 1600 " in str(expired.error)


async def test_numbers_sixteen_apart_share_a_place_in_the_window(runs: Runs) -> None:
    async with opened_scene(runs) as scene:
        settle, first, second = CALLS[Settle](scene), Evict(1, below=4), Evict(1, below=5)
        await scene.apply(first, number=1600)
        await scene.apply(settle, number=1601)
        await scene.apply(second, number=1616)
        scene.session.link.gateway.control = None  # an older answer is no lost history here
        async with nothing_changed(runs):
            assert 1 == await scene.apply(second, number=1616)
            scene.session.link.gateway.control = None
            assert (0, ("c",)) == await scene.apply(settle, number=1601)
            assert "EXPIRED" == (await scene.send(first, number=1600)).code


@each(OF_SESSIONS)
async def test_an_ended_session_is_fenced_and_changes_nothing(runs: Runs, script: Script) -> None:
    async with opened_scene(runs) as scene:
        call = CALLS[script](scene)
        owner, epoch = scene.session.owner, scene.session.epoch
        await scene.apply(EndOwner(owner, epoch, None, planned=1))
        async with nothing_changed(runs):
            refused = await scene.send(call)
            assert "FENCED" == refused.code
            assert StaleOwner is type(refused.error)
        await scene.apply(Attach(owner, "client", 1, 60_000, "here", 0))
        async with nothing_changed(runs):
            assert "FENCED" == (await scene.send(call)).code


STRANGE_RUNS: dict[str, tuple[dict[str, Any], type[ReplayError], str]] = {
    "SCHEMA": ({"min_writer": 9}, SchemaMismatch, "schema 9"),
    "LINEAGE": ({"lineage": "another"}, StoreRegressed, "lineage another"),
    "STALE_STORE": ({"store_epoch": 2}, StaleStore, "store epoch 2"),
    "MISSING": ({}, StoreMissing, "not on this server"),
}


@each(FRAMED)
async def test_a_run_that_is_not_the_one_that_was_opened_is_not_touched(
    runs: Runs, script: Script
) -> None:
    meta = control_key(runs, Key.META)
    async with opened_scene(runs) as scene:
        call = CALLS[script](scene)
        kept = await runs.client.hgetall(meta)
        for code, (change, error, words) in STRANGE_RUNS.items():
            if change:
                await runs.client.hset(meta, mapping=change)
            else:
                await runs.client.delete(meta)
            async with nothing_changed(runs):
                refused = await scene.send(call)
                assert code == refused.code
                assert error is type(refused.error)
                assert words in str(refused.error)
            await runs.client.hset(meta, mapping=kept)


@each([script for script in ALL_SCRIPTS if script is not ReadTogether])
async def test_a_key_of_another_type_stops_a_call_before_it_writes(
    runs: Runs, script: Script
) -> None:
    runs.audited = script is not Discard
    async with opened_scene(runs) as scene:
        call = CALLS[script](scene)
        for key in script.KEYS:
            name = control_key(runs, key)
            kept = f"{name}:kept"
            if await runs.client.exists(name):
                await runs.client.rename(name, kept)
            await runs.client.set(name, "text")
            async with nothing_changed(runs):
                with pytest.raises(StoreCorrupted, match="another type"):
                    await scene.send(call)
            await runs.client.delete(name)
            if await runs.client.exists(kept):
                await runs.client.rename(kept, name)
        await scene.apply(call)


async def test_a_payload_key_of_another_type_stops_a_commit_before_it_writes(runs: Runs) -> None:
    async with opened_scene(runs) as scene:
        call = CALLS[Commit](scene)
        [key] = [key for key in await runs.payload_keys() if ":r:" in key]
        kept = await runs.client.get(key)
        await runs.client.delete(key)
        await runs.client.hset(key, "a", "b")
        session = scene.session
        frame = (*session.link.run.frame, session.owner, session.epoch, 1600, "digest")
        gateway = session.link.gateway
        async with nothing_changed(runs):
            with pytest.raises(StoreCorrupted):
                await gateway.run(lambda client: commit_alone(client, gateway, call, frame, key))
        await runs.client.delete(key)
        await runs.client.set(key, kept)


async def commit_alone(client: Any, gateway: Any, call: Any, frame: Any, key: str) -> Any:
    """Run a commit with its payload key named, but not written."""
    names = [*[gateway.keyspace.control(k) for k in call.KEYS], key]
    return await client.execute_command(
        "EVAL",
        load_script(type(call)).text,
        len(names),
        *(*names, 0, *frame, *call.argument_values()),
    )


@each([script for script in OF_THE_RUN if script not in (*BEATS_OR_ATTACHES, Restore, Discard)])
async def test_a_call_about_the_run_may_be_repeated(runs: Runs, script: Script) -> None:
    async with opened_scene(runs) as scene:
        call = CALLS[script](scene)
        await scene.apply(call)
        once = await content_but_counts(runs)
        await scene.apply(call)
        assert once == await content_but_counts(runs)


async def content_but_counts(runs: Runs) -> dict[str, Any]:
    """Return the run's content without the journal and the count of mutations."""
    content = await snapshot(runs)
    del content[control_key(runs, Key.EVENTS)]
    for field in (b"seq", b"next_fence"):
        del content[control_key(runs, Key.META)][field]
    return content


async def test_opening_a_run_that_is_there_changes_nothing(runs: Runs) -> None:
    async with opened_scene(runs) as scene:
        async with nothing_changed(runs):
            for create in (0, 1):
                created, stored = await scene.apply(OpenRun(create, ("capacity", "1")))
                assert (False, b"32") == (created, stored["capacity"])
        runs.name += "-absent"
        scene.session.link.gateway.keyspace = type(scene.session.link.gateway.keyspace)(
            runs.name, "p"
        )
        refused = await scene.send(OpenRun(0, ()))
        assert isinstance(refused, Refusal)
        assert "MISSING" == refused.code
        assert [] == await runs.keys()
