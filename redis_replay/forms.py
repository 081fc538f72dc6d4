"""The forms in which stored arrays are handed to a reader.

``"read_only"``
    Views over the received bytes; nothing is copied. They keep those bytes alive and cannot be
    written to, since the rows of a group may share memory.
``"writable"``
    Arrays that are the reader's own: writing to one changes no other row, no second read and
    nothing that is stored. Copies, where the received memory is not the reader's.
``"torch"``
    The same as tensors; arrays whose dtype Torch lacks stay NumPy arrays.

NumPy scalars, bytes and all other values are the same in every form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from redis_replay.arrays import Array, HandOut, read_only
from redis_replay.tensors import tensor_of_array

ArrayForm = Literal["read_only", "writable", "torch"]
"""How arrays are handed out."""


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else array.copy()


_HAND_OUT: Final[Mapping[str, HandOut]] = {
    "read_only": read_only,
    "writable": _writable,
    "torch": tensor_of_array,
}


def hand_out_as(form: ArrayForm) -> HandOut:
    """Return what turns a view over received bytes into the form.

    Raises:
        ValueError: There is no such form.
    """
    if form not in _HAND_OUT:
        raise ValueError(f"arrays must be one of {', '.join(map(repr, _HAND_OUT))}, got {form!r}")
    return _HAND_OUT[form]
