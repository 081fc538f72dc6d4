"""Several servers on loopback: a cluster, or a master with a replica and a Sentinel."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from redis.crc import key_slot
from redis.exceptions import RedisError

from redis_replay.embedded.binary import find_server

SLOTS = 16384
NODE_TIMEOUT_MS = 1000
SERVICE = "replay"
_PATIENCE_SECONDS = 20.0
_STEP_SECONDS = 0.02


@dataclass
class Server:
    """A server process of a test."""

    port: int
    bus_port: int
    process: subprocess.Popen[bytes]
    client: Any

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Cluster:
    """Masters with equal shares of the slots, then a replica of the first one if asked for."""

    servers: list[Server]
    masters: int
    moved: dict[int, Server] = field(default_factory=dict)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.servers)
        return f"redis+cluster://{hosts}"

    def owner(self, key: str) -> Server:
        """Return the master of a key's slot, failovers aside."""
        slot = key_slot(key.encode())
        shares = ((one, slots_of(at, self.masters)) for at, one in enumerate(self.servers))
        return self.moved.get(slot) or next(one for one, share in shares if slot in share)

    def keys(self, pattern: str) -> list[list[str]]:
        """Return the matching keys of each master."""
        masters = self.servers[: self.masters]
        return [sorted(key.decode() for key in one.client.keys(pattern)) for one in masters]

    def move(self, key: str, to: Server) -> None:
        """Move a key's slot with all its keys to another master, as an operator's tool does."""
        slot, source = key_slot(key.encode()), self.owner(key)
        ids = {one.port: one.client.execute_command("CLUSTER", "MYID") for one in (source, to)}
        to.client.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        source.client.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to.port])
        while names := source.client.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 3):
            source.client.execute_command(
                "MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *names
            )
            time.sleep(_STEP_SECONDS)
        for one in (to, source, *self.servers[: self.masters]):
            one.client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[to.port])
        self.moved[slot] = to


def slots_of(at: int, masters: int) -> range:
    return range(at * SLOTS // masters, (at + 1) * SLOTS // masters)


@contextmanager
def cluster_of(folder: Path, *, masters: int = 3, with_replica: bool = False) -> Iterator[Cluster]:
    """Start a cluster and wait until each node knows that it is whole."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_server(folder / f"node-{at}", "--cluster-enabled", "yes"))
            for at in range(masters + with_replica)
        ]
        first = servers[0]
        for at, one in enumerate(servers):
            one.client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            if at < masters:
                share = slots_of(at, masters)
                one.client.execute_command("CLUSTER", "ADDSLOTSRANGE", share[0], share[-1])
            if at > 0:
                one.client.execute_command("CLUSTER", "MEET", *first.address, first.bus_port)
        _until(lambda: all(_knows_all(one, len(servers)) for one in servers))
        if with_replica:
            name = first.client.execute_command("CLUSTER", "MYID")
            servers[-1].client.execute_command("CLUSTER", "REPLICATE", name)
            until_in_step(first, servers[-1])
        yield Cluster(servers, masters)


@dataclass
class Watched:
    """A master with a replica, and the Sentinel that replaces the one by the other."""

    master: Server
    replica: Server
    sentinel: Server

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{SERVICE}/0"

    def part(self) -> None:
        """Stop the replica, so that it gets nothing more of the master."""
        self.replica.process.send_signal(signal.SIGSTOP)
        self.master.client.client_kill_filter(_type="replica")

    def until_in_step(self) -> None:
        """Wait until the replica has all that the master has acknowledged."""
        until_in_step(self.master, self.replica)


@contextmanager
def watched_pair(folder: Path) -> Iterator[Watched]:
    """Start two servers and a Sentinel that gives a silent master half a second."""
    with ExitStack() as stack:
        master = stack.enter_context(_server(folder / "master"))
        options = ("--replicaof", f"127.0.0.1 {master.port}")
        replica = stack.enter_context(_server(folder / "replica", *options))
        until_in_step(master, replica)
        settings = folder / "sentinel.conf"
        settings.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 500\n"
            f"sentinel failover-timeout {SERVICE} 3000\n"
        )
        sentinel = stack.enter_context(_process(folder / "sentinel", [str(settings), "--sentinel"]))
        _until(lambda: _state_of(sentinel)["num-slaves"] == 1)
        yield Watched(master, replica, sentinel)


@contextmanager
def _server(folder: Path, *options: str) -> Iterator[Server]:
    kept = "--save '' --appendonly yes --appendfsync no --repl-diskless-sync-delay 0"
    is_node = "--cluster-enabled" in options
    more = ["--cluster-node-timeout", str(NODE_TIMEOUT_MS)] if is_node else []
    with _process(folder, [*shlex.split(kept), *options, *more], has_bus=is_node) as started:
        yield started


@contextmanager
def _process(folder: Path, options: list[str], *, has_bus: bool = False) -> Iterator[Server]:
    folder.mkdir()
    port, bus_port = _free_ports(2)
    program = str(find_server().path)
    words = [program, *options, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    if has_bus:
        words += ["--cluster-port", str(bus_port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    client: Any = redis.Redis(port=port, socket_timeout=5.0)
    started = Server(port, bus_port, process, client)
    try:
        _until(lambda: bool(client.ping()))
        yield started
    finally:
        client.close()
        started.kill()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _knows_all(server: Server, count: int) -> bool:
    state = server.client.execute_command("CLUSTER", "INFO").split()
    return b"cluster_state:ok" in state and b"cluster_known_nodes:%d" % count in state


def until_in_step(master: Server, replica: Server) -> None:
    """Wait until a replica has all that its master has acknowledged."""
    _until(lambda: _offset(replica, "slave_repl_offset") == _offset(master, "master_repl_offset"))


def _offset(server: Server, name: str) -> int:
    told = server.client.info("replication")
    if told.get("master_link_status", "up") != "up":
        raise ConnectionError("the replica is not connected")
    return int(told[name])


def _state_of(sentinel: Server) -> dict[str, Any]:
    return dict(sentinel.client.sentinel_master(SERVICE))


def _until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < give_up:
        try:
            if condition():
                return
        except (RedisError, OSError, KeyError):
            pass
        time.sleep(_STEP_SECONDS)
    raise AssertionError(f"the servers were not ready within {_PATIENCE_SECONDS:g} s")
