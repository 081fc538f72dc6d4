"""How a field is stored, where it is not to be stored as it was given; it reads back the same.

The options of a store are given to `open_store` by field name and hold for what this process
commits. A reader needs none of them: the payload says how its columns are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from redis_replay.compression import require_zstd
from redis_replay.dtypes import dtype_named

BITS: Final = "bits"
"""What a column of truth values is narrowed to: eight of them a byte."""

_NUMBERS: Final = "biuf"
_LEVELS: Final = range(1, 23)


@dataclass(frozen=True, slots=True)
class FieldOptions:
    """How one field is stored.

    Attributes:
        narrow_to: Name of the NumPy dtype that arrays of numbers in a wider dtype are stored in
            (``"int32"``, ``"uint8"``, ``"float16"``), or ``"bits"`` for masks of zeros and ones.
            They read back in the dtype they were given in, bit for bit; a value that would not is
            an error of the commit. Arrays of dtypes that are no wider, and all other values, are
            stored as they are.
        compression: ``"zstd"`` to compress each row on its own, or ``None``. Needs the extra
            ``compression`` here and at every reader.
        level: Of the compression, 1 to 22.

    Raises:
        ValueError: Such a dtype, compression or level does not exist.
        ConfigurationError: Compression was asked for, and its package is not installed.
    """

    narrow_to: str | None = None
    compression: Literal["zstd"] | None = None
    level: int = 3

    def __post_init__(self) -> None:
        if self.narrow_to is not None and not _is_target(self.narrow_to):
            raise ValueError(
                f"narrow_to must be the name of a bool, int or float dtype or {BITS!r}, got "
                f"{self.narrow_to!r}"
            )
        if self.compression not in (None, "zstd"):
            raise ValueError(f"compression must be 'zstd' or None, got {self.compression!r}")
        if self.level not in _LEVELS:
            raise ValueError(f"level must be 1 to 22, got {self.level!r}")
        if self.compression is not None:
            require_zstd()


AS_GIVEN: Final = FieldOptions()


def _is_target(name: object) -> bool:
    if name == BITS:
        return True
    try:
        dtype = np.dtype(str(name))
        return dtype.name == name and dtype.kind in _NUMBERS and dtype_named(dtype.str) == dtype
    except (TypeError, ValueError):
        return False
