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


class Blocks:
    """Blocks of memory that one process hands out. Safe for threads.

    Args:
        most_idle_bytes: What is kept for later; more is given back to the system.

    Attributes:
        idle_bytes: What is kept and lent to nobody.
    """

    def __init__(self, *, most_idle_bytes: int = MOST_IDLE_BYTES) -> None:
        self._most_idle_bytes = most_idle_bytes
        self._idle: dict[int, Array] = {}
        self._returned: deque[Array] = deque()
        self._lock = threading.Lock()
        self.idle_bytes = 0

    def take(self, size: int) -> memoryview:
        """Return writable memory of this size in bytes, with whatever was in it before."""
        if size < _SMALLEST_BYTES:
            return memoryview(bytearray(size))
        with self._lock:
            self._gather()
            fits = [m for m in self._idle.values() if size <= m.nbytes <= 2 * size]
            memory = min(fits, key=lambda m: m.nbytes, default=None)
            if memory is not None:
                self._forget(memory)
        if memory is None:
            memory = np.empty(_rounded(size), np.uint8)
        lent = memory[:size]
        weakref.finalize(lent, self._take_back, memory).atexit = False
        return lent.data

    def _take_back(self, memory: Array) -> None:
        """Note that a block came back; by a collection that may be in the middle of `take`."""
        self._returned.append(memory)
        if self._lock.acquire(blocking=False):  # else whoever has it, or comes next, gathers
            try:
                self._gather()
            finally:
                self._lock.release()

    def _gather(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            self._idle[id(memory)] = memory
            self.idle_bytes += memory.nbytes
        while self.idle_bytes > self._most_idle_bytes:
            self._forget(next(iter(self._idle.values())))

    def _forget(self, memory: Array) -> None:
        del self._idle[id(memory)]
        self.idle_bytes -= memory.nbytes


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
