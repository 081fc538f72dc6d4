"""Names, comments and documents: the words the project keeps to, the claims it makes of itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from redis_replay._redis.keys import Key
from redis_replay._redis.refusals import REFUSALS
from tests.house.documents import (
    ARCHITECTURE,
    CONTRIBUTING,
    DOCUMENTS,
    README,
    marked,
    table_rows,
    text_of,
)
from tests.house.lua_source import ALL_SOURCES, VERBS, verb
from tests.house.python_source import PACKAGE, ROOT, Module, findings
from tests.house.test_layers import LAYERS

FORBIDDEN_WORDS = frozenset(
    {"manager", "helper", "helpers", "util", "utils", "common", "misc", "impl", "stuff", "foo"}
)
"""Words of a name that say nothing about what is named."""

BARE_NAMES = frozenset({"data", "idx", "obj", "tmp"})
"""Names that need a word before them: which data, whose index."""

FIRST_PICTURE = 0x1F000
SOURCES = sorted(
    [
        *PACKAGE.rglob("*.py"),
        *PACKAGE.rglob("*.lua"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "scripts").rglob("*.py"),
    ]
)
TEXTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (*SOURCES, *DOCUMENTS)
    if path != Path(__file__)
}
every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]+)?\)")
_CODE_PATH = re.compile(r"`((?:redis_replay|tests|docs|scripts|\.github|\.ci)/[\w./*<>{},-]+)`")
_UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|WIP)\b")
_ELSEWHERE = re.compile(
    r"\b(?:DECISIONS|SEMANTICS|DESIGN|CASES|RELIABILITY|PERFORMANCE) (?:sections? )?[A-Z]?\d"
)
_DECISION = re.compile(r"\bD(\d+)\b")


def names_in(module: Module) -> Iterator[str]:
    """Yield every name that a module gives: modules, classes, functions, parameters, attributes."""
    yield from module.name.split(".")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def vague_names(module: Module) -> set[str]:
    """Return the names of a module that say nothing about what they name."""
    return {
        name
        for name in names_in(module)
        if {word.lower() for word in _WORDS.findall(name)} & FORBIDDEN_WORDS
        or name.strip("_") in BARE_NAMES
    }


def test_a_name_says_what_it_names() -> None:
    assert {} == findings(vague_names)


def test_a_lua_file_says_what_it_is_about() -> None:
    vague = FORBIDDEN_WORDS | BARE_NAMES | {"index"}
    assert [] == [source.name for source in ALL_SOURCES if {*source.name.split("_")} & vague]


def found_in_texts(pattern: re.Pattern[str]) -> dict[str, list[str]]:
    """Return what a pattern finds in sources, tests and documents, by file."""
    found = {name: pattern.findall(text) for name, text in TEXTS.items()}
    return {name: listed for name, listed in found.items() if listed}


def test_no_text_holds_plans() -> None:
    assert {} == found_in_texts(_UNFINISHED)


def test_no_text_refers_to_documents_that_are_not_in_the_repository() -> None:
    assert {} == found_in_texts(_ELSEWHERE)


def decisions() -> list[int]:
    """Return the numbers of the decisions that the architecture states, in its order."""
    return [int(n) for n in re.findall(r"^\*\*D(\d+)\. \S", text_of(ARCHITECTURE), re.MULTILINE)]


def test_decisions_are_stated_once_and_in_order() -> None:
    assert sorted(set(decisions())) == decisions()


def test_each_decision_has_its_choice_its_reason_and_what_would_change_it() -> None:
    blocks = re.findall(r"^\*\*D\d+\..*(?:\n.+)+", text_of(ARCHITECTURE), re.MULTILINE)
    incomplete = [
        block.splitlines()[0]
        for block in blocks
        if len(block.splitlines()) != 3 or not block.splitlines()[2].startswith("Changes ")
    ]
    assert len(decisions()) == len(blocks)
    assert [] == incomplete


def test_every_decision_that_is_referred_to_stands_in_the_architecture() -> None:
    referred = {int(number) for listed in found_in_texts(_DECISION).values() for number in listed}
    assert set() == referred - set(decisions())


def test_no_text_is_illustrated() -> None:
    pictures = {
        name: [c for c in text if ord(c) >= FIRST_PICTURE]
        for name, text in TEXTS.items()
        if not name.startswith("tests/")  # test rows hold every kind of text
    }
    assert {} == {name: listed for name, listed in pictures.items() if listed}


@every_document
def test_links_of_a_document_lead_somewhere(path: Path) -> None:
    targets = [found for found, _ in _LINK.findall(text_of(path)) if "://" not in found]
    broken = [target for target in targets if not (path.parent / target).exists()]
    assert [] == broken


@every_document
def test_paths_that_a_document_names_exist(path: Path) -> None:
    named = {found for found in _CODE_PATH.findall(text_of(path)) if not set("<{*") & set(found)}
    assert set() == {found for found in named if not (ROOT / found).exists()}


def test_the_keyspace_table_has_every_control_key_in_order() -> None:
    named = [row[0].strip("`") for row in table_rows(marked(ARCHITECTURE, "keyspace"))]
    assert [key.value for key in Key] == named


def test_the_keyspace_table_names_for_each_key_the_verbs_that_write_it() -> None:
    writers = {row[0].strip("`"): row[3] for row in table_rows(marked(ARCHITECTURE, "keyspace"))}
    unknown = {
        name
        for cell in writers.values()
        for name in re.findall(r"`(\w+)`", cell)
        if name not in VERBS
    }
    assert set() == unknown
    undeclared = [
        (noun, name)
        for noun, cell in writers.items()
        for name in re.findall(r"`(\w+)`", cell)
        if noun not in verb(name).words("Keys")
    ]
    assert [] == undeclared


def test_the_layers_of_the_architecture_are_those_that_are_enforced() -> None:
    rows = table_rows(marked(ARCHITECTURE, "layers"))
    drawn = {row[0]: set(re.findall(r"`([\w/]+)`", row[1])) for row in rows}
    enforced = {layer: {name for name in firsts if name} for layer, firsts in LAYERS.items()}
    assert enforced == {
        layer: {name.rstrip("/") for name in names} for layer, names in drawn.items()
    }


def test_the_contributing_guide_names_every_file_that_a_new_script_touches() -> None:
    guide = text_of(CONTRIBUTING)
    for part in ("_redis/lua/<verb>.lua", "scripts.py", "transitions.py", "refusals.py"):
        assert part in guide


def test_the_readme_says_how_to_see_it_and_how_to_test_it() -> None:
    text = text_of(README)
    assert "scripts/demo" in text
    assert "scripts/test" in text


def test_refusal_codes_in_the_documents_exist() -> None:
    known = REFUSALS.keys()
    named = set(re.findall(r"`([A-Z]+_?[A-Z]+)`", text_of(ARCHITECTURE) + text_of(CONTRIBUTING)))
    assert set() == {code for code in named if code.isupper()} - known - {
        "KEYS",
        "ARGV",
        "MULTI",
        "ALL_SCRIPTS",
    }
