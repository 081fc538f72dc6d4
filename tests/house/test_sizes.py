"""No file outgrows what a reader takes in at one sitting."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.lua_source import LIBRARIES, VERBS, LuaSource, library, verb
from tests.house.python_source import PACKAGE, ROOT

MODULE_LINES = 400
VERB_LINES = 90
LIBRARY_LINES = 60
LUA_COLUMNS = 120
PYTHON_FILES = sorted([*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")])


def lines_of(text: str) -> int:
    """Return the number of lines of a text."""
    return len(text.splitlines())


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_python_file_has_at_most_400_lines(path: Path) -> None:
    assert lines_of(path.read_text(encoding="utf-8")) <= MODULE_LINES


@pytest.mark.parametrize("source", [*map(verb, VERBS)], ids=VERBS)
def test_a_lua_verb_has_fewer_than_90_lines(source: LuaSource) -> None:
    assert lines_of(source.text) < VERB_LINES


@pytest.mark.parametrize("source", [*map(library, LIBRARIES)], ids=LIBRARIES)
def test_a_lua_library_has_fewer_than_60_lines(source: LuaSource) -> None:
    assert lines_of(source.text) < LIBRARY_LINES


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.lua")), ids=lambda path: path.stem)
def test_a_lua_line_has_at_most_120_columns(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    long = [at for at, line in enumerate(text.splitlines(), 1) if len(line) > LUA_COLUMNS]
    assert [] == long
