"""What the worker processes of the demo share: how they start, and when they stop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final

import anyio

from redis_replay.demo.settings import WorkerOrders
from redis_replay.demo.witness import Witness

_STANDARD_INPUT: Final = 0


def main(work: Callable[[WorkerOrders, Witness], Awaitable[None]]) -> None:
    """Run a worker on the orders in the first argument; its standard output repeats its log."""
    orders = WorkerOrders.from_json(sys.argv[1])
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with open_witness(orders) as witness:
        anyio.run(work, orders, witness)


@contextmanager
def open_witness(orders: WorkerOrders) -> Generator[Witness]:
    """Open the log of the process."""
    witness = Witness(orders.log_path, who=orders.owner, life=orders.life, echo=sys.stdout)
    try:
        yield witness
    finally:
        witness.close()


def _leave_with_parent() -> None:
    """End the process when the supervisor is gone: its end of the pipe closes with it."""
    while os.read(_STANDARD_INPUT, 1):
        pass
    os._exit(3)
