"""The Lua sources as house tests read them: headers, functions, who calls whom, which globals.

A reader of text, not of Lua: it relies on the layout that the sources keep, a header of ``--``
lines and functions that begin and end at the left margin.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import redis_replay._redis
from redis_replay._redis.lua import resolve_includes

LUA = Path(redis_replay._redis.__file__).parent / "lua"
VERBS = tuple(sorted(path.stem for path in LUA.glob("*.lua")))
LIBRARIES = tuple(sorted(path.stem for path in (LUA / "lib").glob("*.lua")))

_SECTION = re.compile(r"^-- (Keys|Args|States|Returns|Refusals): (.*(?:\n--   .*)*)$", re.MULTILINE)
_FUNCTION = re.compile(r"^(?:local )?function ([\w.]+)\(.*?^end$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"^ *--.*$", re.MULTILINE)
_KEY = re.compile(r"\bkeys\.(\w+)")
_ARGUMENT = re.compile(r"\bargs\.(\w+)")
_REFUSED = re.compile(r"control\.head\('(\w+)'|return \{ '(\w+)'")
_LOADED = re.compile(
    r"(?:slot|packed)\.(?:load|load_listed|unfit)\((?:[^()]|\([^()]*\))*?,\s*'([a-z ]+)'\)"
)


@dataclass(frozen=True)
class LuaSource:
    """One file: a verb, or a library."""

    name: str
    text: str

    @property
    def header(self) -> str:
        """The comment that the file begins with."""
        return "\n".join(line for line in self._header_lines())

    def _header_lines(self) -> Iterator[str]:
        for line in self.text.splitlines():
            if not line.startswith("--"):
                return
            yield line

    @property
    def sections(self) -> dict[str, str]:
        """The named sections of the header, on one line each."""
        return {
            name: " ".join(value.replace("\n--", " ").split())
            for name, value in _SECTION.findall(self.header)
        }

    def words(self, section: str) -> list[str]:
        """The words of a section; none when it is absent or says ``none``."""
        return [word for word in self.sections.get(section, "").split() if word != "none"]

    @property
    def code(self) -> str:
        """The text without its comments."""
        return _COMMENT.sub("", self.text)

    @property
    def functions(self) -> dict[str, str]:
        """The text of each function, by the name it is called by."""
        return {found.group(1): found.group() for found in _FUNCTION.finditer(self.code)}

    @property
    def includes(self) -> list[str]:
        """The libraries that the file names itself."""
        return re.findall(r"^-- include: (\w+)$", self.text, re.MULTILINE)

    @property
    def sources(self) -> dict[str, set[str]]:
        """The transitions that the header states: source state to target states."""
        table: dict[str, set[str]] = {}
        for part in filter(None, self.sections.get("States", "").split(";")):
            sources, targets = (side.split() for side in part.split("->"))
            for source in sources:
                table.setdefault(source, set()).update(targets)
        return table


@cache
def verb(name: str) -> LuaSource:
    """Return the source of a verb."""
    return LuaSource(name, (LUA / f"{name}.lua").read_text(encoding="utf-8"))


@cache
def library(name: str) -> LuaSource:
    """Return the source of a library."""
    return LuaSource(name, (LUA / "lib" / f"{name}.lua").read_text(encoding="utf-8"))


ALL_SOURCES = (*map(verb, VERBS), *map(library, LIBRARIES))


def keys_in(code: str) -> set[str]:
    """Return the nouns of the control keys that a text names."""
    return set(_KEY.findall(code)) - {"payload"}


def arguments_in(code: str) -> set[str]:
    """Return the arguments that a text names."""
    return set(_ARGUMENT.findall(code))


def refusals_in(code: str) -> set[str]:
    """Return the codes that a text refuses with."""
    return {first or second for first, second in _REFUSED.findall(code)} - {"OK"}


def refused_by(function: str) -> set[str]:
    """Return the codes that a library function refuses with: its own, else those of its callees."""
    noun = function.partition(".")[0]
    text = library(noun).functions.get(function, "") if noun in LIBRARIES else ""
    own = refusals_in(text)
    return own or set[str]().union(*map(refused_by, called_in(text) - {function}))


def loaded_states(code: str) -> set[str]:
    """Return the states that a text lets the slots it loads be in."""
    return {state for listed in _LOADED.findall(code) for state in listed.split()}


def called_in(code: str) -> set[str]:
    """Return the library functions that a text names, ``noun.function`` each."""
    found = {f"{noun}.{name}" for noun, name in re.findall(r"\b(\w+)\.(\w+)\(", code)}
    for noun in re.findall(r"\b(\w+)\[args\.\w+\]\(", code):
        found |= {name for name in library(noun).functions if name.startswith(f"{noun}.")}
    return found


def reached_functions(name: str) -> dict[str, str]:
    """Return the text of every library function that a verb can reach, by library and name."""
    known = {
        (noun, function): text
        for noun in resolve_includes(verb(name).text)
        for function, text in library(noun).functions.items()
    }
    reached: dict[tuple[str, str], str] = {}

    def visit(code: str, noun: str) -> None:
        local = {(noun, word) for word in re.findall(r"(?<![\w.])(\w+)\(", code)}
        called = {(c.partition(".")[0], c) for c in called_in(code)}
        for place in (local | called) & known.keys():
            if place not in reached:
                reached[place] = known[place]
                visit(known[place], place[0])

    visit(verb(name).code, "")
    return {f"{noun}:{function}": text for (noun, function), text in reached.items()}
