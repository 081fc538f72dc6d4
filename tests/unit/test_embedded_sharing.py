"""Who shares a folder's server, and when it stops."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from redis_replay.embedded import open_embedded, stop_embedded
from redis_replay.errors import EmbeddedServerError
from tests.unit.embedded_processes import User, answers, call, is_running, record_of, wait_until

pytestmark = pytest.mark.real


def test_two_processes_that_open_one_folder_share_one_server(folder: Path) -> None:
    with open_embedded(folder) as lease, User.of(folder) as other:
        assert {"url": lease.url, "pid": lease.server_pid} == other.opened
        assert lease.server_pid == int(call(lease.url, "INFO", "server")["process_id"])
        other.ask("leave")
        assert answers(lease.url)


def test_processes_that_open_a_folder_at_the_same_time_start_one_server(folder: Path) -> None:
    users = [User() for _ in range(4)]
    for user in users:
        user.tell("open", str(folder), {})
    opened = [user.answer() for user in users]
    assert [opened[0]] * 4 == opened
    for user in users:
        user.ask("leave")
        user.exit()
    assert not is_running(folder)


def test_processes_that_open_and_leave_all_the_time_never_meet_an_error(folder: Path) -> None:
    users = [User() for _ in range(3)]
    for user in users:
        user.tell("cycle", str(folder), 6)
    assert ["done"] * 3 == [user.answer() for user in users]
    for user in users:
        user.exit()
    assert not is_running(folder)


def test_the_server_outlives_the_process_that_started_it(folder: Path) -> None:
    with User.of(folder) as starter, open_embedded(folder) as lease:
        starter.ask("leave")
        starter.exit()
        assert answers(lease.url)
        assert starter.opened["pid"] == lease.server_pid


def test_the_server_outlives_the_killing_of_the_process_that_started_it(folder: Path) -> None:
    with User.of(folder) as starter, open_embedded(folder) as lease:
        starter.kill()
        assert answers(lease.url)
        assert starter.opened["pid"] == lease.server_pid


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_server(folder: Path) -> None:
    with open_embedded(folder) as lease:
        assert os.getsid(0) != os.getsid(lease.server_pid)


def test_the_server_has_stopped_when_the_last_user_has_left(folder: Path) -> None:
    first, last = open_embedded(folder), open_embedded(folder)
    first.close()
    assert is_running(folder)
    last.close()
    assert not is_running(folder)
    assert not answers(last.url)
    assert not Path(last.url.removeprefix("unix://").partition("?")[0]).parent.exists()


def test_leaving_twice_is_leaving_once(folder: Path) -> None:
    first, other = open_embedded(folder), open_embedded(folder)
    first.close()
    first.close()
    assert answers(other.url)
    other.close()


def test_a_process_that_ends_without_closing_has_left(folder: Path) -> None:
    user = User.of(folder)
    user.exit()
    assert not is_running(folder)


def test_what_was_written_is_there_when_the_folder_is_opened_again(folder: Path) -> None:
    with open_embedded(folder) as lease:
        call(lease.url, "SET", "step", "7")
    with open_embedded(folder) as lease:
        assert "7" == call(lease.url, "GET", "step")


def test_down_stops_a_server_that_is_in_use_and_says_whether_one_ran(folder: Path) -> None:
    with open_embedded(folder) as lease:
        assert stop_embedded(folder)
        assert not is_running(folder)
        assert not answers(lease.url)
        assert not stop_embedded(folder)


def test_down_in_a_folder_without_a_server_writes_nothing(folder: Path) -> None:
    folder.mkdir()
    assert not stop_embedded(folder)
    assert [] == list(folder.iterdir())
    assert not stop_embedded(folder / "missing")


def test_a_folder_can_be_opened_again_after_down_while_an_old_user_remains(folder: Path) -> None:
    with open_embedded(folder) as old:
        stop_embedded(folder)
        with open_embedded(folder) as new:
            assert answers(new.url)
            assert old.url == new.url


def test_a_server_whose_users_were_all_killed_stops_after_its_idle_limit(folder: Path) -> None:
    users = [User.of(folder, idle_seconds=0.2) for _ in range(2)]
    for user in users:
        user.kill()
    wait_until(lambda: not is_running(folder), what="the unused server stopped")


def test_a_server_whose_users_were_all_killed_is_reused_before_its_idle_limit(folder: Path) -> None:
    killed = User.of(folder, idle_seconds=30)
    killed.kill()
    with open_embedded(folder) as lease:
        assert killed.opened == {"url": lease.url, "pid": lease.server_pid}


def test_a_used_server_does_not_stop_at_its_idle_limit(folder: Path) -> None:
    with open_embedded(folder, idle_seconds=0.05) as lease:
        pid = lease.server_pid
        call(lease.url, "BLPOP", "nothing", "0.4")
        assert (True, pid) == (answers(lease.url), lease.server_pid)


def test_a_server_that_was_told_to_keep_running_stays_without_users_until_down(
    folder: Path,
) -> None:
    lease = open_embedded(folder, idle_seconds=0.05)
    lease.keep_running()
    lease.close()
    call(lease.url, "BLPOP", "nothing", "0.4")  # well past the idle limit
    assert answers(lease.url)
    with open_embedded(folder, idle_seconds=0.05) as again:
        assert lease.url == again.url
    assert answers(lease.url)
    assert stop_embedded(folder)


def test_a_temporary_folder_goes_with_its_last_user() -> None:
    with open_embedded(None) as lease:
        with open_embedded(lease.directory) as other:
            assert lease.url == other.url
        assert lease.directory.is_dir()
    assert not lease.directory.exists()


def test_two_temporary_servers_have_nothing_to_do_with_each_other() -> None:
    with open_embedded(None) as one, open_embedded(None) as other:
        assert one.directory != other.directory
        assert one.url != other.url


def test_removing_the_folder_ends_its_server(folder: Path) -> None:
    with open_embedded(folder, idle_seconds=1) as lease:
        pid = lease.server_pid
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
        wait_until(lambda: not answers(lease.url), what="the server ended")
        wait_until(lambda: not Path(f"/proc/{pid}/fd").exists(), what="its process ended")


def test_the_socket_path_is_short_however_long_the_paths_of_the_machine_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("long" * 30)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    monkeypatch.setenv("TMPDIR", str(long))
    with open_embedded(long / "data") as lease:
        assert 108 > len(lease.url.removeprefix("unix://"))
        assert answers(lease.url)


@pytest.mark.parametrize("name", ["with space", "quote'\"s", "grün", "line\nbreak", "#?%41"])
def test_any_name_of_a_folder_works(folder: Path, name: str) -> None:
    with open_embedded(folder / name) as lease:
        call(lease.url, "SET", "a", "1")
        assert (folder / name / "appendonlydir").is_dir()


def test_the_strictest_user_decides_how_often_the_file_is_synced(folder: Path) -> None:
    with open_embedded(folder, appendfsync="everysec") as lease:
        assert "everysec" == call(lease.url, "CONFIG", "GET", "appendfsync")["appendfsync"]
        open_embedded(folder, appendfsync="always").close()
        open_embedded(folder, appendfsync="no").close()
        assert "always" == call(lease.url, "CONFIG", "GET", "appendfsync")["appendfsync"]
        assert "always" == record_of(folder).appendfsync


def test_the_server_keeps_everything_and_drops_nothing(folder: Path) -> None:
    with open_embedded(folder) as lease:
        found = {
            name: call(lease.url, "CONFIG", "GET", name)[name]
            for name in ("appendonly", "save", "maxmemory-policy", "aof-use-rdb-preamble", "port")
        }
        assert {
            "appendonly": "yes",
            "save": "",
            "maxmemory-policy": "noeviction",
            "aof-use-rdb-preamble": "no",
            "port": "0",
        } == found


def test_only_this_user_can_reach_the_socket(folder: Path) -> None:
    with open_embedded(folder) as lease:
        socket = Path(lease.url.removeprefix("unix://").partition("?")[0])
        assert 0o700 == socket.parent.stat().st_mode & 0o777
        assert 0o700 == socket.stat().st_mode & 0o777
        assert 0o700 == folder.stat().st_mode & 0o777
        assert [] == [path for path in folder.rglob("*") if path.stat().st_mode & 0o077]


def test_the_folder_says_which_server_it_has(folder: Path) -> None:
    with open_embedded(folder) as lease:
        record = record_of(folder)
        assert record.engine in ("redis", "valkey")
        assert (lease.server_pid, f"unix://{record.socket}?db=0") == (record.pid, lease.url)
        assert record.started is not None
        assert record.version >= (7, 0)
    assert record_of(folder).pid is None
    with pytest.raises(EmbeddedServerError, match="no server runs"):
        _ = lease.server_pid


@pytest.mark.parametrize(
    "options", [{"appendfsync": "sometimes"}, {"idle_seconds": 0}, {"deadline_seconds": -1}]
)
def test_an_option_that_cannot_be_meant_is_refused(
    folder: Path, options: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        open_embedded(folder, **options)  # type: ignore[arg-type]
    assert not folder.exists()
