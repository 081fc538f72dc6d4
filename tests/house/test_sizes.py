"""No file outgrows what a reader takes in at one sitting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.house.lua_source import LUA
from tests.house.python_source import PACKAGE, ROOT

MODULE_LINES = 400
VERB_LINES = 89
LIBRARY_LINES = 59
LUA_COLUMNS = 120
PYTHON_FILES = [
    *PACKAGE.rglob("*.py"),
    *(ROOT / "tests").rglob("*.py"),
    *(ROOT / "scripts").rglob("*.py"),
]


def longer_than(most: int, paths: Iterable[Path]) -> Mapping[str, int]:
    """Return the files with more lines than that, and how many they have."""
    counted = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    return {str(p.relative_to(ROOT)): lines for p, lines in counted.items() if lines > most}


def test_a_python_file_has_at_most_400_lines() -> None:
    assert {} == longer_than(MODULE_LINES, PYTHON_FILES)


def test_a_lua_verb_has_fewer_than_90_lines() -> None:
    assert {} == longer_than(VERB_LINES, LUA.glob("*.lua"))


def test_a_lua_library_has_fewer_than_60_lines() -> None:
    assert {} == longer_than(LIBRARY_LINES, (LUA / "lib").glob("*.lua"))


def test_a_lua_line_has_at_most_120_columns() -> None:
    long = [
        f"{path.name}:{at}"
        for path in LUA.rglob("*.lua")
        for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LUA_COLUMNS
    ]
    assert [] == long
