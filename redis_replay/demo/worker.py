"""What the worker processes of the demo share: how they start, and when they stop."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

import anyio

from redis_replay.demo.settings import WorkerOrders
from redis_replay.demo.witness import Witness

Orders = TypeVar("Orders", bound=WorkerOrders)

_STANDARD_INPUT: Final = 0


def main(work: Callable[[Orders, Witness], Awaitable[None]], orders_type: type[Orders]) -> None:
    """Run a worker on the orders in the first argument; its standard output repeats its log.

    In lockstep it waits after each line of its log until the supervisor lets it go on.
    """
    orders = orders_type.from_json(sys.argv[1])
    leave = threading.Semaphore(0)
    threading.Thread(target=_follow_supervisor, args=(leave,), daemon=True).start()
    with _open_witness(orders, leave.acquire if orders.in_lockstep else None) as witness:
        anyio.run(partial(work, orders, witness))


@contextmanager
def _open_witness(orders: WorkerOrders, go_on: Callable[[], object] | None) -> Generator[Witness]:
    witness = Witness(
        orders.log_path, who=orders.owner, life=orders.life, echo=sys.stdout, go_on=go_on
    )
    try:
        yield witness
    finally:
        witness.close()


def _follow_supervisor(leave: threading.Semaphore) -> None:
    """Give leave for one line with each byte that the supervisor sends.

    End the process when the supervisor is gone: its end of the pipe closes with it.
    """
    while os.read(_STANDARD_INPUT, 1):
        leave.release()
    os._exit(3)
