"""The loop of a peer's worker: obeys JSON lines, answers each with one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from benchmarks.rows import Rows, group_rows


class Peer(Protocol):
    """What a worker does with its peer."""

    def lifecycle(self, rows: Rows, groups: int) -> None:
        """Put so many groups one by one, choose them, read all of them, release them."""

    def close(self) -> None:
        """Stop what was started."""


def obey(make: Callable[[], Peer]) -> None:
    """Make the peer, say ``"ready"``, then do what each line names until the input ends.

    Whatever the peer prints goes to standard error, so that the answers stay alone.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = make()
    rows: dict[int, Rows] = {}
    reply: Any = "ready"
    try:
        while True:
            answers.write(json.dumps(reply) + "\n")
            answers.flush()
            line = sys.stdin.readline()
            if not line:
                return
            verb, arguments = json.loads(line)
            if verb == "lifecycle":
                tokens, groups = arguments
                if tokens not in rows:
                    rows[tokens] = group_rows(tokens)
                start = time.perf_counter()
                peer.lifecycle(rows[tokens], groups)
                reply = time.perf_counter() - start
            else:
                reply = getattr(peer, verb)(*arguments)
    finally:
        peer.close()
