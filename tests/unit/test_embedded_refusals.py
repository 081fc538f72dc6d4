"""Folders and servers that cannot be used: the error says what is wrong and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from redis_replay.embedded import find_server, open_embedded, stop_embedded
from redis_replay.embedded.record import write_record
from redis_replay.errors import EmbeddedServerError
from tests.unit.embedded_processes import call, is_running, record_of

pytestmark = pytest.mark.real

_PROJECT = Path(__file__).parents[2]


def fake_server(folder: Path, behaviour: str) -> Path:
    """Return a program that calls itself a Redis 7.0 and then behaves in its own way."""
    program = folder / "fake-server"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit 0\n{behaviour}\n'
    )
    program.chmod(0o755)
    return program


def open_elsewhere(folder: Path, preparation: str, *, through: Sequence[str] = ()) -> str:
    """Open a folder in a process that is prepared in a special way, and return its error."""
    script = f"""
        import os, resource, subprocess, sys
        from pathlib import Path
        from redis_replay.embedded import open_embedded
        from redis_replay.errors import EmbeddedServerError
        {preparation}
        try:
            open_embedded(Path(sys.argv[1]))
        except EmbeddedServerError as error:
            sys.stdout.write(str(error))
    """
    ran = subprocess.run(
        [*through, sys.executable, "-c", dedent(script), str(folder)],
        cwd=_PROJECT,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return ran.stdout


_MOUNT = ("mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs")
_OWN_MOUNTS = ("unshare", "--mount")  # they end with the process, even if that is killed


def can_mount(place: Path) -> bool:
    """Return whether this user may mount a small file system, seen by one process only."""
    try:
        ran = subprocess.run([*_OWN_MOUNTS, *_MOUNT, place], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return ran.returncode == 0


def test_a_full_disk_is_said_before_anything_is_started(folder: Path) -> None:
    folder.mkdir()
    if can_mount(folder):
        mount = f"subprocess.run([*{_MOUNT}, sys.argv[1]], check=True)"
        said = open_elsewhere(folder, mount, through=_OWN_MOUNTS)
        assert "No space left on device" in said
    else:
        limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))"
        said = open_elsewhere(folder, limit)
        assert "File too large" in said
    assert "there is no room for the server's data in" in said
    assert "Free some space, or choose a folder on another disk." in said


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder that everyone may enter and nobody but root may write."""
    closed = Path(tempfile.mkdtemp())
    closed.chmod(0o555)
    yield closed
    closed.rmdir()


def test_a_folder_without_write_permission_is_named_with_the_user(closed_folder: Path) -> None:
    closed, user = closed_folder, os.geteuid()
    become_somebody = ""
    if user == 0:
        user = 65534
        become_somebody = f"os.setresuid({user}, {user}, {user})"
    said = open_elsewhere(closed, become_somebody)
    assert (
        f"the folder {closed} cannot be written (Permission denied). Give user {user} write "
        "permission, or choose another folder." == said
    )


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(EmbeddedServerError, match=f"{path} is, or lies below, a file"):
            open_embedded(path)
    assert "mine" == file.read_text()


def test_data_of_another_engine_is_refused_and_both_are_named(folder: Path) -> None:
    with open_embedded(folder) as lease:
        call(lease.url, "SET", "a", "1")
    record = record_of(folder)
    other = "valkey" if record.engine == "redis" else "redis"
    write_record(folder, replace(record, engine=other, version=(7, 0, 1), binary="/opt/other"))
    with pytest.raises(EmbeddedServerError) as raised:
        open_embedded(folder)
    said = str(raised.value)
    assert f"was written by {other} 7.0.1" in said
    assert f"the server found here is {record.engine} {find_server().version[0]}." in said
    assert f"Set REDIS_REPLAY_SERVER to a {other}-server 7.0 or newer (it was /opt/other)" in said
    assert not is_running(folder)


def test_data_of_a_newer_version_is_refused_and_of_an_older_one_is_read(folder: Path) -> None:
    with open_embedded(folder) as lease:
        call(lease.url, "SET", "a", "1")
    record = record_of(folder)
    major, minor = record.version[:2]
    write_record(folder, replace(record, version=(major, minor + 1, 0)))
    with pytest.raises(EmbeddedServerError, match=f"was written by .* {major}\\.{minor + 1}\\.0"):
        open_embedded(folder)
    for readable in ((major, minor, 99), (major - 1, 9, 9)):
        write_record(folder, replace(record, version=readable))
        with open_embedded(folder) as lease:
            assert "1" == call(lease.url, "GET", "a")
        assert record.version == record_of(folder).version


def test_a_folder_that_holds_no_data_yet_takes_any_engine(folder: Path) -> None:
    open_embedded(folder).close()
    record = record_of(folder)
    for path in (folder / "appendonlydir").iterdir():
        path.unlink()
    (folder / "appendonlydir").rmdir()
    write_record(folder, replace(record, engine="valkey", version=(99, 0)))
    open_embedded(folder).close()
    assert record.engine == record_of(folder).engine


def test_a_damaged_append_only_file_is_reported_in_the_servers_words(folder: Path) -> None:
    with open_embedded(folder, appendfsync="always") as lease:
        for number in range(100):
            call(lease.url, "SET", f"key{number}", "x" * 100)
    (written,) = (folder / "appendonlydir").glob("*.incr.aof")
    content = bytearray(written.read_bytes())
    content[2000:2100] = b"?" * 100
    written.write_bytes(content)
    with pytest.raises(
        EmbeddedServerError, match=r"ended at its start and said: .*Bad file format"
    ):
        open_embedded(folder)
    assert not is_running(folder)


def test_a_server_that_ends_at_its_start_is_quoted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_server(tmp_path, "echo no such option; exit 1")
    monkeypatch.setenv("REDIS_REPLAY_SERVER", str(program))
    with pytest.raises(
        EmbeddedServerError, match=f"the server {program} ended at its start and said: no such op"
    ):
        open_embedded(folder)
    assert not is_running(folder)


def test_a_server_that_is_never_ready_costs_no_more_than_the_deadline_and_can_be_stopped(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_server(tmp_path, "exec tail -f /dev/null")
    monkeypatch.setenv("REDIS_REPLAY_SERVER", str(program))
    with pytest.raises(EmbeddedServerError, match="was not ready in time"):
        open_embedded(folder, deadline_seconds=0.5)
    assert is_running(folder)
    assert stop_embedded(folder)
    assert not is_running(folder)


def test_a_failed_temporary_server_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("REDIS_REPLAY_SERVER", str(fake_server(tmp_path, "exit 3")))
    with pytest.raises(EmbeddedServerError, match="ended at its start and said nothing"):
        open_embedded(None)
    assert [tmp_path / "fake-server"] == list(tmp_path.iterdir())
