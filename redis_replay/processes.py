"""What belongs to one process: a fork or a pickle of it would be of no use.

A fork copies the memory of a process, and shares its sockets, but leaves its threads behind: a call
that waits for one of them would wait for ever, and one that writes to a socket would garble what
the parent says. So every way to the server asks first whether it is still in its own process.
"""

from __future__ import annotations

import os
from typing import NoReturn

from redis_replay.errors import ForkedStore


class OfOneProcess:
    """Base of what holds threads and connections, and is therefore never pickled or copied."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            TypeError: always; it says what to send instead.
        """
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it holds threads and "
            "connections of its process. Send the url and the name of the run, and call "
            "open_store in the worker."
        )


def require_own_process(opener: int) -> None:
    """Return in the process that opened a store.

    Raises:
        ForkedStore: this is a fork of it.
    """
    if os.getpid() != opener:
        raise ForkedStore(
            f"this store was opened by process {opener}, and process {os.getpid()} was forked from "
            "it: threads and connections do not pass through a fork. Call open_store in this "
            "process; the parent's store goes on."
        )
