"""What an ``embedded://`` address says."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypedDict
from urllib.parse import parse_qsl, unquote, urlsplit

from redis_replay.embedded.flags import APPENDFSYNC, AppendFsync
from redis_replay.errors import UnsupportedUrl


class EmbeddedOptions(TypedDict, total=False):
    """Options of an address; keyword arguments of `open_embedded`."""

    appendfsync: AppendFsync
    idle_seconds: float


def parse_embedded_url(url: str) -> tuple[Path | None, EmbeddedOptions]:
    """Return the folder of an address, ``None`` for a temporary one, and its options.

    ``embedded:///var/run-7?appendfsync=always&idle_seconds=10``; ``embedded://`` is temporary.

    Raises:
        UnsupportedUrl: not such an address, a relative folder, an unknown option or a bad value.
    """
    parts = urlsplit(url)
    if not url.startswith("embedded://"):
        raise UnsupportedUrl(f"{url!r} is no embedded address; write embedded:///folder")
    if parts.netloc:
        raise UnsupportedUrl(
            f"{url!r} names the relative folder {parts.netloc + parts.path!r}; write it from the "
            "root, with three slashes: embedded:///folder"
        )
    if parts.fragment or "\0" in unquote(parts.path):
        raise UnsupportedUrl(f"{url!r} has a part that is no folder; percent-encode '#' as %23")
    if parts.path == "/":
        raise UnsupportedUrl(f"{url!r} names the root folder; name one below, or embedded://")
    return (Path(unquote(parts.path)) if parts.path else None), _options(url, parts.query)


def _options(url: str, query: str) -> EmbeddedOptions:
    options = EmbeddedOptions()
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "appendfsync":
            options["appendfsync"] = _appendfsync(url, value)
        elif name == "idle_seconds":
            options["idle_seconds"] = _seconds(url, value)
        else:
            raise UnsupportedUrl(
                f"{url!r} has the unknown option {name!r}; known are appendfsync and idle_seconds"
            )
    return options


def _appendfsync(url: str, value: str) -> AppendFsync:
    for known in APPENDFSYNC:
        if value == known:
            return known
    raise UnsupportedUrl(f"{url!r}: appendfsync is one of {', '.join(APPENDFSYNC)}, not {value!r}")


def _seconds(url: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise UnsupportedUrl(f"{url!r}: idle_seconds is a number above zero, not {value!r}")
    return seconds
