"""Which globals a Lua 5.1 chunk reads and sets, read from its bytecode."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from lupa import lua51

_HEADER_BYTES = 12
_GETGLOBAL, _SETGLOBAL = 5, 7
_NIL, _BOOLEAN, _NUMBER, _STRING = 0, 1, 3, 4
_DUMP = b"function(text) return string.dump(assert(loadstring(text))) end"


@dataclass
class Globals:
    """Names that a chunk and its functions read and set."""

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)


def globals_of(text: str) -> Globals:
    """Compile a chunk and return its globals.

    Raises:
        lupa.LuaError: it does not compile.
    """
    dump = lua51.LuaRuntime(encoding=None).eval(_DUMP)
    found = Globals()
    _Bytecode(dump(text.encode()), _HEADER_BYTES).read_function(found)
    return found


@dataclass
class _Bytecode:
    """A cursor over the functions of a dumped chunk (``lundump.c`` of Lua 5.1, 64 bits)."""

    dumped: bytes
    at: int

    def _take(self, layout: str) -> int:
        (value,) = struct.unpack_from("<" + layout, self.dumped, self.at)
        self.at += struct.calcsize("<" + layout)
        return int(value)

    def _string(self) -> str:
        size = self._take("Q")
        self.at += size
        return self.dumped[self.at - size : self.at - 1].decode("latin-1") if size else ""

    def _constant(self) -> str | None:
        kind = self._take("B")
        if kind == _STRING:
            return self._string()
        self.at += {_NIL: 0, _BOOLEAN: 1, _NUMBER: 8}[kind]
        return None

    def read_function(self, found: Globals) -> None:
        """Read one function and those inside it."""
        self._string()
        self.at += 4 + 4 + 4
        code = [self._take("I") for _ in range(self._take("i"))]
        constants = [self._constant() for _ in range(self._take("i"))]
        for instruction in code:
            names = {_GETGLOBAL: found.read, _SETGLOBAL: found.written}.get(instruction & 0x3F)
            if names is not None:
                names.add(str(constants[instruction >> 14]))
        for _ in range(self._take("i")):
            self.read_function(found)
        lines = self._take("i")
        self.at += 4 * lines
        for _ in range(self._take("i")):
            self._string()
            self.at += 8
        for _ in range(self._take("i")):
            self._string()
