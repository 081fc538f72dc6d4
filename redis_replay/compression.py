"""zstd, one frame a row, expanded only to the size that was written down beforehand.

Each row is a frame of its own, so that one row can be read alone. A frame says how long its content
is, and carries a checksum of it. Before anything is allocated that length must be the one that the
payload directory gives, and the directory is refused where a column would expand to more than
`MAX_EXPANDED_BYTES`: a few bytes cannot ask for all memory.

The package is ``zstandard``: the standard library has zstd from Python 3.14 on only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final

from redis_replay.arrays import Buffer
from redis_replay.errors import ConfigurationError

MAX_EXPANDED_BYTES: Final = 2**31
"""Most bytes that a compressed column may expand to."""

_PACKAGE: Final = "zstandard"


def require_zstd() -> Any:
    """Return the compression package.

    Raises:
        ConfigurationError: It is not installed.
    """
    try:
        return importlib.import_module(_PACKAGE)
    except ImportError:
        raise ConfigurationError(
            f"zstd compression needs the package {_PACKAGE}: install redis-replay[compression]"
        ) from None


def squeezer(level: int) -> Callable[[Any], bytes]:
    """Return what compresses bytes and contiguous arrays, one by one; nothing stays nothing."""
    compress = require_zstd().ZstdCompressor(level=level, write_checksum=True).compress

    def squeeze(content: Any) -> bytes:
        is_empty = not (len(content) if isinstance(content, bytes) else content.nbytes)
        return b"" if is_empty else compress(content)

    return squeeze


def expander() -> Callable[[Buffer, int], bytes]:
    """Return what expands one frame after the other, each to a length that is known before.

    The function raises `ValueError` where a frame is damaged or is not of that length.

    Raises:
        ConfigurationError: The package is not installed.
    """
    zstd = require_zstd()
    decompress = zstd.ZstdDecompressor().decompress

    def expand(frame: Buffer, content_bytes: int) -> bytes:
        if not content_bytes and not len(frame):
            return b""
        try:
            declared = zstd.get_frame_parameters(frame).content_size
            if declared != content_bytes:
                raise ValueError(f"a frame expands to {declared} bytes instead of {content_bytes}")
            content: bytes = decompress(frame, allow_extra_data=False)
        except zstd.ZstdError as error:
            raise ValueError(f"a compressed row is damaged: {error}") from None
        if len(content) != content_bytes:
            raise ValueError(f"a frame expanded to {len(content)} bytes, not {content_bytes}")
        return content

    return expand
