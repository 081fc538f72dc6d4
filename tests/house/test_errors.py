"""The error tree: drawn as it is, explained, and used."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import pytest

from redis_replay import errors
from tests.house.python_source import modules

CLASSES: dict[str, type[errors.ReplayError]] = {
    name: found
    for name, found in vars(errors).items()
    if inspect.isclass(found) and issubclass(found, errors.ReplayError)
}
FAMILIES = {name for name, found in CLASSES.items() if found.__subclasses__()}
_DRAWN = re.compile(r"^    ([│├└─ ]*)(\w+)(?: {2,}(\S.*))?$", re.MULTILINE)
_STEP = 4


def drawn_tree() -> Iterator[tuple[str, str | None]]:
    """Yield each class of the drawn tree with the one it hangs from."""
    path: list[str] = []
    for branch, name, _ in _DRAWN.findall(errors.__doc__ or ""):
        depth = len(branch) // _STEP
        del path[depth:]
        yield name, path[-1] if path else None
        path.append(name)


def test_the_drawn_tree_is_the_class_tree() -> None:
    parents = {
        name: None if found is errors.ReplayError else found.__bases__[0].__name__
        for name, found in CLASSES.items()
    }
    assert parents == dict(drawn_tree())


def test_classes_stand_in_the_order_of_the_drawing() -> None:
    assert list(CLASSES) == [name for name, _ in drawn_tree()]


def test_every_drawn_class_below_the_root_says_when_it_is_seen() -> None:
    unexplained = [
        name for _, name, meaning in _DRAWN.findall(errors.__doc__ or "") if not meaning.strip()
    ]
    assert ["ReplayError"] == unexplained


@pytest.mark.parametrize("name", CLASSES)
def test_every_error_has_a_docstring_of_its_own(name: str) -> None:
    assert "__doc__" in vars(CLASSES[name])
    assert CLASSES[name].__doc__


def names_used() -> set[str]:
    """Return the error names that code outside `errors` uses other than to catch or import them."""
    used: set[str] = set()
    for module in modules():
        if module.name == "errors":
            continue
        handled = {
            id(part)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.ExceptHandler) and node.type is not None
            for part in ast.walk(node.type)
        }
        for node in ast.walk(module.tree):
            if id(node) not in handled:
                used |= {node.id} if isinstance(node, ast.Name) else set()
                used |= {node.attr} if isinstance(node, ast.Attribute) else set()
    return used


def test_every_error_that_is_no_family_is_raised_somewhere() -> None:
    assert set() == CLASSES.keys() - FAMILIES - names_used()


def test_attributes_of_an_error_are_keyword_only() -> None:
    for name, found in CLASSES.items():
        parameters = list(inspect.signature(found.__init__).parameters.values())[2:]
        loose = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert [] == loose, name


def raised_names() -> Iterator[tuple[str, str]]:
    """Yield module and class of each ``raise Class(...)`` of the package."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                called = node.exc.func
                yield module.name, getattr(called, "id", getattr(called, "attr", ""))


def test_nothing_raises_an_error_too_broad_to_be_caught_alone() -> None:
    broad = {"Exception", "BaseException", "RuntimeError", "ReplayError", "AssertionError"}
    assert [] == [(where, name) for where, name in raised_names() if name in broad]
