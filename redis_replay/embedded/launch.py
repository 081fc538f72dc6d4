"""From an opener's side: is there a keeper, start one, talk to it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from redis_replay.embedded.binary import find_server
from redis_replay.embedded.flags import AppendFsync, stricter
from redis_replay.embedded.folder import check_room, check_written_by
from redis_replay.embedded.locks import KEEPER, SERVER, is_held
from redis_replay.embedded.orders import KeeperOrders
from redis_replay.embedded.record import RECORD, ServerRecord, folder_id, read_record
from redis_replay.embedded.sockets import ask_keeper, server_pid
from redis_replay.errors import EmbeddedServerError

_ENTRY: Final = Path(__file__).with_name("__main__.py")


def has_keeper(folder: Path) -> bool:
    """Return whether a keeper owns the folder now."""
    return is_held(folder / KEEPER)


def has_server(folder: Path) -> bool:
    """Return whether a server runs on the folder now, with or without a keeper."""
    return is_held(folder / SERVER)


def tell_keeper(folder: Path, message: dict[str, Any], *, deadline: float) -> dict[str, Any] | None:
    """Send a message to the folder's keeper and return its answer; ``None`` if it is gone.

    Raises:
        EmbeddedServerError: it answered with an error, or not until the deadline.
    """
    record = read_record(folder)
    if record is None or not record.socket:
        return None
    try:
        answer = ask_keeper(record.control_socket, message, deadline=deadline)
    except TimeoutError:
        raise EmbeddedServerError(
            f"the server of {folder} was not ready in time; a large append-only file takes longer "
            f"to read. It goes on; try again, or see {folder / 'server.log'}."
        ) from None
    if answer is not None and "error" in answer:
        raise EmbeddedServerError(f"{folder}: {answer['error']}")
    return answer


def start_keeper(
    folder: Path,
    *,
    appendfsync: AppendFsync,
    idle_seconds: float,
    temporary: bool,
    deadline: float,
) -> None:
    """Start a keeper, which starts the server or adopts the one that runs. Under the start lock.

    Raises:
        EmbeddedServerError: no server program, or data that it should not touch, or no keeper.
        OSError: the folder cannot be written.
    """
    earlier = read_record(folder)
    if has_server(folder):
        if earlier is None:
            raise EmbeddedServerError(
                f"a server runs on {folder}, and {folder / RECORD}, which says where, is gone or "
                f"damaged; stop it by hand ('fuser {folder / SERVER}' names it)"
            )
        synced = stricter(earlier.appendfsync, appendfsync)
        record = replace(earlier, appendfsync=synced)
    else:
        _check_unlocked(folder, earlier)
        record = _plan_server(folder, earlier, appendfsync, temporary)
    _run_keeper(KeeperOrders(folder, record, idle_seconds), deadline)


def _check_unlocked(folder: Path, earlier: ServerRecord | None) -> None:
    """Refuse a second server where somebody removed the lock of a running one."""
    if earlier is None or earlier.pid is None or earlier.folder_id != folder_id(folder):
        return
    if server_pid(Path(earlier.socket)) == earlier.pid:
        raise EmbeddedServerError(
            f"a server (process {earlier.pid}) runs on {folder}, and its lock was removed. Its "
            "keeper ends it within a second, if it has one; else stop it by hand, then try again."
        )


def _plan_server(
    folder: Path, earlier: ServerRecord | None, appendfsync: AppendFsync, temporary: bool
) -> ServerRecord:
    binary = find_server()
    check_written_by(folder, earlier, binary)
    check_room(folder)
    here = folder_id(folder)
    return ServerRecord(
        engine=binary.engine,
        version=binary.version,
        binary=str(binary.path.absolute()),
        pid=None,
        socket=earlier.socket if earlier is not None and earlier.folder_id == here else "",
        started=None,
        appendfsync=appendfsync,
        temporary=temporary,
        keep_running=False,
        folder_id=here,
    )


def _run_keeper(orders: KeeperOrders, deadline: float) -> None:
    # -I -S: only the standard library, whatever the opener's environment says.
    command = [sys.executable, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
    try:
        started = subprocess.run(
            [*command, str(_ENTRY), orders.to_argument()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max(deadline - time.monotonic(), 0.001),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EmbeddedServerError(f"the keeper of {orders.folder} did not start in time") from None
    except OSError as fault:
        raise EmbeddedServerError(
            f"the keeper of {orders.folder} cannot be started: {fault}"
        ) from fault
    said = started.stdout.decode(errors="replace").strip()
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        raise EmbeddedServerError(f"the keeper of {orders.folder} did not start: {said}") from None
    if "error" in answer:
        raise OSError(answer["errno"], answer["error"])
