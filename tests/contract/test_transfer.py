"""The two ways that payload travels: the same results, the same errors, whatever breaks."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import fakeredis
import pytest
import redis.asyncio
from redis import exceptions
from redis._parsers.base import BaseParser

from redis_replay._redis import channel as channels
from redis_replay._redis import connect
from redis_replay._redis.connect import Target
from redis_replay._redis.faults import as_client_error
from redis_replay._redis.gateway import Gateway, TransferWay
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.lua import load_script
from redis_replay._redis.scripts import Commit
from redis_replay._redis.transfer import WINDOW_BYTES, PlainTransfer, Range, Transfer
from tests.chaos.proxy import Fault, FaultProxy, fault_proxy, through
from tests.contract.stage import opened_stage
from tests.harness import rows, until

pytestmark = pytest.mark.anyio

CERTIFICATE = Path(__file__).parents[1] / "fixtures" / "tls" / "certificate.pem"
BOTH_WAYS: tuple[TransferWay, ...] = ("plain", "channel")
SILENCE_SECONDS = 0.5


def gateway_to(target: Target, way: TransferWay = "channel", **options: Any) -> Gateway:
    """Return a gateway whose payload travels in this way."""
    return Gateway(target, Keyspace("transfer", "p"), way=way, **options)


@pytest.fixture(params=["fake-plain", "real-plain", "real-channel"])
async def transfer(request: pytest.FixtureRequest) -> AsyncIterator[Transfer]:
    """Each way on each server that has it."""
    server, _, way = request.param.partition("-")
    if server == "fake":
        client = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
        target = Target.from_client(client)
    else:
        client = None
        target = Target.from_url(request.getfixturevalue("real_server"))
    gateway = gateway_to(target, way)
    yield gateway._transfer
    await gateway.close()
    if client is not None:
        await client.aclose()


def key_name() -> str:
    """Return the name of a key that no other test uses."""
    return f"test-{secrets.token_hex(8)}"


def range_of(key: str, start: int, size: int, *, is_whole: bool = False) -> Range:
    """Return a range into fresh memory."""
    return Range(key, start, is_whole, memoryview(bytearray(size)))


async def test_strings_are_written_in_order_and_read_by_range(transfer: Transfer) -> None:
    names = [key_name() for _ in range(40)]
    values = [bytes([at]) * (at * 10_000 + 1) for at in range(40)]
    commands = [("SET", n, memoryview(v)) for n, v in zip(names, values, strict=True)]
    assert 40 == len(await transfer.run(commands))
    ranges = [range_of(n, 0, len(v), is_whole=True) for n, v in zip(names, values, strict=True)]
    ranges += [range_of(n, len(v) // 2, 1) for n, v in zip(names, values, strict=True)]
    assert [*map(len, values), *([1] * 40)] == await transfer.read(ranges)
    assert values == [bytes(one.target) for one in ranges[:40]]
    assert [value[:1] for value in values] == [bytes(one.target) for one in ranges[40:]]
    await transfer.run([("UNLINK", *names)])


async def test_what_the_server_has_is_counted_whatever_was_asked_for(transfer: Transfer) -> None:
    name, absent = key_name(), key_name()
    await transfer.run([("SET", name, b"x" * 100)])
    wishes = [
        (name, 0, 30, True),
        (name, 90, 30, False),
        (absent, 0, 5, True),
        (absent, 3, 5, False),
    ]
    ranges = [range_of(key, start, size, is_whole=whole) for key, start, size, whole in wishes]
    assert [100, 10, 0, 0] == await transfer.read(ranges)
    assert b"x" * 30 == bytes(ranges[0].target)
    await transfer.run([("UNLINK", name)])


async def test_strings_longer_than_a_window_are_read_one_by_one(transfer: Transfer) -> None:
    names = [key_name() for _ in range(3)]
    value = secrets.token_bytes(WINDOW_BYTES + 12_345)
    await transfer.run([("SET", name, value) for name in names])
    ranges = [range_of(name, 0, len(value), is_whole=True) for name in names]
    assert [len(value)] * 3 == await transfer.read(ranges)
    assert all(value == one.target for one in ranges)
    await transfer.run([("UNLINK", *names)])


async def test_more_values_go_out_together_than_the_system_takes_in_one_call(
    transfer: Transfer,
) -> None:
    name, count, size = key_name(), 1_100, 16_384
    values = [at.to_bytes(2, "big") * (size // 2) for at in range(count)]
    cells = [part for at, value in enumerate(values) for part in (str(at), value)]
    assert [count] == await transfer.run([("HSET", name, *cells)])
    ends = [("HGET", name, str(at)) for at in (0, 511, 512, count - 1)]
    assert [values[0], values[511], values[512], values[-1]] == await transfer.run(ends)
    await transfer.run([("UNLINK", name)])


async def test_an_error_stands_in_the_place_of_its_reply(transfer: Transfer) -> None:
    name = key_name()
    first, second, third = await transfer.run(
        [("SET", name, b"text"), ("HSET", name, "a", "b"), ("STRLEN", name)]
    )
    assert (True, 4) == (first in (True, b"OK"), third)
    assert isinstance(second, exceptions.ResponseError)
    assert str(second).startswith("WRONGTYPE")
    await transfer.run([("UNLINK", name)])


async def test_a_read_of_something_else_than_a_string_is_an_error(transfer: Transfer) -> None:
    names = [key_name(), key_name()]
    await transfer.run([("SET", names[0], bytes(400_000)), ("HSET", names[1], "a", "b")])
    for _ in range(3):
        with pytest.raises(exceptions.ResponseError, match="WRONGTYPE"):
            await transfer.read([range_of(names[at % 2], 0, 400_000) for at in range(8)])
    assert [400_000] == await transfer.read([range_of(names[0], 0, 400_000)])
    await transfer.run([("UNLINK", *names)])


async def test_reading_nothing_asks_for_nothing(transfer: Transfer) -> None:
    assert [] == await transfer.read([])


async def test_a_fake_server_and_a_custom_login_are_reached_plainly() -> None:
    fake = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())
    custom = redis.asyncio.Redis(redis_connect_func=lambda _: None)
    for client in (fake, custom):
        gateway = gateway_to(Target.from_client(client))
        assert isinstance(gateway._transfer, PlainTransfer)
        await gateway.close()
        await client.aclose()


@pytest.mark.parametrize(
    "text",
    [
        "OOM command not allowed",
        "NOSCRIPT No matching script.",
        "READONLY You can't write",
        "TRYAGAIN later",
        "CLUSTERDOWN down",
        "MASTERDOWN down",
        "LOADING in memory",
        "NOAUTH Authentication required.",
        "WRONGPASS invalid",
        "NOPERM this user",
        "BUSY a script",
        "NOREPLICAS Not enough",
        "WRONGTYPE Operation",
        "ERR unknown command",
        "",
    ],
)
def test_an_error_text_is_the_error_that_the_client_library_makes_of_it(text: str) -> None:
    theirs, ours = BaseParser.parse_error(text), as_client_error(text)
    assert (type(theirs), str(theirs)) == (type(ours), str(ours))


@pytest.mark.parametrize("way", BOTH_WAYS)
async def test_a_script_the_server_has_forgotten_is_sent_with_its_text(
    real_server: str, real_client: Any, way: TransferWay
) -> None:
    run = key_name()
    async with opened_stage(real_server, run, transfer=way) as stage:
        await real_client.script_flush()
        await stage.rollout.buffer.commit(
            "d", rows(4), start_weight_version=0, end_weight_version=0
        )
        [first, _] = await stage.store.samples.get_samples(["d_g0", "d_g1"])
        assert 4.0 == first["reward"]


async def commit_and_read(stage: Any) -> Any:
    """Commit a group and return what is then read of two."""
    await stage.rollout.buffer.commit("d", rows(4), start_weight_version=0, end_weight_version=0)
    read = await stage.store.samples.get_samples(["d_g0", "d_g1", "a_g0"])
    return [(row["reward"], row["input_ids"].tolist()) for row in read]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections that give a silent server up soon."""
    monkeypatch.setattr(connect, "SILENCE_SECONDS", SILENCE_SECONDS)
    monkeypatch.setattr(channels, "_SILENCE_SECONDS", SILENCE_SECONDS)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("way", BOTH_WAYS)
@pytest.mark.parametrize("part", ["commit", "read"])
async def test_a_broken_exchange_of_payload_is_repeated_and_nothing_is_twice_or_torn(
    real_server: str, tmp_path: Path, part: str, way: TransferWay, fault: Fault
) -> None:
    run = key_name()
    async with opened_stage(real_server, f"{run}-calm") as calm:
        expected = await commit_and_read(calm), await calm.outcome()
    marker = load_script(Commit).sha if part == "commit" else f"rr:p:{run}:rollout_data:a:"
    async with (
        fault_proxy(tmp_path, Path(urlsplit(real_server).path)) as proxy,
        opened_stage(proxy.url, run, transfer=way) as broken,
    ):
        answer = await through(proxy, fault, marker, lambda: commit_and_read(broken))
        assert expected == (answer, await broken.outcome())
        assert () == (await broken.store.audit()).violations


async def test_a_payload_and_its_flip_go_out_on_one_connection_together(
    real_server: str, tmp_path: Path
) -> None:
    requests: list[bytes] = []

    class Listening(FaultProxy):
        def strike(self, request: bytes) -> Fault | None:
            requests.append(request)
            return None

    run = key_name()
    proxy = Listening(tmp_path / "proxy", Path(urlsplit(real_server).path))
    async with (
        await anyio.create_unix_listener(proxy.path) as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, proxy.serve)
        async with opened_stage(proxy.url, run) as stage:
            requests.clear()
            await stage.rollout.buffer.commit(
                "d", rows(4), start_weight_version=0, end_weight_version=0
            )
        sha = load_script(Commit).sha.encode()
        [flip] = [request for request in requests if sha in request]
        assert flip.index(b"SET") < flip.index(sha)
        assert f"rr:p:{run}:rollout_data:d:".encode() in flip
        await until(proxy.is_idle, what="all connections through the proxy ended")
        group.cancel_scope.cancel()
