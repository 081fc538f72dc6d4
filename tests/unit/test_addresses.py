"""Addresses of several servers: what they say, and what is wrong with others."""

from __future__ import annotations

from typing import Any

import pytest

from redis_replay._redis.connect import Target
from redis_replay._redis.finding import FoundConnection, FoundSSLConnection, SentinelFinder
from redis_replay.errors import UnsupportedUrl


def sentinels_of(url: str) -> Any:
    finder = Target.from_url(url).settings["finder"]
    assert isinstance(finder, SentinelFinder)
    return finder


def test_sentinels_have_hosts_a_service_and_credentials_of_their_own() -> None:
    url = "redis+sentinel://ann:p%40x@one:1,two/replay%201/3?sentinel_password=s%26t"
    finder = sentinels_of(url)
    assert (("one", 1), ("two", 26379)) == finder.sentinels
    assert "replay 1" == finder.service
    assert {"username": None, "password": "s&t", "ssl": False} == finder.settings
    settings = Target.from_url(url).settings
    assert ("ann", "p@x", 3) == tuple(settings[name] for name in ("username", "password", "db"))


def test_no_password_is_shown() -> None:
    url = "redis+sentinel://ann:first@one/replay?sentinel_password=second"
    shown = repr(Target.from_url(url)) + repr(sentinels_of(url))
    assert not {"first", "second"} & set(shown.replace("=", " ").replace(":", " ").split())
    assert "first" not in shown
    assert "second" not in shown


def test_nodes_of_a_cluster_are_asked_with_the_credentials_of_the_run() -> None:
    target = Target.from_url("rediss+cluster://:secret@[::1]:7000,other?ssl_cert_reqs=none")
    assert target.cluster is not None
    assert [("::1", 7000), ("other", 6379)] == target.cluster.nodes
    assert {"password": "secret", "ssl": True, "ssl_cert_reqs": "none"} == target.cluster.settings
    assert FoundSSLConnection is target.connection_class
    node = target.node(("third", 1))
    assert ("third", 1) == (node.settings["host"], node.settings["port"])
    assert "finder" not in node.settings


def test_without_tls_nothing_is_encrypted() -> None:
    target = Target.from_url("redis+cluster://one")
    assert FoundConnection is target.connection_class


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis+sentinel://one:1", "names no service"),
        ("redis+cluster://one:1,,two", "a host is missing"),
        ("redis+cluster://one:1/2", "no numbered databases"),
        ("redis+cluster://one:x", "malformed"),
        ("redis+cluster://one?no_such_option=1", "no_such_option"),
        ("unix+cluster:///path", "supported are redis://"),
        ("redis+ring://one", "supported are redis://"),
    ],
)
def test_what_is_wrong_is_said(url: str, reason: str) -> None:
    with pytest.raises(UnsupportedUrl, match=reason):
        Target.from_url(url)
