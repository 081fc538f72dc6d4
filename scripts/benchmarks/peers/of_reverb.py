"""Reverb: a server in a process of its own, a client that writes trajectories of one step.

A group is one item whose fields are arrays of 16 rows. Sampling an item once removes it, which is
the release. What it chooses, it chooses inside the server, so choosing alone is not measured.
"""

from __future__ import annotations

import subprocess
import sys

import reverb

from benchmarks.peers.obeying import obey
from benchmarks.rows import Rows, stacked

_TABLE = "groups"
_MOST_GROUPS = 100_000


class Reverb:
    """One table on a server of its own."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "benchmarks.peers.of_reverb", "serve"]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        port = int(self._server.stdout.readline())
        self._client = reverb.Client(f"localhost:{port}")

    def lifecycle(self, rows: Rows, groups: int) -> None:
        with self._client.trajectory_writer(num_keep_alive_refs=1) as writer:
            for _ in range(groups):
                writer.append(stacked(rows))
                step = {name: column[-1:] for name, column in writer.history.items()}
                writer.create_item(_TABLE, 1.0, step)
                writer.flush(block_until_num_items=8)
            writer.flush()
        read = list(self._client.sample(_TABLE, num_samples=groups, emit_timesteps=False))
        if len(read) != groups:
            raise RuntimeError(f"{len(read)} groups came back instead of {groups}")

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()


def _serve() -> None:
    table = reverb.Table(
        name=_TABLE,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=_MOST_GROUPS,
        max_times_sampled=1,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server = reverb.Server([table])
    print(server.port, flush=True)
    server.wait()


if __name__ == "__main__":
    _serve() if sys.argv[1:] == ["serve"] else obey(Reverb)
