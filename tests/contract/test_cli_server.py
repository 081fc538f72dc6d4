"""``up`` and ``down``: an embedded server that stays, and commands that read from its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from redis_replay import embedded
from redis_replay.embedded.record import read_record
from tests.command_line import CommandLine, busy_run, run_program

pytestmark = pytest.mark.anyio


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose name needs encoding in an address; its server does not outlive the test."""
    path = tmp_path / "my data#1"
    yield path
    embedded.stop_embedded(path)


@pytest.fixture
def cli(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> CommandLine:
    monkeypatch.delenv("REDIS_REPLAY_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return CommandLine(capsys, url=None)


def server_runs(folder: Path) -> bool:
    record = read_record(folder)
    return record is not None and record.pid is not None


async def test_up_leaves_a_server_that_other_programs_find_and_down_stops_it(folder: Path) -> None:
    up = await run_program("up", str(folder), "--json")
    assert (0, "") == (up.status, up.err)
    assert up.document.keys() >= {"url", "socket_url", "directory", "engine", "version", "pid"}
    assert str(folder) == up.document["directory"]
    url = up.document["url"]
    async with busy_run(url, "kept"):
        pass
    assert server_runs(folder)
    found = (await run_program("status", "--json", REDIS_REPLAY_URL=url)).document
    assert (url, "kept") == (found["server"]["address"], found["runs"][0]["run"])
    down = await run_program("down", str(folder), "--json")
    assert (0, {"directory": str(folder), "stopped": True}) == (down.status, down.document)
    assert not server_runs(folder)


async def test_up_twice_is_one_server(cli: CommandLine, folder: Path) -> None:
    first = (await cli("up", str(folder), "--json")).document
    second = (await cli("up", "--url", first["url"], "--json")).document
    assert first == second
    shown = (await cli("up", str(folder))).out
    assert f"process {first['pid']}" in shown
    assert first["url"] in shown
    assert first["socket_url"] in shown


async def test_down_where_nothing_runs_says_so_and_exits_0(cli: CommandLine, folder: Path) -> None:
    finished = await cli("down", str(folder))
    assert (0, f"No server runs in {folder}.\n", "") == (
        finished.status,
        finished.out,
        finished.err,
    )
    assert not await anyio.Path(folder).exists()


async def test_reading_a_resting_folder_lets_it_rest_again(cli: CommandLine, folder: Path) -> None:
    url = (await cli("up", str(folder), "--json")).document["url"]
    async with busy_run(url, "kept"):
        pass
    await cli("down", str(folder))
    for command in ("status", "groups", "audit"):
        assert 0 == (await cli(command, "--url", url)).status
        assert not server_runs(folder)


async def test_up_and_down_without_a_folder_use_the_one_that_status_finds(
    cli: CommandLine, tmp_path: Path
) -> None:
    up = (await cli("up", "--json")).document
    assert str(tmp_path / "home" / "redis-replay") == up["directory"]
    assert up["url"] == (await cli("status", "--json")).document["server"]["address"]
    assert (await cli("down", "--json")).document["stopped"] is True


async def test_up_and_down_take_the_folder_of_the_environment(
    cli: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (await cli("up", str(folder), "--json")).document["url"]
    monkeypatch.setenv("REDIS_REPLAY_URL", url)
    assert str(folder) == (await cli("up", "--json")).document["directory"]
    assert {"directory": str(folder), "stopped": True} == (await cli("down", "--json")).document


async def test_down_with_a_run_spares_a_server_that_does_not_hold_it(
    cli: CommandLine, folder: Path
) -> None:
    url = (await cli("up", str(folder), "--json")).document["url"]
    async with busy_run(url, "kept"):
        pass
    refused = await cli("down", str(folder), "--run", "another")
    assert (2, "") == (refused.status, refused.out)
    assert "kept / rollout_data" in refused.err
    assert server_runs(folder)
    assert 2 == (await cli("up", str(folder), "--run", "another")).status
    assert 0 == (await cli("up", str(folder), "--run", "kept")).status
    assert (await cli("down", str(folder), "--run", "kept", "--json")).document["stopped"] is True


@pytest.mark.parametrize("command", ["up", "down"])
async def test_a_place_that_is_no_folder_of_ours_is_refused(
    cli: CommandLine, command: str, tmp_path: Path
) -> None:
    for place in (
        ["--url", "redis://:hunter2@localhost"],
        ["--url", "embedded://"],
        ["--url", f"embedded://{tmp_path}", str(tmp_path)],
    ):
        finished = await cli(command, *place)
        assert (2, "") == (finished.status, finished.out)
        assert 1 == len(finished.err.splitlines())
        assert "hunter2" not in finished.err


async def test_up_in_a_file_is_refused(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finished = await cli("up", str(tmp_path / "file"))
    assert (2, "", 1) == (finished.status, finished.out, len(finished.err.splitlines()))
