"""Memory for payloads, used again once nothing refers to it.

Fresh memory costs more than what is copied into it: the system hands it out page by page, zeroed,
at the first touch, and takes it back as soon as it is freed. A block goes back by itself when the
last array, memoryview or slice over it is gone.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from redis_replay.arrays import Array

MOST_IDLE_BYTES: Final = 128 * 1024 * 1024
_BYTE: Final = np.dtype(np.uint8)

_SMALLEST_BYTES: Final = 32 * 1024
"""Smaller memory is left to the allocator, which is good at it."""

_WORTH_A_BLOCK_BYTES: Final = 128 * 1024
"""Below this, joining at once is faster than copying piece by piece."""


class _Loan(weakref.ref[Array]):
    """What is lent, and the block that it lies in. Quicker than a finalizer."""

    __slots__ = ("block",)
    block: Array


class Blocks:
    """Blocks of memory that one process hands out. Safe for threads.

    Args:
        most_idle_bytes: What is kept for later; more is given back to the system.

    Attributes:
        idle_bytes: What is kept and lent to nobody.
    """

    def __init__(self, *, most_idle_bytes: int = MOST_IDLE_BYTES) -> None:
        self._most_idle_bytes = most_idle_bytes
        self._idle: dict[int, list[Array]] = {}  # by size; the one that came back last is the last
        self._loans: dict[int, _Loan] = {}
        self._returned: deque[Array] = deque()
        self._lock = threading.Lock()
        self.idle_bytes = 0

    def take(self, size: int) -> memoryview:
        """Return writable memory of this size in bytes, with whatever was in it before."""
        if size < _SMALLEST_BYTES:
            return memoryview(bytearray(size))
        with self._lock:
            self._gather()
            fit = min((kept for kept in self._idle if size <= kept <= 2 * size), default=None)
            block = None if fit is None else self._idle_block(fit)
        if block is None:
            block = np.empty(_rounded(size), np.uint8)
        lent = block[:size]
        loan = _Loan(lent, self._take_back)
        loan.block = block
        self._loans[id(loan)] = loan
        return lent.data

    def _take_back(self, loan: weakref.ref[Array]) -> None:
        """Note that a block came back; by a collection that may be in the middle of `take`."""
        self._returned.append(self._loans.pop(id(loan)).block)
        if self._lock.acquire(blocking=False):  # else whoever has it, or comes next, gathers
            try:
                self._gather()
            finally:
                self._lock.release()

    def _gather(self) -> None:
        while self._returned:
            block = self._returned.popleft()
            alike = self._idle.pop(block.nbytes, [])
            alike.append(block)
            self._idle[block.nbytes] = alike
            self.idle_bytes += block.nbytes
        while self.idle_bytes > self._most_idle_bytes:
            self._idle_block(next(iter(self._idle)))

    def _idle_block(self, size: int) -> Array:
        """Take out an idle block of exactly this size, of which there is one."""
        alike = self._idle[size]
        block = alike.pop()
        if not alike:
            del self._idle[size]
        self.idle_bytes -= size
        return block


def joined(pieces: Sequence[Any], *, size: int) -> bytes | memoryview:
    """Return copies of bytes and contiguous arrays back to back; many bytes in a block."""
    if size < _WORTH_A_BLOCK_BYTES:
        return b"".join(pieces)
    block = BLOCKS.take(size)
    sources = [np.frombuffer(piece, _BYTE) for piece in pieces]
    np.concatenate(sources, out=np.frombuffer(block, _BYTE))
    return block.toreadonly()


def _rounded(size: int) -> int:
    """Return a size that neighbours of this one have too, at most an eighth more."""
    step = 1 << max(0, size.bit_length() - 4)
    return -(-size // step) * step


BLOCKS: Final = Blocks()
"""The blocks of this process."""
