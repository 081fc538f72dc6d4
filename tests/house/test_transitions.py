"""The transition table, the Lua verbs and the diagram tell one story."""

from __future__ import annotations

import pytest

from redis_replay.transitions import ENDS, NONE, TRANSITIONS
from redis_replay.types import GroupState
from tests.house.documents import ARCHITECTURE, code_blocks, marked
from tests.house.lua_source import VERBS, loaded_states, reached_functions, verb

LIVE = {state.value for state in GroupState}


def drawn() -> str:
    """Return the diagram of the table: one arrow per pair of states, labelled with its verbs."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for name, moves in TRANSITIONS.items():
        for source, targets in moves.items():
            for target in sorted(targets):
                arrows.setdefault((source, target), []).append(name)
    order = [NONE, *(state.value for state in GroupState), *ENDS]
    lines = ["stateDiagram-v2"]
    for source, target in sorted(
        arrows, key=lambda pair: (order.index(pair[0]), order.index(pair[1]))
    ):
        begin = "[*]" if source == NONE else source
        lines.append(f"    {begin} --> {target}: {', '.join(arrows[source, target])}")
    ended = [end for end in ENDS if any(target == end for _, target in arrows)]
    lines += [f"    {end} --> [*]" for end in ended]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", VERBS)
def test_the_states_in_a_verb_header_are_those_of_the_table(name: str) -> None:
    assert TRANSITIONS.get(name, {}) == verb(name).sources


@pytest.mark.parametrize("name", TRANSITIONS)
def test_a_verb_loads_slots_in_its_source_states_alone(name: str) -> None:
    code = "\n".join([verb(name).code, *reached_functions(name).values()])
    assert TRANSITIONS[name].keys() - {NONE} == loaded_states(code)


@pytest.mark.parametrize("name", sorted(set(VERBS) - TRANSITIONS.keys()))
def test_a_verb_outside_the_table_loads_no_slot(name: str) -> None:
    code = "\n".join([verb(name).code, *reached_functions(name).values()])
    assert set() == loaded_states(code)
    assert "slot." not in code


def test_every_row_of_the_table_is_a_verb() -> None:
    assert set() == TRANSITIONS.keys() - set(VERBS)


def test_every_state_of_the_table_is_a_state_that_slots_have_or_an_end() -> None:
    sources = {source for moves in TRANSITIONS.values() for source in moves}
    targets = {t for moves in TRANSITIONS.values() for ts in moves.values() for t in ts}
    assert {NONE, *LIVE} == sources
    assert {*LIVE, *ENDS} == targets


def test_every_live_state_can_be_reached_and_can_be_left_for_an_end() -> None:
    step: dict[str, set[str]] = {}
    for moves in TRANSITIONS.values():
        for source, targets in moves.items():
            step.setdefault(source, set()).update(targets)

    def reached_from(state: str) -> set[str]:
        found: set[str] = set()
        todo = [state]
        while todo:
            new = step.get(todo.pop(), set()) - found
            found |= new
            todo += new
        return found

    assert set() == LIVE - reached_from(NONE)
    assert [] == [state for state in sorted(LIVE) if not reached_from(state) & set(ENDS)]


def test_claims_are_trained_by_one_verb_and_groups_without_a_claim_by_another() -> None:
    trained = [
        (name, source)
        for name, moves in TRANSITIONS.items()
        for source, targets in moves.items()
        if "trained" in targets
    ]
    assert [("select_for_good", "ready"), ("settle", "claimed")] == sorted(trained)


def test_the_diagram_of_the_architecture_is_drawn_from_the_table() -> None:
    [diagram] = code_blocks(marked(ARCHITECTURE, "states"), language="mermaid")
    assert drawn() == diagram
