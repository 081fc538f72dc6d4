"""How commands end that cannot do their work: one plain line, an exit status, no traceback."""

from __future__ import annotations

import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from redis_replay import embedded
from redis_replay.cli import places, survey
from tests.command_line import PROGRAM, CommandLine, Finished, busy_run, run_program, server_at

pytestmark = pytest.mark.anyio

READERS = ("status", "groups", "audit")
SECRET = "hunter2"


@pytest.fixture(autouse=True)
def no_place_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is named by the environment, and nobody waits three seconds."""
    monkeypatch.delenv("REDIS_REPLAY_URL", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(survey, "DEADLINE_SECONDS", 0.1)


@pytest.fixture
def anywhere(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line without a ``--url``."""
    return CommandLine(capsys, url=None)


@pytest.fixture
def silent_server(tmp_path: Path) -> Iterator[socket.socket]:
    """Somebody who listens and never answers."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        yield listening


def assert_plain_failure(finished: Finished, *words: str) -> None:
    """Assert one line on stderr with these words, nothing on stdout, and exit status 2."""
    assert (2, "") == (finished.status, finished.out)
    [line] = finished.err.splitlines()
    assert line.startswith("redis-replay: ")
    assert SECRET not in line
    for word in words:
        assert word in line


def names_below(folder: Path) -> list[str]:
    """Return everything in a folder and the folders below."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("command", READERS)
async def test_a_server_that_is_not_there_is_named_with_what_to_do(
    anywhere: CommandLine, command: str, tmp_path: Path
) -> None:
    url = f"unix://:{SECRET}@{tmp_path}/none"
    for arguments in ([], ["--json"], ["--run", "r"]):
        finished = await anywhere(command, "--url", url, *arguments)
        assert_plain_failure(finished, "is not reachable", str(tmp_path), "redis-replay up")


async def test_a_server_that_never_answers_is_given_up(
    anywhere: CommandLine, silent_server: socket.socket
) -> None:
    finished = await anywhere("status", "--url", f"unix://{silent_server.getsockname()}")
    assert_plain_failure(finished, "did not answer within 0.1 s")


async def test_the_program_gives_up_in_seconds_and_without_a_traceback(tmp_path: Path) -> None:
    with anyio.fail_after(20):
        finished = await run_program("status", "--url", f"redis://:{SECRET}@127.0.0.1:1/0")
    assert_plain_failure(finished, "redis://:***@127.0.0.1:1/0 is not reachable")


@pytest.mark.parametrize("command", READERS)
async def test_a_wrong_password_is_tried_once_refused_and_not_repeated_in_the_answer(
    anywhere: CommandLine, command: str, real_server: str
) -> None:
    user = f"user-{secrets.token_hex(6)}"
    with server_at(real_server) as server:
        server.execute_command("ACL", "SETUSER", user, "on", ">right", "~*", "+@all")
        url = real_server.replace("unix://", f"unix://{user}:{SECRET}@")
        finished = await anywhere(command, "--url", url)
        tries = [int(e["count"]) for e in server.acl_log() if e["username"] == user]
        server.execute_command("ACL", "DELUSER", user)
    assert_plain_failure(finished, "refused the password or user", "redis://user:password@host")
    assert [1] == tries


async def test_a_missing_password_is_said(anywhere: CommandLine, real_server: str) -> None:
    with server_at(real_server) as server:
        server.execute_command("ACL", "SETUSER", "someone", "on", ">right", "~*", "+@all")
        url = real_server.replace("unix://", "unix://someone:@")
        finished = await anywhere("status", "--url", url)
        server.execute_command("ACL", "DELUSER", "someone")
    assert_plain_failure(finished, "refused")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"http://:{SECRET}@host", "supported are redis://"),
        (f"redis://:{SECRET}@host:port", "malformed"),
        (f"redis://:pa/ss#{SECRET}@host:1/0", "in a password write"),
        ("redis://[", "malformed"),
        ("redis://host/0?no_such_option=1", "no_such_option"),
        (f"{SECRET}@host", "has the scheme ''"),
        ("embedded://relative/folder", "embedded:///folder"),
        ("embedded://[", "malformed"),
        ("embedded:///x?no_such_option=1", "no_such_option"),
        ("embedded://", "a new, empty server"),
    ],
)
async def test_an_address_that_is_no_good_is_refused_without_its_password(
    anywhere: CommandLine, url: str, words: str
) -> None:
    for command in READERS:
        assert_plain_failure(await anywhere(command, "--url", url), words)


async def test_without_any_server_the_ways_to_name_one_are_listed(anywhere: CommandLine) -> None:
    for command in READERS:
        finished = await anywhere(command)
        assert_plain_failure(finished, "--url", "REDIS_REPLAY_URL", "redis-replay up")


async def test_the_environment_names_the_server(
    anywhere: CommandLine, real_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_REPLAY_URL", real_server)
    assert real_server == (await anywhere("status", "--json")).document["server"]["address"]


@pytest.mark.parametrize("command", READERS)
async def test_an_unknown_run_or_partition_is_refused_with_those_that_are_there(
    anywhere: CommandLine, command: str, tmp_path: Path
) -> None:
    with embedded.open_embedded(tmp_path / "own", appendfsync="no") as lease:
        async with busy_run(lease.url, "known"):
            pass
        for wrong in (["--run", "unknown"], ["--run", "known", "--partition", "unknown"]):
            finished = await anywhere(command, "--url", lease.url, *wrong)
            assert_plain_failure(finished, "unknown' is not on", "known / rollout_data")


async def test_a_folder_that_never_held_a_server_is_not_made_into_one(
    anywhere: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name in ("absent", "empty", "file"):
        for command in READERS:
            finished = await anywhere(command, "--url", f"embedded://{tmp_path / name}")
            assert_plain_failure(finished, "redis-replay up", str(tmp_path / name))
    assert ["empty", "file"] == names_below(tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["status", "--no-such-option"],
        ["groups", "--limit", "0"],
        ["groups", "--state", "lost"],
        ["demo", "--sampler", "no_such_sampler"],
        ["demo", "--workers", "1"],
        ["up", "a", "b"],
    ],
)
async def test_wrong_usage_exits_2(anywhere: CommandLine, arguments: list[str]) -> None:
    finished = await anywhere(*arguments)
    assert (2, "") == (finished.status, finished.out)
    assert "redis-replay" in finished.err
    assert "Traceback" not in finished.err


@pytest.mark.parametrize("command", ["demo", "up", "down", *READERS])
async def test_every_command_explains_itself(anywhere: CommandLine, command: str) -> None:
    finished = await anywhere(command, "--help")
    assert (0, "") == (finished.status, finished.err)
    wanted = {"--url", "--run", "--json", "--help"}
    if command != "demo":
        wanted.add("--partition")
    shown = re.sub(r"\x1b\[[\d;]*m", "", finished.out)  # some hosts are given colours unasked
    assert set() == {option for option in wanted if option not in shown}


async def test_an_interrupt_ends_the_program_quietly_with_130(
    silent_server: socket.socket,
) -> None:
    url = f"unix://{silent_server.getsockname()}"
    silent_server.settimeout(20)
    async with await anyio.open_process(
        [*PROGRAM, "status", "--url", url], stdin=subprocess.DEVNULL
    ) as program:
        connection, _ = await anyio.to_thread.run_sync(silent_server.accept)
        with connection:
            program.send_signal(signal.SIGINT)
            status = await program.wait()
            assert program.stdout is not None
            assert program.stderr is not None
            out = [chunk async for chunk in program.stdout]
            err = [chunk async for chunk in program.stderr]
    assert (130, [], []) == (status, out, err)


async def test_a_reader_that_leaves_early_gets_no_complaint(real_server: str) -> None:
    shell = f"'{PROGRAM[0]}' -m {PROGRAM[2]} status --json --url '{real_server}' | true"
    ended = await anyio.run_process(["sh", "-c", shell], check=False)
    assert b"" == ended.stderr


def test_the_deadline_is_three_seconds() -> None:
    assert 3.0 == places.DEADLINE_SECONDS
