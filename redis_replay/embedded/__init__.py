"""A private server in a folder: started on demand, shared by all who open the folder, durable.

No infrastructure is needed: the server binary is found (`binary`), a small keeper process owns it
(`keeper`), and every opener holds a lease (`lease`). Two processes that open one folder share one
server; it outlives the process that started it and stops when its last user has left.

====================  ==========================================================================
file in the folder    content
====================  ==========================================================================
``data/``             the server's append-only file
``engine.json``       engine and version that wrote it
``server.json``       socket, process ids of keeper and server, while it runs
``users/``            one locked file per lease; the kernel unlocks those of killed processes
``*.lock``            ``open`` (an opener at work), ``keeper`` and ``server`` (alive while locked)
``stay``              present while the server is to stay up without users
``server.log``        the server's log; ``failure`` says why it could not be started
====================  ==========================================================================
"""

from redis_replay.embedded.binary import ServerBinary, bundled_server, find_server, server_flags
from redis_replay.embedded.lease import (
    EmbeddedLease,
    open_embedded,
    parse_embedded_url,
    stop_embedded,
)

__all__ = [
    "EmbeddedLease",
    "ServerBinary",
    "bundled_server",
    "find_server",
    "open_embedded",
    "parse_embedded_url",
    "server_flags",
    "stop_embedded",
]
