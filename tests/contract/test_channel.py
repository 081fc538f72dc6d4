"""Channels: logged in and encrypted as configured, never used again once something went wrong."""

from __future__ import annotations

import gc
import secrets
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import numpy as np
import pytest
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener
from redis.exceptions import RedisError

import redis_replay
from redis_replay._redis import channel as channels
from redis_replay._redis import connect
from redis_replay._redis.channel import Channel, ChannelTransfer
from redis_replay._redis.connect import Target
from redis_replay._redis.gateway import Gateway
from redis_replay._redis.keys import Keyspace
from redis_replay._redis.transfer import Range
from redis_replay.errors import StoreClosed, StoreRefused, StoreUnavailable
from tests.chaos.proxy import Fault, fault_proxy, through
from tests.harness import GROUP_SIZE

pytestmark = pytest.mark.anyio

CERTIFICATE = Path(__file__).parents[1] / "fixtures" / "tls" / "certificate.pem"
SILENCE_SECONDS = 0.5
CHUNK_BYTES = 1 << 16


def gateway_to(url: str, **options: Any) -> Gateway:
    """Return a gateway whose payload travels over channels."""
    keyspace = Keyspace("transfer", "p")
    return Gateway(Target.from_url(url), keyspace, way="channel", **options)


@asynccontextmanager
async def read_store(url: str, groups: int) -> AsyncIterator[tuple[Any, list[str], list[Any]]]:
    """Open a store with so many groups of 300 KB ready; yield it, its sample ids and its rows."""
    run = f"test-{secrets.token_hex(8)}"
    async with redis_replay.open_store(
        url, run=run, capacity=groups, group_size=GROUP_SIZE
    ) as store:
        written: list[Any] = []
        for seed in range(groups):
            made = await store.buffer.reserve(0)
            group = [{"x": np.full(37_500, seed * 2 + row, "<f4")} for row in range(GROUP_SIZE)]
            await store.buffer.commit(
                made.group_id, group, start_weight_version=0, end_weight_version=0
            )
            written += [row["x"] for row in group]
        yield store, await store.samples.list_sample_ids(), written
        await store.buffer.remove([slot.group_id for slot in await store.buffer.slots()])


def same_arrays(written: list[Any], read: list[Any]) -> bool:
    """Return whether the rows are those that were written."""
    return all(np.array_equal(w, r["x"]) for w, r in zip(written, read, strict=True))


@pytest.mark.parametrize("fault", [Fault.TORN_REPLY, Fault.CUT_OFF])
async def test_a_batch_whose_reading_breaks_in_the_middle_is_read_again(
    real_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(connect, "SILENCE_SECONDS", SILENCE_SECONDS)
    monkeypatch.setattr(channels, "_SILENCE_SECONDS", SILENCE_SECONDS)
    upstream = Path(urlsplit(real_server).path)
    async with (
        fault_proxy(tmp_path, upstream) as proxy,
        read_store(proxy.url, 12) as (store, ids, written),
    ):
        [middle] = [i.rpartition("_g")[0] for i in ids[12:13]]
        read = await through(proxy, fault, f":{middle}:", lambda: store.samples.get_samples(ids))
        assert same_arrays(written, read)


async def test_a_cancelled_read_leaves_no_reply_for_the_next(
    real_server: str, real_client: Any
) -> None:
    async with read_store(real_server, 6) as (store, ids, written):
        for ticks in range(0, 60, 3):
            async with anyio.create_task_group() as group:
                group.start_soon(store.samples.get_samples, ids)
                for _ in range(ticks):
                    await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()
            assert same_arrays(written[2:4], await store.samples.get_samples(ids[2:4]))


async def test_reads_at_the_same_time_do_not_mix(real_server: str, real_client: Any) -> None:
    async with read_store(real_server, 6) as (store, ids, written):

        async def read(start: int) -> None:
            for _ in range(3):
                found = await store.samples.get_samples(ids[start:])
                assert same_arrays(written[start:], found)

        async with anyio.create_task_group() as group:
            for start in range(12):
                group.start_soon(read, start)
        assert len(store.buffer.session.link.gateway._transfer.kept) <= 16


async def test_a_kept_channel_keeps_nothing_of_what_was_read(real_server: str) -> None:
    async with read_store(real_server, 6) as (store, ids, written):
        read = await store.samples.get_samples(ids)
        assert same_arrays(written, read)
        assert store.buffer.session.link.gateway._transfer.kept
        arrays = [weakref.ref(row["x"]) for row in read]
        del read
        gc.collect()
        assert all(array() is None for array in arrays)


async def test_a_read_that_outlives_its_store_leaves_no_connection_and_none_follows(
    real_server: str, real_client: Any
) -> None:
    name = f"outliving-{secrets.token_hex(4)}"
    ended: list[str] = []

    async def read(store: Any, ids: list[str]) -> None:
        try:
            await store.samples.get_samples(ids)
            ended.append("read")
        except StoreClosed:
            ended.append("refused")

    async with read_store(real_server, 12) as (writer, ids, _):
        run = writer.buffer.session.link.gateway.keyspace.run
        async with (
            anyio.create_task_group() as group,
            redis_replay.open_store(f"{real_server}&client_name={name}", run=run) as store,
        ):
            for _ in range(4):
                group.start_soon(read, store, ids)
            room = store.buffer.session.link.gateway._transfer.room
            while room.value > 14:
                await anyio.lowlevel.checkpoint()
        assert 4 == len(ended)
        with pytest.raises(StoreClosed, match="open it again"):
            await store.samples.get_samples(ids)
        assert name not in {one["name"] for one in await real_client.client_list()}


async def test_a_channel_that_cannot_be_opened_takes_no_room(tmp_path: Path) -> None:
    transfer = ChannelTransfer(Target.from_url(f"unix://{tmp_path}/nobody.sock"))
    room = transfer.room.value
    for _ in range(room + 1):
        with anyio.fail_after(5), pytest.raises((OSError, RedisError)):
            await transfer.run([("PING",)])
    assert room == transfer.room.value


class Noted:
    """Notes when there was time for something else."""

    def __init__(self) -> None:
        self.had_time = anyio.Event()
        self.lengths: list[int] = []

    def arrived(self, at: int, length: int) -> None:
        self.lengths.append(length)

    def meanwhile(self) -> int:
        self.had_time.set()
        return 0


async def test_there_is_time_for_other_work_while_bytes_are_on_their_way(real_server: str) -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transfer = ChannelTransfer(Target.from_url(real_server), kept=[Channel(ours)])
    progress, target = Noted(), memoryview(bytearray(100))

    async def answer() -> None:
        theirs.send(b"$100\r\n" + b"a" * 60)
        with anyio.fail_after(5):
            await progress.had_time.wait()
        theirs.send(b"b" * 40 + b"\r\n")

    async with anyio.create_task_group() as group:
        group.start_soon(answer)
        assert [100] == await transfer.read([Range("key", 0, True, target)], progress)
    assert [100] == progress.lengths
    assert b"a" * 60 + b"b" * 40 == bytes(target)
    await transfer.close()
    theirs.close()


async def test_kept_channels_that_the_server_closed_are_replaced(
    real_server: str, real_client: Any
) -> None:
    name = f"closing-{secrets.token_hex(4)}"
    async with read_store(f"{real_server}&client_name={name}", 2) as found:
        store, ids, written = found
        for _ in range(3):
            assert same_arrays(written, await store.samples.get_samples(ids))
            for one in await real_client.client_list():
                if one["name"] == name:
                    await real_client.client_kill_filter(_id=one["id"])
        assert same_arrays(written, await store.samples.get_samples(ids))


async def test_a_channel_is_logged_in_named_and_in_its_database(
    real_server: str, real_client: Any
) -> None:
    user, name = f"u{secrets.token_hex(4)}", f"n{secrets.token_hex(4)}"
    await real_client.acl_setuser(
        user, enabled=True, passwords=["+pass word"], keys=["*"], commands=["+@all"]
    )
    path = urlsplit(real_server).path
    url = f"unix://{user}:pass%20word@{path}?db=3&client_name={name}"
    transfer = ChannelTransfer(Target.from_url(url))
    try:
        info, who = await transfer.run([("CLIENT", "INFO"), ("ACL", "WHOAMI")])
        assert user == who.decode()
        assert {f"name={name}", "db=3"} <= set(info.decode().split())
    finally:
        await transfer.close()
        await real_client.acl_deluser(user)


async def test_a_wrong_password_is_refused_at_once(real_server: str) -> None:
    path = urlsplit(real_server).path
    gateway = gateway_to(f"unix://nobody:wrong@{path}")
    with pytest.raises(StoreRefused, match="refused the password or user"):
        await gateway.write([("SET", "x", b"y")])
    await gateway.close()


async def test_a_server_that_is_not_there_is_unavailable_after_the_deadline(tmp_path: Path) -> None:
    gateway = gateway_to(f"unix://{tmp_path / 'nothing'}", deadline_seconds=0.0)
    with pytest.raises(StoreUnavailable, match="not reachable"):
        await gateway.read([Range("x", 0, True, memoryview(bytearray(1)))])
    await gateway.close()


@asynccontextmanager
async def tls_front(upstream: Path) -> AsyncIterator[int]:
    """Run a port that speaks TLS in front of a server's socket."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, CERTIFICATE.with_name("key.pem"))

    async def serve(client: ByteStream) -> None:
        async with (
            client,
            await anyio.connect_unix(upstream) as server,
            anyio.create_task_group() as pumps,
        ):
            pumps.start_soon(pump, client, server, pumps.cancel_scope)
            pumps.start_soon(pump, server, client, pumps.cancel_scope)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    secured = TLSListener(listener, context, standard_compatible=False)
    async with secured, anyio.create_task_group() as group:
        group.start_soon(secured.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        group.cancel_scope.cancel()


async def pump(source: ByteStream, sink: ByteStream, end: anyio.CancelScope) -> None:
    """Forward bytes until one side leaves, then end both directions."""
    try:
        while True:
            await sink.send(await source.receive(CHUNK_BYTES))
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        end.cancel()


async def test_a_channel_is_encrypted_where_the_address_says_so(
    real_server: str, real_client: Any
) -> None:
    async with tls_front(Path(urlsplit(real_server).path)) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={CERTIFICATE}"
        async with read_store(url, 3) as (store, ids, written):
            transfer = store.buffer.session.link.gateway._transfer
            assert isinstance(transfer, ChannelTransfer)
            assert same_arrays(written, await store.samples.get_samples(ids))
            assert all(channel._is_tls for channel in transfer.kept)


async def test_a_certificate_of_a_stranger_is_refused_at_once(real_server: str) -> None:
    async with tls_front(Path(urlsplit(real_server).path)) as port:
        gateway = gateway_to(f"rediss://localhost:{port}/0")
        with anyio.fail_after(5), pytest.raises(StoreUnavailable, match="certificate"):
            await gateway.write([("SET", "x", b"y")])
        await gateway.close()
