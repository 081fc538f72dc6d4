"""Header, call class, body and refusal table of every Lua script say the same."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from redis_replay._redis.events import _TOPICS
from redis_replay._redis.frames import SessionScript, StoreScript
from redis_replay._redis.keys import Key
from redis_replay._redis.lua import ScriptCall, load_script, resolve_includes
from redis_replay._redis.refusals import REFUSALS
from redis_replay._redis.scripts import ALL_SCRIPTS
from redis_replay.audit import expected_entries
from redis_replay.call_numbers import CALLS_IN_FLIGHT
from redis_replay.selection import Rule
from redis_replay.types import MAX_GROUPS_PER_CALL, GroupState
from tests.house.lua_globals import globals_of
from tests.house.lua_source import (
    ALL_SOURCES,
    LIBRARIES,
    VERBS,
    LuaSource,
    arguments_in,
    called_in,
    keys_in,
    library,
    reached_functions,
    refusals_in,
    refused_by,
    verb,
)
from tests.house.slots import slot_record

ALLOWED_GLOBALS = {"KEYS", "ARGV", "redis", "cjson", "string", "table", "math"} | {
    *("ipairs", "pairs", "tonumber", "tostring", "type", "unpack"),
}
FRAMES = {"session.open", "control.open"}
"""Their refusals belong to every call of the frame and are named in the libraries alone."""

LISTS_SLOTS = "listing:entries"
"""The one function whose keys depend on the states of the slots that it is given."""

Call = type[ScriptCall[Any]]
every_call = pytest.mark.parametrize("call", ALL_SCRIPTS, ids=lambda call: call.SCRIPT)
every_library = pytest.mark.parametrize("source", [*map(library, LIBRARIES)], ids=LIBRARIES)
every_source = pytest.mark.parametrize("source", ALL_SOURCES, ids=lambda source: source.name)


def frame_arguments(call: Call) -> set[str]:
    """Return the arguments that every call of the frame carries."""
    return {name for name, _ in call.FRAME}


def keys_of_state(state: GroupState) -> set[str]:
    """Return the sorted sets that may list a group in a state, with and without a holder."""
    held = slot_record(state=state, target=1, epoch=1)
    free = slot_record(state=state, target=1, epoch=None)
    found = expected_entries(held).keys() | expected_entries(free).keys()
    return {key.value for key in found}


def test_every_verb_has_one_call_class_and_every_call_class_a_verb() -> None:
    assert list(VERBS) == sorted(call.SCRIPT for call in ALL_SCRIPTS)


@every_source
def test_a_header_begins_with_the_name_and_what_it_is_for(source: LuaSource) -> None:
    assert re.match(rf"-- {source.name}: \S.*[.,:]?\n--", source.text)


@every_call
def test_a_verb_says_why_it_is_atomic_and_what_it_takes_and_gives(call: Call) -> None:
    source = verb(call.SCRIPT)
    assert re.search(r"^-- Why atomic: \S", source.header, re.MULTILINE)
    assert {"Keys", "Args", "Returns", "Refusals"} <= source.sections.keys()


@every_call
def test_the_keys_of_a_header_are_those_of_the_call_class(call: Call) -> None:
    named = verb(call.SCRIPT).words("Keys")
    assert sorted(key.value for key in call.KEYS) == sorted(named)


@every_call
def test_the_arguments_of_a_header_are_the_fields_of_the_call_class_in_order(call: Call) -> None:
    assert [field.name for field in fields(call)] == verb(call.SCRIPT).words("Args")


@every_call
def test_a_script_declares_the_keys_it_reaches_and_no_others(call: Call) -> None:
    source, reached = verb(call.SCRIPT), reached_functions(call.SCRIPT)
    texts = [text for name, text in reached.items() if name != LISTS_SLOTS]
    needed = keys_in("\n".join([source.code, *texts]))
    if LISTS_SLOTS in reached:
        states = {*source.sources, *set().union(*source.sources.values())}
        live = [GroupState(state) for state in sorted(states & {*GroupState})]
        needed = needed.union(*map(keys_of_state, live))
    assert sorted(needed) == sorted(key.value for key in call.KEYS)


@every_call
def test_a_script_uses_all_its_arguments_and_no_others(call: Call) -> None:
    texts = [verb(call.SCRIPT).code, *reached_functions(call.SCRIPT).values()]
    used = arguments_in("\n".join(texts)) - frame_arguments(call)
    assert {field.name for field in fields(call)} == used


@every_call
def test_the_refusals_of_a_header_are_those_of_the_body_and_of_what_it_calls(call: Call) -> None:
    source = verb(call.SCRIPT)
    possible = refusals_in(source.code).union(
        *(refused_by(function) for function in called_in(source.code) - FRAMES)
    )
    assert possible == set(source.words("Refusals"))


@every_library
def test_a_library_names_its_keys_arguments_and_refusals(source: LuaSource) -> None:
    assert keys_in(source.code) == set(source.words("Keys"))
    assert arguments_in(source.code) - frame_arguments(SessionScript[Any]) == set(
        source.words("Args")
    )
    assert refusals_in(source.code) == set(source.words("Refusals"))


def test_every_refusal_has_an_error_and_every_error_of_the_table_a_refusal() -> None:
    returned = set[str]().union(*(refusals_in(source.code) for source in ALL_SOURCES))
    assert set(REFUSALS) == returned


@every_call
def test_a_call_opens_with_the_frame_of_its_kind(call: Call) -> None:
    code = verb(call.SCRIPT).code.lstrip()
    if issubclass(call, SessionScript):
        assert code.startswith("local refusal = session.open()\nif refusal then return refusal end")
        assert re.search(r"session\.(close|keep)\(", code)
    elif issubclass(call, StoreScript):
        assert code.startswith("local refusal = control.open()\nif refusal then return refusal end")
    else:
        assert call.SCRIPT in ("open_run", "read")


@every_source
def test_a_body_names_its_inputs_and_never_counts_them(source: LuaSource) -> None:
    assert [] == re.findall(r"\b(?:KEYS|ARGV)\b", source.text)


@every_source
def test_a_body_refuses_with_data_and_runs_on_any_engine(source: LuaSource) -> None:
    absent_somewhere = r"#!lua|error_reply|\berror\(|redis\.sha1hex|cmsgpack|struct\.|\bbit\."
    assert [] == re.findall(absent_somewhere, source.text)


@every_source
def test_a_file_includes_only_what_it_uses(source: LuaSource) -> None:
    unused = [noun for noun in source.includes if not re.search(rf"\b{noun}[.\[]", source.code)]
    assert [] == unused


@every_source
def test_a_file_reaches_every_library_that_it_uses(source: LuaSource) -> None:
    used = {noun for noun in LIBRARIES if re.search(rf"(?<![\w.']){noun}\.\w+\(", source.code)}
    assert set() == used - {source.name, *resolve_includes(source.text)}


def test_every_library_is_included_by_a_verb() -> None:
    included = set[str]().union(*(resolve_includes(verb(name).text) for name in VERBS))
    assert set(LIBRARIES) == included


def test_every_library_function_is_reached_by_a_verb() -> None:
    reached = set[str]().union(*(reached_functions(name) for name in VERBS))
    written = {f"{noun}:{name}" for noun in LIBRARIES for name in library(noun).functions}
    assert set() == written - reached


@every_call
def test_a_whole_script_compiles_and_sets_no_global(call: Call) -> None:
    found = globals_of(load_script(call).text)
    assert set() == found.written
    assert set() == found.read - ALLOWED_GLOBALS


def test_the_globals_of_a_chunk_are_found_in_nested_functions_too() -> None:
    found = globals_of("local a = redis.call('x') b = 1\nlocal function c() return d end")
    assert ({"redis", "d"}, {"b"}) == (found.read, found.written)


def test_the_frame_knows_how_to_count_every_key_that_is_no_sorted_set() -> None:
    counted = re.findall(r"(\w+) = '(HLEN|XLEN)'", library("control").code)
    assert {"events"} == {noun for noun, command in counted if command == "XLEN"}
    assert set() == {noun for noun, _ in counted} - {key.value for key in Key}


def test_numbers_that_stand_in_lua_and_in_python_are_equal() -> None:
    [window] = re.findall(r"^local WINDOW = (\d+)$", library("session").text, re.MULTILINE)
    [last] = re.findall(r"for number = 0, (\d+) do", library("holding").text)
    [most] = re.findall(r"^local MOST = (\d+)$", library("batch").text, re.MULTILINE)
    assert [CALLS_IN_FLIGHT] * 2 == [int(window), int(last) + 1]
    assert MAX_GROUPS_PER_CALL == int(most)


@every_call
def test_fields_that_are_lists_come_after_those_that_are_not(call: Call) -> None:
    lists = [str(field.type).startswith("tuple") for field in fields(call)]
    assert sorted(lists) == lists


def test_the_selection_rules_are_the_functions_of_the_pick_library() -> None:
    written = {name.removeprefix("pick.") for name in library("pick").functions}
    assert {rule.value for rule in Rule} == written


def test_every_event_that_wakes_somebody_is_written_by_a_script() -> None:
    written = set[str]().union(
        *(re.findall(r"(?:control|session)\.close\('(\w+)'", verb(name).code) for name in VERBS)
    )
    assert set() == _TOPICS.keys() - written
