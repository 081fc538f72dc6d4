"""What an embedded address says, and which are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from redis_replay.embedded import parse_embedded_url
from redis_replay.errors import UnsupportedUrl


@pytest.mark.parametrize(
    ("url", "folder", "options"),
    [
        ("embedded://", None, {}),
        ("embedded:///var/run-7", Path("/var/run-7"), {}),
        ("embedded:///a%20b/%23c", Path("/a b/#c"), {}),
        ("embedded:///a?appendfsync=always", Path("/a"), {"appendfsync": "always"}),
        (
            "embedded://?idle_seconds=2.5&appendfsync=no",
            None,
            {"idle_seconds": 2.5, "appendfsync": "no"},
        ),
    ],
)
def test_an_address_names_a_folder_and_options(
    url: str, folder: Path | None, options: dict[str, object]
) -> None:
    assert (folder, options) == parse_embedded_url(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://localhost", "is no embedded address"),
        ("embedded:/a", "is no embedded address"),
        ("embedded://a/b", "relative folder 'a/b'"),
        ("embedded:///", "names the root folder"),
        ("embedded:///a#b", "percent-encode '#'"),
        ("embedded:///a%00", "has a part that is no folder"),
        ("embedded:///a?fsync=always", "unknown option 'fsync'; known are appendfsync and idle"),
        ("embedded:///a?appendfsync=often", "one of no, everysec, always, not 'often'"),
        ("embedded:///a?idle_seconds=soon", "a number above zero, not 'soon'"),
        ("embedded:///a?idle_seconds=0", "a number above zero, not '0'"),
        ("embedded:///a?idle_seconds=nan", "a number above zero, not 'nan'"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_with_its_fault(url: str, reason: str) -> None:
    with pytest.raises(UnsupportedUrl, match=reason):
        parse_embedded_url(url)
