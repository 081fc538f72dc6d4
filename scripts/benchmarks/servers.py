"""Servers of the benchmark's own, on a unix socket in a temporary folder."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from redis_replay.embedded.binary import find_server

_READY_SECONDS = 10.0


@contextmanager
def own_server() -> Iterator[Path]:
    """Run a server without persistence and give the path of its socket.

    Without persistence is the harder comparison: the other side of each ratio profits more.

    Raises:
        RuntimeError: it did not come up.
    """
    with tempfile.TemporaryDirectory(prefix="rr-") as folder:
        socket = Path(folder, "s")
        command = [str(find_server().path), "--port", "0", "--unixsocket", str(socket)]
        command += ["--save", "", "--appendonly", "no", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                deadline = time.monotonic() + _READY_SECONDS
                while not socket.exists():
                    if server.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"{command[0]} did not come up")
                    time.sleep(0.01)
                yield socket
            finally:
                server.terminate()


def idle_client(socket: Path) -> Redis:
    """Return an asynchronous client as the store uses it, which nobody else uses."""
    return Redis.from_url(f"unix://{socket}", protocol=2)


async def net_bytes(client: Any) -> int:
    """Return the bytes that the server has received and sent."""
    stats = await client.info("stats")
    return int(stats["total_net_input_bytes"] + stats["total_net_output_bytes"])
