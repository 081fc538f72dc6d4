"""The package's Python sources as house tests read them: parsed once, named by module."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import redis_replay

PACKAGE = Path(redis_replay.__file__).parent
ROOT = PACKAGE.parent
T = TypeVar("T")


@dataclass(frozen=True)
class Module:
    """One module of the package.

    Attributes:
        name: Dotted name inside the package, ``""`` for the package itself.
    """

    name: str
    path: Path
    text: str
    tree: ast.Module

    def imports(self) -> Iterator[str]:
        """Yield the full names of everything the module imports, wherever the statement stands."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}: relative import"
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def modules() -> tuple[Module, ...]:
    """Return all modules of the package."""
    return tuple(_read(path) for path in sorted(PACKAGE.rglob("*.py")))


def _read(path: Path) -> Module:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    text = path.read_text(encoding="utf-8")
    return Module(name, path, text, ast.parse(text))


@cache
def module_names() -> frozenset[str]:
    """Return the full dotted names of all modules."""
    return frozenset(f"redis_replay.{m.name}" if m.name else "redis_replay" for m in modules())


def module_of(imported: str) -> str | None:
    """Return the module inside the package that an imported name lives in, ``None`` for others."""
    if imported.partition(".")[0] != "redis_replay":
        return None
    while imported not in module_names():
        imported = imported.rpartition(".")[0]
    return imported.partition(".")[2]


def is_public(name: str) -> bool:
    """Return whether a name is meant for others."""
    return not name.startswith("_")


def findings(look: Callable[[Module], Iterable[T]]) -> dict[str, list[T]]:
    """Return what was found in each module where anything was found."""
    found = {str(module.path.relative_to(ROOT)): list(look(module)) for module in modules()}
    return {path: listed for path, listed in found.items() if listed}
