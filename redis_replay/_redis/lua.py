"""Lua scripts as typed calls: a frozen dataclass per script, its body in ``lua/<verb>.lua``.

A call class declares the control keys it may touch (``KEYS``) and, as dataclass fields, its
arguments. The loader emits a prelude that gives the body two tables, ``keys`` and ``args``:

* control keys: ``keys.meta``, ``keys.slots``, ... in the order of ``KEYS``;
* payload keys (``PAYLOAD_KEYS``): the list ``keys.payload``, after the control keys;
* keys of checkpoints (``SAVED``): the list ``saved``, for each of the call's ``saved_ids`` its
  copies, ``saved[1].meta``, ``saved[1].slots``, ..., after the control keys;
* ``int`` and ``int | None`` fields arrive as numbers (``None`` as nil), ``str`` and ``bytes`` as
  strings, ``tuple[str, ...]`` and ``tuple[int, ...]`` as lists.

``-- include: <noun>`` lines name libraries under ``lua/lib``, resolved depth first, each once.
Bodies never count positions themselves; a house test holds them to it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from functools import lru_cache
from importlib.resources import files
from typing import Any, ClassVar, Final, Generic, TypeVar

from redis_replay._redis.keys import Key, Keyspace

Argument = str | bytes | int | float
RawReply = list[bytes]
"""What a script returns: a flat array of strings."""

_INCLUDE: Final = re.compile(r"^-- include: *(\w+)$", re.MULTILINE)
_SCALARS: Final = {"int": "number", "int | None": "number", "str": "string", "bytes": "string"}
_LISTS: Final = {
    "tuple[str, ...]": "string",
    "tuple[bytes, ...]": "string",
    "tuple[int, ...]": "number",
}

R = TypeVar("R")


@dataclass(frozen=True)
class ScriptCall(Generic[R]):
    """Base of all script calls; ``R`` is what its reply means.

    Subclasses set ``SCRIPT``, ``KEYS`` and, through their base, ``FRAME``: the arguments that every
    call of that kind carries and that the caller's session fills in.
    """

    SCRIPT: ClassVar[str]
    KEYS: ClassVar[tuple[Key, ...]] = ()
    FRAME: ClassVar[tuple[tuple[str, str], ...]] = ()
    PAYLOAD_KEYS: ClassVar[bool] = False
    SAVED: ClassVar[tuple[Key, ...]] = ()

    def key_names(self, keyspace: Keyspace) -> list[str]:
        """Return KEYS but for payload keys: the control keys, then each checkpoint's copies."""
        saved_ids: tuple[str, ...] = getattr(self, "saved_ids", ()) if self.SAVED else ()
        return [
            *_control_names(keyspace, self.KEYS),
            *(keyspace.saved(saved_id, key) for saved_id in saved_ids for key in self.SAVED),
        ]

    def parse(self, details: list[bytes]) -> R:
        """Return what the reply's items, after its head, mean."""
        raise TypeError(f"{type(self).__name__} does not say what its reply means")

    def argument_values(self) -> list[Argument]:
        """Return ARGV after the frame: scalars in field order, then each list with its length."""
        scalars: list[Argument] = []
        lists: list[Argument] = []
        for name in _field_names(self):
            value = getattr(self, name)
            if isinstance(value, tuple):
                lists.append(len(value))
                lists.extend(value)
            else:
                scalars.append("" if value is None else value)
        return scalars + lists


@lru_cache(maxsize=1024)
def _control_names(keyspace: Keyspace, keys: tuple[Key, ...]) -> tuple[str, ...]:
    return tuple(map(keyspace.control, keys))


@dataclass(frozen=True, slots=True)
class Script:
    """A script's whole text and its SHA1, as the server computes it."""

    name: str
    text: str
    sha: str


_LOADED: dict[type[ScriptCall[Any]], Script] = {}
_FIELD_NAMES: dict[type[ScriptCall[Any]], tuple[str, ...]] = {}


def load_script(call_type: type[ScriptCall[Any]]) -> Script:
    """Return the script of a call class: prelude, libraries, body; built once."""
    if call_type not in _LOADED:
        _LOADED[call_type] = _build_script(call_type)
    return _LOADED[call_type]


def _build_script(call_type: type[ScriptCall[Any]]) -> Script:
    body = read_source(call_type.SCRIPT)
    libraries = [read_source(name, library=True) for name in resolve_includes(body)]
    text = "\n".join([prelude(call_type), *libraries, body])
    return Script(call_type.SCRIPT, text, hashlib.sha1(text.encode()).hexdigest())


def _field_names(call: ScriptCall[Any]) -> tuple[str, ...]:
    if type(call) not in _FIELD_NAMES:
        _FIELD_NAMES[type(call)] = tuple(field.name for field in fields(call))
    return _FIELD_NAMES[type(call)]


def read_source(name: str, *, library: bool = False) -> str:
    """Return the text of ``lua/<name>.lua`` or ``lua/lib/<name>.lua``."""
    folder = files("redis_replay._redis").joinpath("lua")
    if library:
        folder = folder.joinpath("lib")
    return folder.joinpath(f"{name}.lua").read_text(encoding="utf-8")


def resolve_includes(body: str) -> list[str]:
    """Return the libraries a body needs, dependencies first, each once."""
    ordered: list[str] = []

    def visit(text: str) -> None:
        for name in _INCLUDE.findall(text):
            if name not in ordered:
                visit(read_source(name, library=True))
                ordered.append(name)

    visit(body)
    return ordered


def prelude(call_type: type[ScriptCall[Any]]) -> str:
    """Return the Lua that names a call's keys and arguments."""
    return "\n".join([*_key_lines(call_type), *_argument_lines(call_type)])


def _key_lines(call_type: type[ScriptCall[Any]]) -> Iterator[str]:
    named = ", ".join(f"{key.value} = KEYS[{at}]" for at, key in enumerate(call_type.KEYS, 1))
    yield f"local keys = {{{named}}}"
    if call_type.PAYLOAD_KEYS:
        yield "keys.payload = {}"
        yield f"for at = {len(call_type.KEYS) + 1}, #KEYS do"
        yield "  keys.payload[#keys.payload + 1] = KEYS[at]"
        yield "end"
    yield "local saved = {}"
    if call_type.SAVED:
        copies = ", ".join(f"{key.value} = KEYS[at + {n}]" for n, key in enumerate(call_type.SAVED))
        yield f"for at = {len(call_type.KEYS) + 1}, #KEYS, {len(call_type.SAVED)} do"
        yield f"  saved[#saved + 1] = {{{copies}}}"
        yield "end"


def _argument_lines(call_type: type[ScriptCall[Any]]) -> Iterator[str]:
    framed = list(call_type.FRAME)
    plain = [field for field in fields(call_type) if _kind(field) in _SCALARS]
    scalars = framed + [(field.name, _SCALARS[_kind(field)]) for field in plain]
    lists = [field for field in fields(call_type) if _kind(field) in _LISTS]
    yield "local args = {}"
    for at, (name, kind) in enumerate(scalars, 1):
        yield f"args.{name} = {_converted(f'ARGV[{at}]', kind)}"
    if lists:
        yield f"local at = {len(scalars)}"
    for field in lists:
        yield f"args.{field.name} = {{}}"
        yield "at = at + 1"
        yield "for item = at + 1, at + tonumber(ARGV[at]) do"
        yield f"  args.{field.name}[item - at] = {_converted('ARGV[item]', _LISTS[_kind(field)])}"
        yield "end"
        yield f"at = at + #args.{field.name}"


def _kind(field: Field[Any]) -> str:
    kind = str(field.type)
    if kind not in _SCALARS and kind not in _LISTS:
        raise TypeError(f"argument {field.name!r} has type {kind}, which no script can receive")
    return kind


def _converted(value: str, kind: str) -> str:
    return f"tonumber({value})" if kind == "number" else value
