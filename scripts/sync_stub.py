"""Write ``redis_replay/sync.pyi``, the signatures of the blocking API, from the asynchronous API.

A type checker cannot compute them, so they are kept as a file, and a house test compares. Run this
after a public signature has changed, in the project's environment: ``python scripts/sync_stub.py``.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import redis_replay
from redis_replay.blocking import counterpart, is_asynchronous
from redis_replay.samplers.base import SamplerBuffer

STUB: Final = Path(redis_replay.__file__).parent / "sync.pyi"
HEADING: Final = '"""The blocking API as type checkers see it; written by scripts/sync_stub.py."""'
EXIT: Final = (
    "def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, "
    "trace: TracebackType | None) -> None: ..."
)
DOC_COLUMNS: Final = 84
PLAIN_DEFAULTS: Final = (bool, int, float, str, type(None))


def is_protocol(value: Any) -> bool:
    """Return whether a class is a protocol."""
    return bool(getattr(value, "_is_protocol", False))


def is_written(value: Any) -> bool:
    """Return whether the stub has a class of its own for a public name."""
    if not inspect.isclass(value) or not is_asynchronous(value):
        return False
    return is_protocol(value) or counterpart(value) is not value


PUBLIC: Final = {name: getattr(redis_replay, name) for name in redis_replay.__all__}
WRITTEN: Final = {name: value for name, value in PUBLIC.items() if is_written(value)}


@dataclass
class Stub:
    """The text of the stub as it grows, and the imports that it needs."""

    imports: set[str] = field(default_factory=set)

    def text(self) -> str:
        """Return the whole stub."""
        classes = [self._class(name, cls) for name, cls in WRITTEN.items()]
        functions = [n for n, f in PUBLIC.items() if inspect.isfunction(f) and names_written(f)]
        bodies = classes + [self._function(name, PUBLIC[name]) for name in functions]
        for name in sorted(PUBLIC.keys() - WRITTEN.keys() - {*functions}):
            self.imports.add(f"from redis_replay import {name} as {name}")
        listed = f"__all__ = [{', '.join(map(repr, redis_replay.__all__))},]"
        return formatted("\n\n".join([HEADING, *sorted(self.imports), listed, *bodies]))

    def _class(self, name: str, cls: type) -> str:
        base = ""
        if is_protocol(cls):
            base = "(Protocol)"
            self.imports.add("from typing import Protocol")
        body = [docstring(cls), *(self._member(*member) for member in members_of(cls))]
        if hasattr(cls, "__aenter__"):
            self.imports.add("from types import TracebackType")
            body += [f"def __enter__(self) -> {name}: ...", EXIT]
        return f"class {name}{base}:\n" + textwrap.indent("\n".join(body), "    ")

    def _member(self, name: str, member: Any, module: str) -> str:
        if isinstance(member, property):
            return "@property\n" + self._function(name, member.fget)
        if inspect.isfunction(member):
            return self._function(name, member)
        return f"{name}: {self._annotation(member, module)}"

    def _function(self, name: str, function: Any) -> str:
        parts: list[str] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
                parts.append("*")
            part = parameter.name
            if parameter.annotation is not parameter.empty:
                part += f": {self._annotation(parameter.annotation, function.__module__)}"
            if parameter.default is not parameter.empty:
                plain = isinstance(parameter.default, PLAIN_DEFAULTS)
                part += f" = {parameter.default!r}" if plain else " = ..."
            parts.append(part)
        returned = self._annotation(function.__annotations__["return"], function.__module__)
        body = docstring(function) if function.__doc__ else "..."
        return f"def {name}({', '.join(parts)}) -> {returned}:\n{textwrap.indent(body, '    ')}"

    def _annotation(self, annotation: str | None, module: str) -> str:
        tree = ast.parse(str(annotation), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = self._name(node.id, module)
        return ast.unparse(tree)

    def _name(self, name: str, module: str) -> str:
        """Return what a name in an annotation is called in the stub, and import it there."""
        value = meaning(name, module)
        if hasattr(builtins, name) or (name in PUBLIC and PUBLIC[name] is value):
            return name
        if value is SamplerBuffer:
            return "RedisReplayBuffer"
        origin = origin_of(name, value, module)
        if origin.startswith("redis_replay.") and inspect.isclass(value) and is_asynchronous(value):
            name, origin = "Any", "typing"  # an internal class, whose signatures nobody needs
        self.imports.add(f"from {origin} import {name}")
        return name


def meaning(name: str, module: str) -> Any:
    """Return what a name means in a module; one imported for type checkers only is public."""
    return vars(sys.modules[module]).get(name, PUBLIC.get(name))


def origin_of(name: str, value: Any, module: str) -> str:
    """Return the module that defines what a name means in another one."""
    own = str(getattr(value, "__module__", ""))
    candidates = [own] if own in sys.modules else []
    candidates += [other for other in (module, *sorted(sys.modules)) if assigns(other, name)]
    return next(found for found in candidates if vars(sys.modules[found]).get(name) is value)


def assigns(module: str, name: str) -> bool:
    """Return whether a module of the package assigns a name at its top level."""
    found = sys.modules[module]
    if not module.startswith("redis_replay") or not getattr(found, "__file__", None):
        return False
    body = ast.parse(Path(str(found.__file__)).read_text(encoding="utf-8")).body
    targets: list[ast.expr] = []
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets += node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def names_written(function: Any) -> bool:
    """Return whether a function returns what has a class in the stub."""
    tree = ast.parse(function.__annotations__["return"], mode="eval")
    return any(isinstance(node, ast.Name) and node.id in WRITTEN for node in ast.walk(tree))


def members_of(cls: type) -> Iterator[tuple[str, Any, str]]:
    """Yield a class's public members, inherited ones first: name, member or annotation, module."""
    found: dict[str, tuple[Any, str]] = {}
    for part in reversed(cls.__mro__):
        if part.__module__.partition(".")[0] != "redis_replay":
            continue
        for name, annotation in inspect.get_annotations(part).items():
            found[name] = (annotation, part.__module__)
        for name, member in vars(part).items():
            if isinstance(member, property) or inspect.isfunction(member):
                found[name] = (member, part.__module__)
    for name, (member, module) in found.items():
        if not name.startswith("_") or (name == "__init__" and is_made_of_written(member)):
            yield name, member, module


def is_made_of_written(constructor: Any) -> bool:
    """Return whether a constructor takes what programs have, and not what is internal."""
    parameters = list(inspect.signature(constructor).parameters.values())[1:]
    first = meaning(parameters[0].annotation, constructor.__module__) if parameters else None
    return first is SamplerBuffer or first in WRITTEN.values()


def docstring(explained: Any) -> str:
    """Return the first paragraph of a docstring, as a docstring."""
    paragraph = " ".join((inspect.getdoc(explained) or "").partition("\n\n")[0].split())
    paragraph = paragraph.replace("async with", "with")
    return '"""' + "\n".join(textwrap.wrap(paragraph, DOC_COLUMNS)) + '"""'


def formatted(text: str) -> str:
    """Return a stub's text as the project formats it."""
    for command in (["check", "--quiet", "--select=I", "--fix"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(STUB), "-"]
        done = subprocess.run(
            ruff, input=text, text=True, capture_output=True, check=True, cwd=STUB.parents[1]
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    STUB.write_text(Stub().text(), encoding="utf-8")
