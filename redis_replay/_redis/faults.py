"""What a failure of the client means for the call that met it.

Three answers: the call may be repeated under its number (whether it ran or not), the server said no
and nothing was done, or the client would not send it, which is a fault of this package and is not
repeated either. Only the first word of an error text is read, since texts differ between
servers.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from typing import Final

from redis import exceptions

from redis_replay.errors import (
    StoreCorrupted,
    StoreError,
    StoreOutOfMemory,
    StoreRefused,
    StoreUnavailable,
)

_TRANSIENT_WORDS: Final = frozenset({"BUSY", "NOREPLICAS", "UNKILLABLE"})
_NOT_LET_IN: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_PIPELINE_WORDS: Final = re.compile(r"^Command # .* of pipeline caused error: \W*", re.DOTALL)
_MOVED_AWAY: Final = (
    exceptions.ReadOnlyError,
    exceptions.AskError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
)
_TRANSIENT_CLASSES: Final = (*_MOVED_AWAY, exceptions.TryAgainError)

_CLASS_BY_WORD: Final[Mapping[str, type[exceptions.RedisError]]] = {
    "ERR": exceptions.ResponseError,
    "OOM": exceptions.OutOfMemoryError,
    "NOSCRIPT": exceptions.NoScriptError,
    "READONLY": exceptions.ReadOnlyError,
    "TRYAGAIN": exceptions.TryAgainError,
    "MOVED": exceptions.MovedError,
    "ASK": exceptions.AskError,
    "CLUSTERDOWN": exceptions.ClusterDownError,
    "MASTERDOWN": exceptions.MasterDownError,
    "LOADING": exceptions.BusyLoadingError,
    "NOAUTH": exceptions.AuthenticationError,
    "WRONGPASS": exceptions.AuthenticationError,
    "NOPERM": exceptions.NoPermissionError,
}


def as_client_error(text: str) -> exceptions.RedisError:
    """Return the error that the client library makes of a server's error text."""
    word, _, rest = text.partition(" ")
    known = _CLASS_BY_WORD.get(word)
    return exceptions.ResponseError(text) if known is None else known(rest)


def is_missing_script(error: exceptions.RedisError) -> bool:
    """Return whether the server does not know the script, so that nothing ran."""
    return isinstance(error, exceptions.NoScriptError)


def is_moved_away(error: exceptions.RedisError | OSError) -> bool:
    """Return whether the server said that another one is to be asked."""
    return isinstance(error, _MOVED_AWAY)


def is_transient(error: exceptions.RedisError | OSError) -> bool:
    """Return whether the same call may be sent again, under the same number."""
    if _is_caused_by(error, _NOT_LET_IN) or isinstance(error, exceptions.DataError):
        return False
    if isinstance(error, exceptions.ResponseError):
        return isinstance(error, _TRANSIENT_CLASSES) or _first_word(error) in _TRANSIENT_WORDS
    return not _is_caused_by(error, (ssl.SSLError,))


def as_store_error(error: exceptions.RedisError | OSError, *, address: str) -> StoreError:
    """Return the error of this package that says what the server or the network said."""
    if isinstance(error, exceptions.OutOfMemoryError):
        return StoreOutOfMemory(
            f"{address} is at its maxmemory limit and refused the write; nothing of this call was "
            "written. Free memory, raise maxmemory, or lower the buffer's capacity."
        )
    if _is_caused_by(error, _NOT_LET_IN):
        return StoreRefused(f"{address} refused the password or user: {error}")
    if isinstance(error, exceptions.DataError):
        return StoreRefused(f"the client cannot send the call to {address}: {error}")
    if not isinstance(error, exceptions.ResponseError):
        return StoreUnavailable(f"{address} is not reachable: {error}")
    if _first_word(error) == "WRONGTYPE":
        return StoreCorrupted(f"a key at {address} has another type than it must have: {error}")
    if is_transient(error):
        return StoreUnavailable(f"{address} cannot serve the call now: {error}")
    return StoreRefused(f"{address} refused the call: {error}")


def _first_word(error: Exception) -> str:
    """Return the server's error code; in a pipeline the client puts words of its own in front."""
    return _PIPELINE_WORDS.sub("", str(error)).split(" ", 1)[0].upper()


def _is_caused_by(error: BaseException | None, kinds: tuple[type[BaseException], ...]) -> bool:
    """Return whether the error is of these kinds, or wraps one: a failed login comes wrapped."""
    while error is not None:
        if isinstance(error, kinds):
            return True
        error = error.__cause__ or error.__context__
    return False
