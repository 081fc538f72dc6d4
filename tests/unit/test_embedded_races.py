"""The worst moments: openers at one instant or killed halfway, locks and records pulled away."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from redis_replay.embedded import find_server, lease, open_embedded, stop_embedded
from redis_replay.embedded.locks import KEEPER, SERVER, USERS, FileLock, acquire
from redis_replay.embedded.process import AdoptedServer
from redis_replay.embedded.record import RECORD
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


@contextmanager
def standing_still(process: int) -> Iterator[None]:
    """Stop a process for the time of the block."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_processes_that_open_new_folders_at_the_same_instant_always_share_one_server(
    tmp_path: Path,
) -> None:
    users = [User() for _ in range(2)]
    for number in range(6):
        place = tmp_path / f"new{number}" / "data"
        for user in users:
            user.tell("open", str(place), {})
        first, second = (user.answer() for user in users)
        assert first == second
        for user in users:
            user.ask("leave")
        assert not is_running(place)
    for user in users:
        user.exit()


def test_the_keeper_of_an_opener_that_was_killed_halfway_serves_the_next_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_embedded(folder) as first:
        seen = iter([False])
        monkeypatch.setattr(lease, "has_keeper", lambda _: next(seen, True))
        with open_embedded(folder) as second:
            assert (first.url, first.server_pid) == (second.url, second.server_pid)


def test_a_server_whose_locks_were_removed_gets_no_second_one_beside_it(folder: Path) -> None:
    with open_embedded(folder) as opened:
        keeper = record_of(folder).keeper_pid
        assert keeper is not None
        with standing_still(keeper):
            for name in (KEEPER, SERVER):
                (folder / name).unlink()
            with pytest.raises(
                EmbeddedServerError,
                match=rf"a server \(process {opened.server_pid}\) runs on .* lock was removed",
            ):
                open_embedded(folder)
        wait_until(lambda: not answers(opened.url), what="its keeper ended the server")
        with open_embedded(folder) as again:
            assert answers(again.url)


def test_without_the_users_lock_the_server_ends_since_nobody_knows_who_uses_it(
    folder: Path,
) -> None:
    with open_embedded(folder):
        (folder / USERS).unlink()
        wait_until(lambda: not is_running(folder), what="the server ended")


def test_a_record_that_was_removed_is_written_again_while_the_keeper_runs(folder: Path) -> None:
    with open_embedded(folder) as first:
        record = record_of(folder)
        (folder / RECORD).unlink()
        with open_embedded(folder) as second:
            assert first.url == second.url
        assert record == record_of(folder)


@pytest.mark.parametrize(
    "message", [b"", b"x", b"[]\n", b"{}\n", b'{"verb": "dance"}\n', b'{"verb": "join"}\n']
)
def test_the_keeper_survives_what_it_does_not_understand(folder: Path, message: bytes) -> None:
    with open_embedded(folder) as opened:
        keeper = record_of(folder).keeper_pid
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(record_of(folder).control_socket))
            link.sendall(message)
            link.shutdown(socket.SHUT_WR)
            expected = b"of another version" if message.endswith(b"\n") else b""
            assert expected in link.recv(4096)
        with open_embedded(folder) as other:
            assert opened.url == other.url
        assert keeper == record_of(folder).keeper_pid


def test_signals_that_the_opener_blocks_still_reach_the_server(folder: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        open_embedded(folder).close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert "SIGTERM" in (folder / "server.log").read_text()


def test_a_forked_child_that_leaves_or_ends_does_not_leave_for_its_parent(folder: Path) -> None:
    with User.of(folder) as parent:
        parent.ask("fork")
        assert answers(parent.opened["url"])
        open_embedded(folder).close()
        assert is_running(folder)
        parent.ask("leave")
        assert not is_running(folder)


def test_a_signal_for_an_adopted_server_never_reaches_another_process(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as short,
        socket.socket(socket.AF_UNIX) as listener,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander,
    ):
        listener.bind(f"{short}/s")
        listener.listen()
        adopted = AdoptedServer(Path(short, "s"), bystander.pid)
        adopted.send_signal(signal.SIGKILL)
        adopted.close()
        bystander.communicate(b"\n")
        assert 0 == bystander.returncode


def test_a_server_that_was_told_to_keep_running_does_so_under_the_next_keeper(
    folder: Path,
) -> None:
    with open_embedded(folder, idle_seconds=0.05) as opened:
        opened.keep_running()
    kill_keeper(folder)
    open_embedded(folder, idle_seconds=0.05).close()
    assert answers(opened.url)
    assert stop_embedded(folder)


def test_a_server_that_reads_its_data_longer_than_its_users_wait_is_not_given_up(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_embedded(folder) as opened:
        client = redis.Redis.from_url(opened.url)
        with client, client.pipeline(transaction=False) as pipeline:
            for number in range(6000):
                pipeline.set(f"key{number}", "1")
            pipeline.execute()
    slow = tmp_path / "slow-server"
    slow.write_text(f'#!/bin/sh\nexec {find_server().path} "$@" --key-load-delay 200\n')
    slow.chmod(0o755)
    monkeypatch.setenv("REDIS_REPLAY_SERVER", str(slow))
    with pytest.raises(EmbeddedServerError, match="was not ready in time"):
        open_embedded(folder, idle_seconds=0.2, deadline_seconds=0.5)
    log = folder / "server.log"
    wait_until(
        lambda: 2 == log.read_text().lower().count("ready to accept connections"),
        what="the server had read its data",
    )
    with open_embedded(folder) as again:
        assert 6000 == call(again.url, "DBSIZE")


def test_a_folder_that_vanishes_while_it_is_opened_is_made_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def acquire_too_late(path: Path, **options: Any) -> FileLock:
        monkeypatch.undo()
        folder.rmdir()
        return acquire(path, **options)

    monkeypatch.setattr(lease, "acquire", acquire_too_late)
    with open_embedded(folder) as opened:
        assert answers(opened.url)


@pytest.mark.parametrize("name", ["with space", "100%25", "a?b", "a#b"])
def test_any_name_of_the_machines_folder_for_sockets_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as short:
        place = Path(short, name)
        place.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        monkeypatch.setenv("TMPDIR", str(place))
        with open_embedded(folder) as opened:
            assert answers(opened.url)
            assert 1 == len(list(place.iterdir()))
