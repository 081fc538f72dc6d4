"""Imports point down only, and what the package may not do at all."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tests.house.python_source import Module, findings, module_of, modules

LAYERS: Mapping[str, frozenset[str]] = {
    "vocabulary": frozenset(
        {"errors", "types", "rewards", "meta", "processes", "protocols", "rooms"}
    ),
    "wire": frozenset(
        {
            *("arrays", "dtypes", "tensors", "forms", "fields", "narrowing", "compression"),
            *(
                "codec",
                "sharing",
                "layout",
                "extras",
                "entries",
                "shorthand",
                "directory",
                "drafts",
                "columns",
            ),
            *("rows", "payloads", "blocks", "outputs"),
        }
    ),
    "redis": frozenset({"_redis"}),
    "policy": frozenset({"samplers", "selection", "dynamic_sampling", "transitions"}),
    "embedded": frozenset({"embedded"}),
    "runtime": frozenset(
        {
            *(
                "admission",
                "attachment",
                "audit",
                "buffer",
                "call_numbers",
                "claims",
                "collector",
                "commits",
                "cut",
            ),
            *(
                "bookmark",
                "checkpoint_files",
                "checkpoint_info",
                "checkpoints",
                "damage",
                "exported",
                "exporting",
                "group_record",
                "groups",
                "heart",
                "importing",
                "packs",
                "filtering",
                "groups",
                "heart",
                "loop_thread",
                "holdings",
                "reading",
                "decoding",
                "group_reads",
                "reservations",
                "owned",
                "rollout",
                "run",
                "samples",
                "selected",
                "selections",
                "server_checks",
                "session",
                "silence",
            ),
            *(
                "ending",
                "end_of_data",
                "opening",
                "preview",
                "rank",
                "recovery",
                "restoring",
                "saved_state",
                "stats",
            ),
            *("step_target", "store", "store_options", "tally", "tasks", "trainer", "verification"),
        }
    ),
    "edge": frozenset({"", "blocking", "bridge", "cli", "demo", "sync", "testing"}),
}
"""First parts of module names, by layer. A new module gets its layer here."""

MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "vocabulary": frozenset(),
    "wire": frozenset({"vocabulary"}),
    "redis": frozenset({"vocabulary"}),
    "policy": frozenset({"vocabulary"}),
    "embedded": frozenset({"vocabulary"}),
    "runtime": frozenset({"vocabulary", "wire", "redis", "policy", "embedded"}),
    "edge": frozenset({"vocabulary", "wire", "redis", "policy", "embedded", "runtime"}),
}

RUNS_CODE_FROM_BYTES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"})
MAY_PRINT = frozenset({"cli", "demo"})


def layer_of(name: str) -> str:
    """Return the layer of a module."""
    first = name.partition(".")[0]
    found = [layer for layer, firsts in LAYERS.items() if first in firsts]
    assert len(found) == 1, f"module {name!r} must stand in exactly one layer, not in {found}"
    return found[0]


def imported_modules(module: Module) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = {module_of(name) for name in module.imports()}
    return {name for name in found if name is not None and name != module.name}


def upward_imports(module: Module) -> set[str]:
    """Return what a module imports from a layer that it may not know."""
    layer = layer_of(module.name)
    allowed = {layer, *MAY_IMPORT[layer]}
    return {name for name in imported_modules(module) if layer_of(name) not in allowed}


def test_a_module_imports_its_own_layer_and_those_below() -> None:
    assert {} == findings(upward_imports)


def test_every_layer_entry_is_a_module() -> None:
    firsts = {module.name.partition(".")[0] for module in modules()}
    assert firsts == set().union(*LAYERS.values())


def test_modules_do_not_import_one_another_in_a_circle() -> None:
    imports = {module.name: imported_modules(module) for module in modules() if module.name}
    imports["protocols"] -= {"meta"}  # under TYPE_CHECKING, so it is no import at run time
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"circle: {' -> '.join((*path, name))}"
        if name not in done:
            for imported in sorted(imports.get(name, ())):
                visit(imported, (*path, name))
            done.add(name)

    for name in imports:
        visit(name, ())


def users_of(*packages: str) -> set[str]:
    """Return the modules that import one of these packages."""
    return {
        module.name
        for module in modules()
        if any(name.partition(".")[0] in packages for name in module.imports())
    }


def test_the_redis_client_is_imported_in_the_redis_layer_alone() -> None:
    assert {"redis"} == {layer_of(name) for name in users_of("redis", "hiredis")}


def test_nothing_imports_asyncio_since_everything_runs_on_anyio() -> None:
    assert set() == users_of("asyncio", "trio")


def test_nothing_imports_what_runs_code_from_stored_bytes() -> None:
    assert set() == users_of(*RUNS_CODE_FROM_BYTES)


def broad_handlers(module: Module) -> Iterator[int]:
    """Yield the lines that catch everything without raising it again."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler):
            names = (
                {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
                if node.type
                else set()
            )
            catches_all = node.type is None or names & {"Exception", "BaseException"}
            raises_again = any(isinstance(n, ast.Raise) and n.exc is None for n in ast.walk(node))
            if catches_all and not raises_again:
                yield node.lineno


def test_no_handler_swallows_whatever_comes() -> None:
    assert {} == findings(broad_handlers)


def printed_lines(module: Module) -> list[int]:
    """Return the lines that talk to a terminal, of modules that may not."""
    if module.name.partition(".")[0] in MAY_PRINT:
        return []
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "input", "breakpoint")
    ]


def test_library_code_does_not_print() -> None:
    assert {} == findings(printed_lines)
