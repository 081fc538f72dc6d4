"""What becomes of a folder whose server or keeper is killed, or that holds old files."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from redis_replay.embedded import EmbeddedLease, open_embedded, stop_embedded
from redis_replay.embedded.locks import SERVER, is_held
from redis_replay.embedded.record import RECORD, write_record
from redis_replay.errors import EmbeddedServerError
from tests.unit.embedded_processes import (
    User,
    answers,
    call,
    is_running,
    kill_keeper,
    record_of,
    wait_until,
)

pytestmark = pytest.mark.real


def kill_server(lease: EmbeddedLease) -> int:
    """Kill the server and return the process that it was."""
    pid = lease.server_pid
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_killed_server_comes_back_at_its_address_with_all_it_had_confirmed(folder: Path) -> None:
    with open_embedded(folder, appendfsync="always") as lease:
        for number in range(100):
            call(lease.url, "RPUSH", "confirmed", str(number))
        killed = kill_server(lease)
        wait_until(lambda: answers(lease.url), what="the server was back")
        confirmed = [str(number) for number in range(100)]
        assert confirmed == call(lease.url, "LRANGE", "confirmed", "0", "-1")
        assert killed != lease.server_pid
        assert "always" == call(lease.url, "CONFIG", "GET", "appendfsync")["appendfsync"]


def test_an_opener_that_comes_while_the_server_restarts_waits_for_it(folder: Path) -> None:
    with open_embedded(folder) as lease:
        kill_server(lease)
        with open_embedded(folder) as other:
            assert answers(other.url)


def test_a_server_that_dies_again_and_again_is_given_up_and_a_later_open_tries_anew(
    folder: Path,
) -> None:
    with open_embedded(folder, appendfsync="always") as lease:
        call(lease.url, "SET", "a", "1")
        killed = 0
        while is_running(folder):
            wait_until(
                lambda: answers(lease.url) or not is_running(folder),
                what="the server was back, or was given up",
            )
            if is_running(folder):
                kill_server(lease)
                killed += 1
                pid = record_of(folder).pid
                wait_until(
                    lambda pid=pid: record_of(folder).pid != pid,  # type: ignore[misc]
                    what="the keeper saw the death",
                )
        assert 6 == killed
        assert "died 6 times in a minute" in (folder / "server.log").read_text()
        with open_embedded(folder) as other:
            assert lease.url == other.url
            assert "1" == call(lease.url, "GET", "a")


def test_after_the_keeper_was_killed_the_next_opener_adopts_the_running_server(
    folder: Path,
) -> None:
    with open_embedded(folder, appendfsync="always") as lease:
        pid = lease.server_pid
        kill_keeper(folder)
        assert answers(lease.url)
        with open_embedded(folder) as other:
            assert (lease.url, pid) == (other.url, other.server_pid)
        assert answers(lease.url)
        kill_server(lease)
        wait_until(lambda: answers(lease.url), what="the adopted server was started again")
        assert "always" == call(lease.url, "CONFIG", "GET", "appendfsync")["appendfsync"]
    assert not is_running(folder)


def test_after_the_keeper_was_killed_the_last_user_stops_the_server_all_the_same(
    folder: Path,
) -> None:
    with User.of(folder) as other:
        lease = open_embedded(folder)
        kill_keeper(folder)
        lease.close()
        assert is_held(folder / SERVER)
        other.ask("leave")
        assert not is_running(folder)


def test_after_the_keeper_was_killed_down_stops_the_server(folder: Path) -> None:
    with open_embedded(folder) as lease:
        kill_keeper(folder)
        assert stop_embedded(folder)
        assert not answers(lease.url)


def test_when_server_and_keeper_are_killed_the_next_opener_brings_the_data_back(
    folder: Path,
) -> None:
    with open_embedded(folder, appendfsync="always") as lease:
        call(lease.url, "SET", "a", "1")
        kill_keeper(folder)
        kill_server(lease)
        wait_until(lambda: not is_held(folder / SERVER), what="the server's lock was free")
        with open_embedded(folder) as other:
            assert lease.url == other.url
            assert "1" == call(lease.url, "GET", "a")


def test_a_server_and_its_users_that_were_killed_leave_a_folder_that_opens(folder: Path) -> None:
    user = User.of(folder, appendfsync="always", idle_seconds=30)
    call(user.opened["url"], "SET", "a", "1")
    kill_keeper(folder)
    os.kill(user.opened["pid"], signal.SIGKILL)
    user.kill()
    with open_embedded(folder) as lease:
        assert "1" == call(lease.url, "GET", "a")


def test_stale_files_of_every_kind_are_in_nobodys_way(folder: Path) -> None:
    with open_embedded(folder) as lease:
        call(lease.url, "SET", "a", "1")
    record = record_of(folder)
    for name in ("users", "keeper", "server", "start"):
        (folder / f"{name}.lock").write_text("4194304\n")
    sockets = Path(record.socket).parent
    sockets.mkdir(mode=0o700)
    for name in ("s", "k"):
        (sockets / name).write_text("no socket")
    write_record(folder, replace(record, pid=4194304, keeper_pid=4194305))
    with open_embedded(folder) as lease:
        assert "1" == call(lease.url, "GET", "a")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"version": 7}', "\udcff"])
def test_a_damaged_record_is_written_anew(folder: Path, content: str) -> None:
    with open_embedded(folder) as lease:
        call(lease.url, "SET", "a", "1")
    (folder / RECORD).write_bytes(content.encode(errors="surrogateescape"))
    with open_embedded(folder) as lease:
        assert "1" == call(lease.url, "GET", "a")


def test_a_socket_folder_that_another_user_could_enter_is_not_used_again(folder: Path) -> None:
    with open_embedded(folder) as lease:
        before = lease.url
    sockets = Path(record_of(folder).socket).parent
    sockets.mkdir()
    sockets.chmod(0o777)
    try:
        with open_embedded(folder) as lease:
            assert before != lease.url
    finally:
        sockets.rmdir()


def test_a_copy_of_a_folder_has_a_server_of_its_own(folder: Path, tmp_path: Path) -> None:
    with open_embedded(folder, appendfsync="always") as lease:
        call(lease.url, "SET", "a", "1")
        copied = tmp_path / "copy"
        shutil.copytree(folder, copied)
        with open_embedded(copied) as other:
            assert lease.url != other.url
            call(other.url, "SET", "a", "2")
        assert "1" == call(lease.url, "GET", "a")


def test_a_running_server_whose_record_is_gone_is_named_and_not_doubled(folder: Path) -> None:
    with open_embedded(folder) as lease:
        record = record_of(folder)
        kill_keeper(folder)
        (folder / RECORD).unlink()
        with pytest.raises(EmbeddedServerError, match=r"server\.json, which says where, is gone"):
            open_embedded(folder)
        assert answers(lease.url)
        write_record(folder, record)


def test_no_socket_folder_is_left_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    with open_embedded(folder):
        assert 1 == len(list(place.iterdir()))
    monkeypatch.setenv("REDIS_REPLAY_SERVER", "/bin/false")
    with pytest.raises(EmbeddedServerError):
        open_embedded(None)
    assert [] == list(place.iterdir())
    place.rmdir()
