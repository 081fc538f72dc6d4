"""No address shows its password, however malformed it is."""

from __future__ import annotations

import pytest

from redis_replay._redis.connect import Target, redact
from redis_replay.errors import UnsupportedUrl

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host:1/0", "redis://host:1/0"),
        ("unix:///tmp/a@b/s?db=0", "unix:///tmp/a@b/s?db=0"),
        (f"redis://:{SECRET}@host/0", "redis://:***@host/0"),
        (f"rediss://user:{SECRET}@host/0", "rediss://user:***@host/0"),
        (f"redis://{SECRET}@host", "redis://***@host"),
        (f"unix://:{SECRET}@/tmp/s", "unix://:***@/tmp/s"),
        (f"redis://:a/b?c#{SECRET}@host/0", "redis://:***@host/0"),
        (f"redis://host?password={SECRET}&db=1", "redis://host?password=***&db=1"),
        (f"unix:///s?db=1&PASSWORD={SECRET}", "unix:///s?db=1&PASSWORD=***"),
        (f"user:{SECRET}@host", "user:***@host"),
    ],
)
def test_the_password_of_an_address_is_masked(url: str, shown: str) -> None:
    assert shown == redact(url)


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@host:port",
        f"redis://:x/{SECRET}@host",
        f"redis://:{SECRET}#@host:1",
        f"redis://:{SECRET}@[",
        f"ftp://:{SECRET}@host",
        f"{SECRET}@host",
        f"redis://:{SECRET}@host/0?no_such_option=1",
        f"redis://host/0?socket_timeout=never&password={SECRET}",
    ],
)
def test_a_malformed_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UnsupportedUrl) as refused:
        Target.from_url(url)
    assert SECRET not in str(refused.value)


def test_an_option_that_the_client_does_not_know_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(UnsupportedUrl, match="no_such_option"):
        Target.from_url("redis://host/0?no_such_option=1")


def test_a_described_server_hides_its_settings() -> None:
    assert SECRET not in repr(Target.from_url(f"redis://:{SECRET}@host/0"))
