"""Key names: reversible, apart from one another, in one hash tag."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redis_replay._redis.keys import (
    Key,
    Keyspace,
    decode_name,
    encode_name,
    group_field,
    run_of_meta_key,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
SOME_NAMES = NAMES.filter(bool)


@given(NAMES)
def test_an_encoded_name_decodes_to_itself(name: str) -> None:
    assert name == decode_name(encode_name(name))


@given(NAMES)
def test_an_encoded_name_has_no_byte_that_means_something_in_a_key(name: str) -> None:
    assert re.fullmatch(r"(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})*", encode_name(name))


@given(NAMES, NAMES)
def test_two_names_are_encoded_apart(one: str, other: str) -> None:
    assert (one == other) == (encode_name(one) == encode_name(other))


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("math-grpo_2.b", "math-grpo_2.b"),
        ("a:b", "a%3Ab"),
        ("{a}", "%7Ba%7D"),
        ("100%", "100%25"),
        ("a b", "a%20b"),
        ("é", "%C3%A9"),
        ("", ""),
    ],
)
def test_only_plain_characters_stay(name: str, encoded: str) -> None:
    assert encoded == encode_name(name)


@given(SOME_NAMES, SOME_NAMES)
def test_all_control_keys_share_one_hash_tag(run: str, partition: str) -> None:
    keyspace = Keyspace(run, partition)
    tags = {
        re.fullmatch(r"[^{]*\{([^}]+)\}.*", keyspace.control(key)).group(1)  # type: ignore[union-attr]
        for key in Key
    }
    assert {keyspace.tag} == tags


@given(SOME_NAMES, SOME_NAMES)
def test_run_and_partition_are_read_back_from_the_control_record(run: str, partition: str) -> None:
    assert (run, partition) == run_of_meta_key(Keyspace(run, partition).control(Key.META))


def test_a_run_cannot_be_named_so_that_it_is_another() -> None:
    apart = {Keyspace(*names).tag for names in [("a:b", "c"), ("a", "b:c"), ("a", "b%3Ac")]}
    assert len(apart) == 3


@pytest.mark.parametrize(("run", "partition"), [("", "p"), ("r", "")])
def test_an_empty_name_is_refused(run: str, partition: str) -> None:
    with pytest.raises(ValueError, match="must be a non-empty string"):
        Keyspace(run, partition)


def test_payload_keys_carry_the_fence_and_no_hash_tag() -> None:
    keyspace = Keyspace("run 1", "p")
    assert "rr:p:run%201:p:g%7B1%7D:7" == keyspace.payload("g{1}", 7)
    assert "rr:p:run%201:p:g%7B1%7D:7:c2" == keyspace.payload("g{1}", 7, chunk=2)
    assert "rr:p:run%201:p:g%7B1%7D:7:w9" == keyspace.written("g{1}", 7, 9)


@given(st.tuples(SOME_NAMES, st.integers(1, 99)), st.tuples(SOME_NAMES, st.integers(1, 99)))
def test_no_two_attempts_share_a_payload_key(one: tuple[str, int], other: tuple[str, int]) -> None:
    keyspace = Keyspace("r", "p")
    assert (one == other) == (keyspace.payload(*one) == keyspace.payload(*other))
    assert (one == other) == (group_field(*one) == group_field(*other))


def test_the_payload_of_a_partition_lies_under_its_prefix_and_under_no_other() -> None:
    mine, longer = Keyspace("r", "p"), Keyspace("r", "p2")
    assert mine.payload("g", 1).startswith(mine.payload_prefix)
    assert not longer.payload("g", 1).startswith(mine.payload_prefix)
