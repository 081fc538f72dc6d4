"""Sample ids name a group and a row; whole groups among them are found as such."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from redis_replay.groups import grouped_ids, sample_ids_of, split_sample_id

GROUPS = ("a", "b", "b_g0", "_g")
PIECES = st.tuples(st.sampled_from(GROUPS), st.integers(0, 4), st.integers(0, 4))


@given(st.lists(PIECES, max_size=8), st.integers(0, 4))
@example([("a", 0, 3), ("a", 0, 3)], 3)
@example([("a", 0, 3), ("b", 0, 2), ("a", 1, 2)], 3)
def test_places_are_those_that_the_ids_name_in_their_order(
    pieces: list[tuple[str, int, int]], group_size: int
) -> None:
    named = [(group, row) for group, first, stop in pieces for row in range(first, stop)]
    places = grouped_ids([f"{group}_g{row}" for group, row in named], group_size)
    assert named == [(group, row) for group, rows in places for row in rows]
    assert all(rows == tuple(range(group_size)) for _, rows in places if len(rows) != 1)


def test_a_whole_group_is_one_place() -> None:
    ids = [*sample_ids_of("a", 3), "c_g2", *sample_ids_of("b", 3)[:2], *sample_ids_of("a", 3)]
    every_row = (0, 1, 2)
    expected = [("a", every_row), ("c", (2,)), ("b", (0,)), ("b", (1,)), ("a", every_row)]
    assert expected == grouped_ids(ids, 3)


@pytest.mark.parametrize("name", ["", "a", "a_g", "_g1", "a_g-1", "a_g1x", "a_g²"])
def test_what_names_no_row_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        split_sample_id(name)
    with pytest.raises(ValueError, match="is not of the form"):
        grouped_ids(["a_g0", name], 2)
