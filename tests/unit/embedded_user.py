"""One user of a folder, as a process of its own: obeys the lines it reads, answers each with one.

``open FOLDER OPTIONS``, ``leave``, ``fork`` (the child leaves), ``cycle FOLDER TIMES``, ``exit``.
It names the package without running it, as the keeper does, since a test starts several.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

package = ModuleType("redis_replay")
package.__path__ = [str(Path(__file__).parents[2] / "redis_replay")]
sys.modules["redis_replay"] = package

from redis_replay import embedded  # noqa: E402
from redis_replay.errors import EmbeddedServerError  # noqa: E402


def obey(verb: str, words: list[Any], leases: list[embedded.EmbeddedLease]) -> Any:
    if verb == "open":
        folder, options = words
        lease = embedded.open_embedded(Path(folder), **options)
        leases.append(lease)
        return {"url": lease.url, "pid": lease.server_pid}
    if verb == "leave":
        leases.pop().close()
    if verb == "fork":
        if not os.fork():
            leases.pop().close()
            raise SystemExit
        os.wait()
    if verb == "cycle":
        folder, times = words
        for _ in range(times):
            embedded.open_embedded(Path(folder)).close()
    return "done"


def serve() -> None:
    leases: list[embedded.EmbeddedLease] = []
    for line in sys.stdin:
        verb, *words = json.loads(line)
        if verb == "exit":
            return
        try:
            reply = obey(verb, words, leases)
        except EmbeddedServerError as error:
            reply = {"error": str(error)}
        sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
