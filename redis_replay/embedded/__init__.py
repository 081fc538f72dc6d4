"""A private server in a folder: started on demand, shared by all who open it, stopped after.

``open_embedded(folder)`` gives a lease on the folder's one server and its ``unix://`` address. The
server is a real one, found as `find_server` says, with an append-only file. Behind it stands a
small keeper process that no user is the parent of. What they know of each other they know by file
locks in the folder, which the kernel takes back from a process that is killed:

==============  ================  ==================================================================
lock            held by           says
==============  ================  ==================================================================
`users.lock`    every lease,      somebody uses the server; who holds it exclusively is alone
                shared
`keeper.lock`   the keeper        it owns the server and answers on its control socket
`server.lock`   the server        it runs, with or without a keeper (handed down at its start)
`start.lock`    whoever starts    no other process starts or stops a keeper at this moment
                or stops
==============  ================  ==================================================================

So: a keeper without users stops the server, at once when the last one said goodbye, else after the
idle limit. A server that dies is started again under the same address. A server without a keeper is
adopted by the next opener's keeper. The locks need a local disk; network file systems do not keep
them over a process's death.
"""

from redis_replay.embedded.address import EmbeddedOptions, parse_embedded_url
from redis_replay.embedded.binary import (
    SERVER_VARIABLE,
    ServerBinary,
    bundled_server,
    find_server,
)
from redis_replay.embedded.flags import AppendFsync, server_flags
from redis_replay.embedded.lease import EmbeddedLease, open_embedded, stop_embedded

__all__ = [
    "SERVER_VARIABLE",
    "AppendFsync",
    "EmbeddedLease",
    "EmbeddedOptions",
    "ServerBinary",
    "bundled_server",
    "find_server",
    "open_embedded",
    "parse_embedded_url",
    "server_flags",
    "stop_embedded",
]
