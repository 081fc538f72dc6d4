"""What a test may not do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.house.python_source import ROOT

TESTS = sorted((ROOT / "tests").rglob("*.py"))


def names_of(path: Path, node: ast.AST) -> str:
    """Return a place as file and line."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def calls(path: Path) -> Iterator[tuple[str, ast.Call, bool]]:
    """Yield the last name of every call of a file, the call, and whether a loop waits with it."""

    def walk(node: ast.AST, *, in_loop: bool) -> Iterator[tuple[str, ast.Call, bool]]:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            yield str(name), node, in_loop
        for child in ast.iter_child_nodes(node):
            yield from walk(child, in_loop=in_loop or isinstance(node, ast.While))

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), in_loop=False)


def is_bare(argument: ast.expr) -> bool:
    """Return whether a pause is a plain number above zero; a constant has a name and a reason."""
    return isinstance(argument, ast.Constant) and argument.value != 0


def test_no_test_waits_for_time_to_pass_instead_of_a_condition() -> None:
    bare = [
        names_of(path, call)
        for path in TESTS
        for name, call, in_loop in calls(path)
        if name == "sleep" and not in_loop and is_bare(call.args[0])
    ]
    assert [] == bare


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    excused = [
        names_of(path, node)
        for path in TESTS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("skip", "skipif", "xfail", "importorskip")
    ]
    assert [] == excused
