"""The machine that turns a call class into a script: keys, arguments, libraries, digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import pytest
from lupa import lua51

from redis_replay._redis import lua
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import Argument, ScriptCall, load_script, prelude, resolve_includes

ECHO = """
local seen = {}
for name, value in pairs(keys) do
  local shown = type(value) == 'table' and table.concat(value, '|') or value
  seen[#seen + 1] = 'key ' .. name .. '=' .. shown
end
for name, value in pairs(args) do
  if type(value) ~= 'table' then
    seen[#seen + 1] = name .. '=' .. type(value) .. ':' .. value
  else
    for at, item in ipairs(value) do
      seen[#seen + 1] = name .. '.' .. at .. '=' .. type(item) .. ':' .. item
    end
    seen[#seen + 1] = name .. '#' .. #value
  end
end
table.sort(seen)
return seen
"""


@dataclass(frozen=True)
class Framed(ScriptCall[None]):
    FRAME = (("owner", "string"), ("epoch", "number"))


@dataclass(frozen=True)
class Everything(Framed):
    names: tuple[str, ...]
    count: int
    limit: int | None
    label: str
    blob: bytes
    numbers: tuple[int, ...]
    blobs: tuple[bytes, ...]

    SCRIPT = "everything"
    KEYS = (Key.META, Key.SLOTS)
    PAYLOAD_KEYS = True


def echoed(call: ScriptCall[Any], *, keys: list[str], frame: tuple[Argument, ...]) -> list[str]:
    """Return what a body sees of a call, as the server would hand it over: strings alone."""
    runtime = lua51.LuaRuntime(encoding="latin-1")
    chunk = f"local KEYS, ARGV = ...\n{prelude(type(call))}\n{ECHO}"
    arguments = [_on_the_wire(value) for value in (*frame, *call.argument_values())]
    run = runtime.eval("function(text) return assert(loadstring(text)) end")(chunk)
    return list(run(runtime.table_from(keys), runtime.table_from(arguments)).values())


def _on_the_wire(value: Argument) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


EVERYTHING = Everything(
    names=("a", "b"),
    count=3,
    limit=None,
    label="7",
    blob=b"\x00\xff",
    numbers=(4, 5),
    blobs=(b"x y", b""),
)


def test_a_body_sees_keys_and_arguments_by_name_and_type() -> None:
    seen = echoed(EVERYTHING, keys=["K1", "K2", "P1", "P2"], frame=("owner 1", 9))
    assert [
        *("blob=string:\x00\xff", "blobs#2", "blobs.1=string:x y", "blobs.2=string:"),
        *("count=number:3", "epoch=number:9"),
        *("key meta=K1", "key payload=P1|P2", "key slots=K2"),
        *("label=string:7", "names#2", "names.1=string:a", "names.2=string:b"),
        *("numbers#2", "numbers.1=number:4", "numbers.2=number:5", "owner=string:owner 1"),
    ] == seen


def test_an_absent_number_is_nil_and_empty_lists_are_empty() -> None:
    call = Everything((), 0, None, "", b"", (), ())
    seen = echoed(call, keys=["K1", "K2"], frame=("", 0))
    assert "limit=number" not in "".join(seen)
    assert {"names#0", "numbers#0", "blobs#0", "key payload="} <= set(seen)


def test_an_optional_number_that_is_there_arrives_as_a_number() -> None:
    call = Everything((), 0, 2**53 - 1, "", b"", (), ())
    [seen] = [line for line in echoed(call, keys=[], frame=("", 0)) if line.startswith("limit")]
    assert "number" == seen.partition("=")[2].partition(":")[0]


def test_scalars_come_before_lists_and_each_list_after_its_length() -> None:
    assert [3, "", "7", b"\x00\xff", 2, "a", "b", 2, 4, 5, 2, b"x y", b""] == (
        EVERYTHING.argument_values()
    )


def test_a_field_that_no_script_can_receive_is_refused_when_the_script_is_built() -> None:
    @dataclass(frozen=True)
    class Fractional(ScriptCall[None]):
        share: float

        SCRIPT = "fractional"

    with pytest.raises(TypeError, match="'share' has type float"):
        prelude(Fractional)


def test_a_call_that_does_not_say_what_its_reply_means_is_refused() -> None:
    with pytest.raises(TypeError, match="Everything does not say what its reply means"):
        EVERYTHING.parse([])


SOURCES = {
    "top": "-- include: middle\n-- include: base\nlocal top = 1",
    "middle": "-- include: base\nlocal middle = {}",
    "base": "local base = {}",
    "circular": "-- include: circular\nlocal circular = {}",
}


@pytest.fixture
def lua_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the Lua files by a few made-up ones."""

    def read_made_up(name: str, *, library: bool = False) -> str:
        assert library == (name != "top")
        return SOURCES[name]

    monkeypatch.setattr(lua, "read_source", read_made_up)


@pytest.mark.usefixtures("lua_files")
def test_libraries_come_before_what_needs_them_and_each_once() -> None:
    assert ["base", "middle"] == resolve_includes(SOURCES["top"])


@pytest.mark.usefixtures("lua_files")
def test_a_script_is_its_prelude_its_libraries_and_its_body_with_their_digest() -> None:
    @dataclass(frozen=True)
    class Top(ScriptCall[None]):
        SCRIPT = "top"
        KEYS = (Key.META,)

    script = load_script(Top)
    assert script.text.splitlines() == [
        *("local keys = {meta = KEYS[1]}", "local saved = {}"),
        "local args = {}",
        *("local base = {}", "-- include: base", "local middle = {}"),
        *("-- include: middle", "-- include: base", "local top = 1"),
    ]
    assert hashlib.sha1(script.text.encode()).hexdigest() == script.sha
    assert load_script(Top) is script


def test_an_include_is_a_line_of_its_own() -> None:
    assert [] == resolve_includes("return '-- include: text' --  include: text\n  -- include: text")
