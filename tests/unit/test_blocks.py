"""Memory that is used again once nothing refers to it."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

from redis_replay.blocks import Blocks, joined

KIB = 1024


def address(memory: memoryview) -> int:
    """Return where memory lies."""
    return np.frombuffer(memory, np.uint8).ctypes.data


def test_a_block_is_lent_again_when_the_last_view_of_it_is_gone() -> None:
    blocks = Blocks()
    first = blocks.take(100 * KIB)
    place = address(first)
    array = np.frombuffer(first[KIB : 2 * KIB], np.int32)
    del first
    assert 0 == blocks.idle_bytes
    assert place != address(blocks.take(100 * KIB))
    gc.collect()
    del array
    assert blocks.idle_bytes >= 200 * KIB
    again = [blocks.take(100 * KIB), blocks.take(100 * KIB)]
    assert place in [address(memory) for memory in again]
    assert 0 == blocks.idle_bytes


def test_a_block_has_the_size_asked_for_and_can_be_written_to() -> None:
    blocks = Blocks()
    for size in (0, 1, 31 * KIB, 32 * KIB, 100 * KIB + 7):
        memory = blocks.take(size)
        assert (size, "B", False) == (len(memory), memory.format, memory.readonly)
        memory[:] = bytes(size)


def test_a_much_larger_block_is_not_wasted_on_a_small_wish() -> None:
    blocks = Blocks()
    blocks.take(1024 * KIB)
    assert blocks.idle_bytes >= 1024 * KIB
    small = blocks.take(64 * KIB)
    assert blocks.idle_bytes >= 1024 * KIB
    del small


def test_no_more_is_kept_than_was_allowed() -> None:
    blocks = Blocks(most_idle_bytes=300 * KIB)
    lent = [blocks.take(100 * KIB) for _ in range(8)]
    lent.clear()
    assert 200 * KIB <= blocks.idle_bytes <= 300 * KIB
    blocks.take(400 * KIB)
    assert blocks.idle_bytes <= 300 * KIB


def test_a_block_may_come_back_by_a_collection_at_any_moment_of_a_take() -> None:
    threshold = gc.get_threshold()
    gc.collect()
    gc.freeze()
    try:
        for allocations in range(40):
            blocks = Blocks()
            lent = [blocks.take(40 * KIB) for _ in range(8)]
            gc.collect()
            gc.disable()
            circle: list[object] = [lent.pop()]
            circle.append(circle)
            lent.clear()
            del circle
            gc.set_threshold(gc.get_count()[0] + allocations)
            gc.enable()
            memory = blocks.take(40 * KIB)
            gc.collect()
            other = blocks.take(4000 * KIB)  # counts what came back while a take was under way
            assert blocks.idle_bytes >= 7 * 40 * KIB
            del memory, other
    finally:
        gc.enable()
        gc.set_threshold(*threshold)
        gc.unfreeze()


def test_threads_never_share_a_block() -> None:
    blocks = Blocks()
    spoiled: list[int] = []

    def use(mark: int) -> None:
        for size in range(40):
            memory = blocks.take((40 + size) * KIB)
            memory[:] = bytes([mark]) * len(memory)
            if bytes(memory).count(mark) != len(memory):
                spoiled.append(mark)

    threads = [threading.Thread(target=use, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [] == spoiled


@pytest.mark.parametrize("rows", [2, 40])
def test_pieces_are_copied_back_to_back(rows: int) -> None:
    arrays = [np.arange(5000, dtype="<i4") + row for row in range(rows)]
    pieces = [b"ab", arrays[0], b"", np.empty((0, 3)), *arrays[1:], np.array(2.5)]
    expected = b"".join(
        bytes(piece) if isinstance(piece, bytes) else piece.tobytes() for piece in pieces
    )
    copied = joined(pieces, size=len(expected))
    for array in arrays:
        array[:] = 0
    assert expected == bytes(copied)
    assert memoryview(copied).readonly
