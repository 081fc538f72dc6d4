"""Commands as buffers, replies from a connection that splits and breaks them anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as ConnectionLost
from redis.exceptions import InvalidResponse

from redis_replay._redis.resp import ErrorReply, Replies, pack_commands

pytestmark = pytest.mark.anyio

Reply = Any
SPLITS = st.lists(st.integers(1, 40_000), max_size=40)
SIMPLE = st.from_regex(r"[ -~]*", fullmatch=True)
SCALARS: st.SearchStrategy[Reply] = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.binary(max_size=200),
    st.integers(0, 60_000).map(lambda size: bytes(range(256)) * (size // 256 + 1)),
    SIMPLE.map(lambda text: ErrorReply("ERR " + text)),
)
REPLIES = st.one_of(
    SCALARS, st.lists(st.one_of(SCALARS, st.lists(SCALARS, max_size=3)), max_size=4)
)


def packed(reply: Reply) -> bytes:
    """Return a reply as a server sends it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, ErrorReply):
        return b"-%b\r\n" % reply.encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(packed, reply))


def replies_of(stream: bytes, splits: Sequence[int]) -> Replies:
    """Return replies that arrive in pieces of these sizes, then as they are asked for."""
    sizes = iter(splits)
    position = 0

    async def receive(buffers: Sequence[memoryview]) -> int:
        nonlocal position
        count = min(next(sizes, len(stream)), sum(map(len, buffers)), len(stream) - position)
        left = stream[position : position + count]
        for buffer in buffers:
            buffer[: min(len(buffer), len(left))] = left[: len(buffer)]
            left = left[len(buffer) :]
        position += count
        return count

    return Replies(receive)


def run(work: Any) -> Any:
    """Run a coroutine function to its end; nothing in it waits."""
    return anyio.run(work)


@given(st.lists(REPLIES, max_size=5), SPLITS)
def test_replies_are_the_same_wherever_they_are_split(sent: list[Reply], splits: list[int]) -> None:
    async def read_all() -> list[Reply]:
        replies = replies_of(b"".join(map(packed, sent)), splits)
        return [await replies.read() for _ in sent]

    received = run(read_all)
    assert sent == received
    assert list(map(type, sent)) == list(map(type, received))


@given(
    st.lists(st.tuples(st.binary(max_size=30_000), st.integers(-5, 5)), min_size=1, max_size=5),
    SPLITS,
)
@example([(bytes(100_000), -70_000)], [17])
def test_strings_are_received_into_memory_that_may_be_shorter_or_longer(
    strings: list[tuple[bytes, int]], splits: list[int]
) -> None:
    async def read_all() -> list[tuple[bytes, int]]:
        replies = replies_of(b"".join(packed(value) for value, _ in strings) + b"+OK\r\n", splits)
        found: list[tuple[bytes, int]] = []
        for value, more in strings:
            target = bytearray(max(0, len(value) + more))
            length = await replies.read_into(memoryview(target))
            assert isinstance(length, int)
            found.append((bytes(target[: len(value)]), length))
        assert b"OK" == await replies.read()
        return found

    expected = [(value[: max(0, len(value) + more)], len(value)) for value, more in strings]
    assert expected == run(read_all)


@given(st.binary(max_size=60), st.lists(REPLIES, max_size=3), st.integers(0, 300), SPLITS)
@example(b"$-2\r\n", [], 0, [])
@example(b"$1\r\nab\r\n", [], 0, [])
@example(b"*1000001\r\n", [], 0, [])
@example(b"$99999999999\r\n", [], 0, [])
@example(b":1-\r\n", [], 0, [])
@example(b":--1\r\n", [], 0, [])
@example(b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n", [], 0, [])
@settings(max_examples=300)
def test_a_malformed_or_broken_stream_is_an_error_of_the_connection(
    noise: bytes, sent: list[Reply], at: int, splits: list[int]
) -> None:
    stream = b"".join(map(packed, sent))
    stream = stream[:at] + noise + stream[at + len(noise) :]

    async def read_until_it_ends() -> None:
        replies = replies_of(stream, splits)
        for turn in range(200):
            if turn % 2:
                await replies.read()
            else:
                await replies.read_into(memoryview(bytearray(20)))
        raise AssertionError("the stream never ended")

    with pytest.raises((ConnectionLost, InvalidResponse)):
        run(read_until_it_ends)


@pytest.mark.parametrize(
    "stream",
    [
        b"!1\r\n",
        b"hello\r\n",
        b"$5\r\nabcdexx",
        b":12a\r\n",
        b"*x\r\n",
        b"+" + b"a" * 20_000,
        b"$70000000\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
    ],
)
async def test_what_is_no_reply_is_refused(stream: bytes) -> None:
    with pytest.raises(InvalidResponse):
        await replies_of(stream, []).read()


async def test_a_number_where_a_string_is_wanted_is_refused_and_an_error_returned() -> None:
    with pytest.raises(InvalidResponse, match="string was expected"):
        await replies_of(b":1\r\n", []).read_into(memoryview(bytearray(4)))
    error = await replies_of(b"-WRONGTYPE no\r\n", []).read_into(memoryview(bytearray(4)))
    assert ErrorReply("WRONGTYPE no") == error
    assert isinstance(error, ErrorReply)
    assert None is await replies_of(b"$-1\r\n", []).read_into(memoryview(bytearray(4)))


@given(
    st.lists(
        st.lists(st.one_of(st.text(max_size=20), st.binary(max_size=40_000), st.integers())),
        min_size=1,
        max_size=4,
    )
)
def test_commands_are_packed_as_arrays_of_strings(commands: list[list[Any]]) -> None:
    def as_bytes(value: Any) -> bytes:
        return value if isinstance(value, bytes) else str(value).encode()

    async def read_all() -> list[Reply]:
        replies = replies_of(b"".join(pack_commands(commands)), [])
        return [await replies.read() for _ in commands]

    assert [[as_bytes(value) for value in command] for command in commands] == run(read_all)


def test_a_large_argument_is_sent_from_where_it_lies() -> None:
    payload = memoryview(bytearray(100_000))
    pieces = pack_commands([("SET", "key", payload), ("SET", "other", b"small")])
    assert 3 == len(pieces)
    assert payload is pieces[1]
    assert 1.5 == float(bytes(pack_commands([("X", 1.5)])[0]).split(b"\r\n")[4])
