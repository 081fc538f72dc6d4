"""The project's documents as house tests read them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.house.python_source import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
README = ROOT / "README.md"
CONTRIBUTING = ROOT / ".github" / "CONTRIBUTING.md"
DOCUMENTS = (README, ARCHITECTURE, CONTRIBUTING, ROOT / "CHANGELOG.md")

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@cache
def text_of(path: Path) -> str:
    """Return a document's text."""
    return path.read_text(encoding="utf-8")


def marked(path: Path, name: str) -> str:
    """Return what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->``."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = text_of(path)
    assert text.count(begin) == text.count(end) == 1, f"{path.name} must mark {name!r} once"
    return text.partition(begin)[2].partition(end)[0]


def code_blocks(text: str, *, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    return [body for found, body in _FENCED.findall(text) if found == language]


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of a table's rows, without its heading."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
