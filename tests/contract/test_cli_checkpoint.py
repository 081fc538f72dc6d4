"""``redis-replay checkpoint`` on a real server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redis_replay
from redis_replay import embedded
from redis_replay._redis.keys import Keyspace
from redis_replay.checkpoint_files import MANIFEST
from redis_replay.store import DEFAULT_PARTITION
from tests.command_line import CAPACITY, CommandLine, Finished, busy_run, server_at
from tests.contract.exports import files_in
from tests.contract.test_sampler_trust import Declared, custom

pytestmark = pytest.mark.anyio


@pytest.fixture
def run() -> str:
    return f"cli-{secrets.token_hex(6)}"


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], real_server: str, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "120")
    return CommandLine(capsys, url=real_server)


@pytest.fixture
def other_cli(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[CommandLine]:
    """The command line on a server that holds nothing."""
    with embedded.open_embedded(tmp_path / "other", appendfsync="no") as lease:
        yield CommandLine(capsys, url=lease.url)


def assert_refused(finished: Finished, *words: str) -> None:
    """Assert one plain line on stderr with these words, and exit status 2."""
    assert (2, "") == (finished.status, finished.out)
    lines = [line for line in finished.err.splitlines() if line.startswith("redis-replay: ")]
    assert 1 == len(lines), finished.err
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in finished.err


async def test_a_checkpoint_is_made_listed_shown_pinned_and_dropped(
    cli: CommandLine, real_server: str, run: str
) -> None:
    place = ("--run", run)
    async with busy_run(real_server, run):
        assert "No checkpoint." in (await cli("checkpoint list", *place)).out
        made = await cli("checkpoint create", "one", *place, "--step", "1", "--extra", '{"a": [1]}')
        assert (0, True) == (made.status, made.out.startswith("Kept as 'one'."))
        found = (await cli("checkpoint show", "one", *place, "--json")).document
        expected = {"reserved": 2, "ready": 1, "claimed": 1, "quarantined": 0}
        assert (expected, {"a": [1]}, 1, False) == (
            *(found["groups"], found["extra"], found["step"], found["pinned"]),
        )
        pinned = await cli("checkpoint pin", "one", *place, "--json")
        assert pinned.document["pinned"]
        for name in ("two", "three"):
            await cli("checkpoint create", name, *place, "--keep", "1")
        listed = (await cli("checkpoint list", *place, "--json")).document["checkpoints"]
        assert ["one", "three"] == [known["name"] for known in listed]
        table = (await cli("checkpoint list", *place)).out
        assert [["one", "1", "4"], ["three", "1", "4"]] == [
            line.split()[:3] for line in table.splitlines()[2:]
        ]
        assert "pinned" in table
        assert not (await cli("checkpoint unpin", "one", *place, "--json")).document["pinned"]
        dropped = (await cli("checkpoint drop", "one", *place, "--json")).document
        assert {"name": "one", "given_back": 0} == dropped
        assert "Dropped 'three'" in (await cli("checkpoint drop", "three", *place)).out


async def test_verify_says_what_would_come_back_and_what_not(
    cli: CommandLine, real_server: str, run: str
) -> None:
    async with busy_run(real_server, run):
        await cli("checkpoint create", "one", "--run", run)
        whole = await cli("checkpoint verify", "one", "--run", run, "--deep")
        assert 0 == whole.status
        assert "All 2 finished groups come back; 2 come back as prompts" in whole.out
        with server_at(real_server) as client:
            [key] = client.keys(f"{Keyspace(run, DEFAULT_PARTITION).payload_prefix}c:*")
            client.delete(key)
        broken = await cli("checkpoint verify", "one", "--run", run)
        assert 1 == broken.status
        assert "Group 'c': its payload has 0 of" in broken.out
        assert "1 of 2 groups would be lost." in broken.out
        document = (await cli("checkpoint verify", "one", "--run", run, "--json")).document
        assert (["c"], ["d", "e"], False) == (
            *(list(document["damaged"]), document["unfinished"], document["whole"]),
        )
        refused = await cli("checkpoint restore", "one", "--run", run)
        assert_refused(refused, "1 groups of checkpoint 'one' would not come back")
        restored = await cli(
            "checkpoint restore", "one", "--run", run, "--regenerate-damaged", "--json"
        )
        assert (1, 3, ["c"]) == (
            *(restored.document["ready"], restored.document["tickets"]),
            list(restored.document["regenerated"]),
        )


async def test_restore_says_where_to_go_on(cli: CommandLine, real_server: str, run: str) -> None:
    async with busy_run(real_server, run):
        await cli("checkpoint create", "one", "--run", run)
        shown = await cli("checkpoint restore", "one", "--run", run, "--mode", "prompts_only")
        assert shown.out.startswith("Restored 'one': continue with step 1.")
        counts = dict(line.rsplit(maxsplit=1) for line in shown.out.splitlines()[3:])
        assert {"ready": "0", "tickets": "4"} == {
            name.strip(): counts[name] for name in ("ready", "tickets")
        }


async def test_a_run_of_a_custom_sampler_is_restored_when_its_class_says_so(
    cli: CommandLine, real_server: str, run: str
) -> None:
    place = ("--run", run)
    async with redis_replay.open_store(real_server, run=run, capacity=9, group_size=2) as store:
        sampler = redis_replay.create_sampler(store.buffer, custom(Declared))
        await sampler.flush()  # type: ignore[attr-defined]
        await store.checkpoints.create("one")
    refused = await cli("checkpoint restore", "one", *place)
    assert_refused(refused, f"{Declared.__module__}:Declared", "--custom-sampler")
    for target, says in (
        (f"{Declared.__module__}:Undeclared", "supports_buffer_checkpoint = True"),
        ("nowhere:Nobody", "No module named 'nowhere'"),
    ):
        named = ("--custom-sampler", target)
        assert_refused(await cli("checkpoint restore", "one", *place, *named), says)
    named = ("--custom-sampler", f"{Declared.__module__}:Declared")
    assert 0 == (await cli("checkpoint restore", "one", *place, *named)).status
    assert 0 == (await cli("resume", *place, *named)).status


async def test_an_export_goes_into_a_run_that_is_not_there_on_another_server(
    cli: CommandLine, other_cli: CommandLine, real_server: str, run: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "exported")
    async with busy_run(real_server, run):
        await cli("checkpoint create", "one", "--run", run)
        written = await cli("checkpoint export", "one", folder, "--run", run, "--json")
        assert (0, "") == (written.status, written.err)
        assert (2, 2) == (written.document["groups"], written.document["groups_written"])
        again = await cli("checkpoint export", "one", folder, "--run", run)
        assert again.out.startswith(f"Exported 'one' to {folder}: 2 groups in")
    arrived = (await other_cli("checkpoint import", folder, "--json")).document
    assert (run, DEFAULT_PARTITION, True) == (
        *(arrived["run"], arrived["partition"], arrived["created"]),
    )
    assert ("one", 1) == (arrived["checkpoint"]["name"], arrived["checkpoint"]["step"])
    async with redis_replay.open_store(other_cli.url, run=run, create=False) as store:
        settings = store.run.settings
        assert (CAPACITY, 2, 2) == (
            *(settings.capacity, settings.group_size, settings.groups_per_step),
        )
        assert (2, 2) == (
            (report := await store.checkpoints.restore("one")).ready,
            report.tickets,
        )
    renamed = ("--run", "second", "--partition", "p", "--name", "kept", "--capacity", "5")
    shown = await other_cli("checkpoint import", folder, *renamed)
    assert shown.out.startswith("Imported 'kept' into the new run second / p.")
    more = ("--run", "second", "--name", "more")
    refused = await other_cli(
        "checkpoint import", folder, *more, "--partition", "p", "--capacity", "1"
    )
    assert 0 == refused.status
    assert "into run second / p." in refused.out
    names = (await other_cli("checkpoint list", "--run", "second", "--json")).document
    assert ["kept", "more"] == [known["name"] for known in names["checkpoints"]]


async def test_what_cannot_be_imported_or_exported_is_one_line_and_creates_nothing(
    cli: CommandLine, other_cli: CommandLine, real_server: str, run: str, tmp_path: Path
) -> None:
    folder = tmp_path / "exported"
    async with busy_run(real_server, run):
        await cli("checkpoint create", "one", "--run", run)
        await cli("checkpoint export", "one", str(folder), "--run", run)
        assert_refused(
            await cli("checkpoint export", "two", str(folder), "--run", run),
            "no checkpoint 'two'; it has ['one']",
        )
        assert_refused(
            await cli("checkpoint export", "one", str(folder / MANIFEST / "x"), "--run", run),
            "Not a directory",
        )
        assert_refused(await cli("checkpoint import", str(folder), "--run", run), "'one' already")
        assert_refused(
            await cli("checkpoint create", "a/b", "--run", run), "name is 1 to 64 letters"
        )
        assert_refused(
            await cli("checkpoint create", "b", "--run", run, "--extra", "{"), "Expecting"
        )
        assert_refused(
            await cli("checkpoint create", "b", "--run", run, "--step", "7"), "trainer version is 1"
        )
    manifest = folder / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-5])
    assert_refused(
        await other_cli("checkpoint import", str(folder)), str(manifest), "cut off", "offset"
    )
    assert_refused(
        await other_cli("checkpoint import", str(tmp_path / "none")), "there is no export"
    )
    with server_at(str(other_cli.url)) as client:
        assert [] == client.keys()


@pytest.mark.parametrize("command", ["create x", "list", "show x", "drop x", "export x y"])
async def test_a_run_that_is_not_there_is_not_created(cli: CommandLine, command: str) -> None:
    finished = await cli(f"checkpoint {command}", "--run", "absent-run")
    assert_refused(finished, "'absent-run' is not on")


async def test_an_import_that_was_cut_short_is_shown_as_such(
    cli: CommandLine, real_server: str, run: str, tmp_path: Path
) -> None:
    async with busy_run(real_server, run):
        await cli("checkpoint create", "one", "--run", run)
        await cli("checkpoint export", "one", str(tmp_path / "e"), "--run", run)
        assert {MANIFEST} < files_in(tmp_path / "e").keys()
        imported = await cli(
            "checkpoint import", str(tmp_path / "e"), "--run", run, "--name", "two"
        )
        assert 0 == imported.status
        key = f"rr:{{{Keyspace(run, DEFAULT_PARTITION).tag}}}:checkpoints"
        with server_at(real_server) as client:
            record: Any = client.hget(key, "two")
            client.hset(key, "two", record.replace(b"8:complete", b"8:building", 1))
        assert "import not ended" in (await cli("checkpoint list", "--run", run)).out
        verified = await cli("checkpoint verify", "two", "--run", run, "--json")
        assert (1, False) == (verified.status, json.loads(verified.out)["whole"])
        assert 0 == (await cli("checkpoint drop", "two", "--run", run)).status
