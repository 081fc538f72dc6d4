"""Entry of the keeper process: ``python -I -S .../embedded/__main__.py ORDERS``.

It is run as a file, and names the package `redis_replay` without running it: the package's own
imports would take ten times as long as the start of the server, and need more than the standard
library.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType


def _name_package() -> None:
    package = ModuleType("redis_replay")
    package.__path__ = [str(Path(__file__).parents[1])]
    sys.modules["redis_replay"] = package


if __name__ == "__main__":
    _name_package()
    from redis_replay.embedded.keeper import main

    raise SystemExit(main(sys.argv[1]))
