"""The blocking API is the asynchronous one: every name, and signatures made from it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from runpy import run_path

import pytest

import redis_replay
from redis_replay import sync
from redis_replay.blocking import Blocking, blocking_class, is_asynchronous
from tests.house.python_source import ROOT, is_public, modules

GENERATOR = ROOT / "scripts" / "sync_stub.py"
PUBLIC = {name: getattr(redis_replay, name) for name in redis_replay.__all__}
ASYNCHRONOUS = {
    name: value
    for name, value in PUBLIC.items()
    if inspect.isclass(value) and is_asynchronous(value)
}
TO_SUBCLASS = {"BaseSampler", "PromptGroupSampler", "TransactionalAdmissionSampler"}
"""What samplers are written against stays asynchronous, because a sampler is."""

INTERNAL = {"session", "claims", "admission", "commits", "holdings", "selections"}
"""Attributes of other modules' use, whose signatures the stub leaves out."""


def test_the_signatures_are_those_of_the_asynchronous_api() -> None:
    written = (ROOT / "redis_replay" / "sync.pyi").read_text(encoding="utf-8")
    assert run_path(str(GENERATOR))["Stub"]().text() == written, "run python scripts/sync_stub.py"


def test_every_public_name_is_there() -> None:
    assert redis_replay.__all__ == sync.__all__ == sync.__dir__()
    for name, value in PUBLIC.items():
        blocking = getattr(sync, name)
        if name in ASYNCHRONOUS.keys() - TO_SUBCLASS:
            assert issubclass(blocking, Blocking)
            assert blocking is blocking_class(value)
        elif inspect.isfunction(value):
            assert inspect.signature(value) == inspect.signature(blocking)
        else:
            assert blocking is value
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = sync.nothing  # type: ignore[attr-defined]


def public_members(cls: type) -> Iterator[tuple[str, object]]:
    """Yield the public members of a class as they stand in its body."""
    for name in dir(cls):
        if is_public(name):
            yield name, inspect.getattr_static(cls, name)


@pytest.mark.parametrize("name", ASYNCHRONOUS)
def test_a_member_is_of_a_kind_that_a_blocking_object_can_stand_for(name: str) -> None:
    unknown = [
        member
        for member, value in public_members(ASYNCHRONOUS[name])
        if inspect.isasyncgenfunction(value) or isinstance(value, classmethod | staticmethod)
    ]
    assert [] == unknown


@pytest.mark.parametrize("name", ASYNCHRONOUS.keys() - TO_SUBCLASS)
def test_the_stub_has_every_public_member(name: str) -> None:
    text = (ROOT / "redis_replay" / "sync.pyi").read_text(encoding="utf-8")
    [body] = [
        node.body
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    declared = {
        getattr(part, "name", getattr(getattr(part, "target", None), "id", "")) for part in body
    }
    members = {member for member, _ in public_members(ASYNCHRONOUS[name])}
    annotated = {
        field
        for cls in ASYNCHRONOUS[name].__mro__
        for field in getattr(cls, "__annotations__", ())
        if is_public(field)
    }
    assert set() == (members | annotated) - declared


def assigned_attributes(cls: ast.ClassDef) -> set[str]:
    """Return the public attributes that a class's constructor gives its objects."""
    return {
        target.attr
        for method in cls.body
        if isinstance(method, ast.FunctionDef) and method.name in ("__init__", "__post_init__")
        for node in ast.walk(method)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
        and is_public(target.attr)
    }


def test_public_attributes_of_what_is_asynchronous_are_declared_in_its_class() -> None:
    undeclared: dict[str, set[str]] = {}
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and node.name in ASYNCHRONOUS:
                declared = {
                    part.target.id
                    for part in node.body
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                }
                undeclared[node.name] = assigned_attributes(node) - declared
    assert undeclared.keys() >= ASYNCHRONOUS.keys()
    assert {} == {name: missing for name, missing in undeclared.items() if missing}


def test_the_stub_hides_nothing_but_what_is_internal() -> None:
    text = (ROOT / "redis_replay" / "sync.pyi").read_text(encoding="utf-8")
    hidden = {
        part.target.id
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, ast.AnnAssign)
        and isinstance(part.target, ast.Name)
        and isinstance(part.annotation, ast.Name)
        and part.annotation.id == "Any"
    }
    assert INTERNAL == hidden
