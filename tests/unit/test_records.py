"""Records that scripts write, read in Python: the same fifteen words, nothing let through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa import lua51

from redis_replay._redis.lua import read_source
from redis_replay._redis.records import (
    ClaimedSlot,
    ControlRecord,
    OwnerRecord,
    SlotRecord,
    unpack_items,
)
from redis_replay.errors import StoreCorrupted
from redis_replay.types import GroupState

NUMBERS = st.integers(0, 2**53 - 1)
OPTIONAL = st.none() | NUMBERS
SLOT = SlotRecord(
    group_id="g",
    state=GroupState.CLAIMED,
    order=3,
    fence=11,
    start=4,
    finish=5,
    target=6,
    payload_fence=9,
    epoch=7,
    attempt=2,
    batch=11,
    requeues=1,
    written=11,
    payload_bytes=120,
    dispatch=6,
    replacement=1,
)
WORDS = b"claimed 3 11 4 5 6 9 7 2 11 1 11 120 6 1"


@st.composite
def slots(draw: st.DrawFn) -> SlotRecord:
    """Draw any slot that a script can write."""
    return SlotRecord(
        group_id=draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)),
        state=draw(st.sampled_from(GroupState)),
        **{name: draw(NUMBERS) for name in ("order", "fence", "start", "attempt", "requeues")},
        **{
            name: draw(OPTIONAL)
            for name in ("finish", "target", "payload_fence", "epoch", "batch", "written")
        },
        payload_bytes=draw(OPTIONAL),
        dispatch=draw(OPTIONAL),
        replacement=draw(NUMBERS),
    )


RUNTIME = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
LIBRARIES = [read_source(name, library=True) for name in ("text", "record")]
TEXT, RECORD = RUNTIME.execute("\n".join([*LIBRARIES, "return text, record"]).encode())


def as_lua_writes(slot: SlotRecord) -> bytes:
    """Return a record as the library formats it."""
    numbers = {
        b"order": slot.order,
        b"fence": slot.fence,
        b"start": slot.start,
        b"finish": slot.finish,
        b"target": slot.target,
        b"payload_fence": slot.payload_fence,
        b"epoch": slot.epoch,
        b"attempt": slot.attempt,
        b"batch": slot.batch,
        b"requeues": slot.requeues,
        b"written": slot.written,
        b"bytes": slot.payload_bytes,
        b"dispatch": slot.dispatch,
        b"replacement": slot.replacement,
    }
    found = RUNTIME.table_from({b"state": slot.state.value.encode()})
    for name, number in numbers.items():
        if number is not None:
            found[name] = float(number)
    return bytes(RECORD[b"format"](found))


@given(slots())
def test_a_slot_that_lua_wrote_is_read_as_it_was(slot: SlotRecord) -> None:
    assert slot == SlotRecord.parse(slot.group_id.encode(), as_lua_writes(slot))


@given(slots())
def test_lua_reads_back_what_it_wrote(slot: SlotRecord) -> None:
    written = as_lua_writes(slot)
    assert written == RECORD[b"format"](RECORD[b"parse"](slot.group_id.encode(), written))


def test_fifteen_words_make_a_record_and_a_dash_is_none() -> None:
    assert SLOT == SlotRecord.parse(b"g", WORDS)
    reserved = SlotRecord.parse(b"g", b"reserved 3 11 4 - - - 7 1 - 0 - - - 0")
    assert (None, None, None, None) == (
        reserved.finish,
        reserved.target,
        reserved.batch,
        reserved.payload_bytes,
    )


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"claimed",
        b"vanished 3 11 4 5 6 9 7 2 11 1 11 120",
        WORDS.rsplit(b" ", 1)[0],
        WORDS + b" 1",
        WORDS.replace(b"120", b"many"),
        WORDS.replace(b" 3 ", b" - "),
        WORDS.replace(b" 2 11 1 ", b" - 11 1 "),
        WORDS.replace(b" 1 11 120", b" - 11 120"),
        b"\xff" + WORDS,
    ],
)
def test_a_damaged_record_is_named_and_not_read(record: bytes) -> None:
    with pytest.raises(StoreCorrupted, match="slot b'g'"):
        SlotRecord.parse(b"g", record)


def test_pairs_are_ids_and_records_in_turn() -> None:
    other = SLOT._replace(group_id="h")
    assert [SLOT, other] == SlotRecord.parse_pairs([b"g", WORDS, b"h", WORDS])


def test_what_a_claim_says_of_its_groups_is_four_words_each() -> None:
    found = ClaimedSlot.parse_all([b"g", b"h"], b"3 4 - 7 3 5 6 8")
    assert [ClaimedSlot("g", 3, 4, None, 7), ClaimedSlot("h", 3, 5, 6, 8)] == found


def test_a_member_sorts_by_order_whatever_the_id() -> None:
    members = [SLOT._replace(order=order, group_id=i).member for order, i in [(9, "b"), (10, "a")]]
    assert sorted(members) == members
    assert "0000000000000009:b" == members[0]


@given(slots())
def test_lua_and_python_name_a_member_alike(slot: SlotRecord) -> None:
    found = RECORD[b"parse"](slot.group_id.encode(), as_lua_writes(slot))
    member = bytes(RECORD[b"member"](found))
    assert slot.member.encode() == member
    assert slot.group_id.encode() == RECORD[b"id_of"](member)


def test_a_view_shows_the_name_of_a_live_holder_alone() -> None:
    assert "job" == SLOT.view({7: "job"}).owner
    assert SLOT.view({8: "job"}).owner is None
    assert SLOT._replace(epoch=None).view({7: "job"}).owner is None


def test_a_view_has_the_facts_of_its_slot() -> None:
    view = SLOT.view({})
    assert ("g", GroupState.CLAIMED, 3, 4, 5, 6) == (
        view.group_id,
        view.state,
        view.order,
        view.start_weight_version,
        view.end_weight_version,
        view.target_step,
    )
    assert (11, 9, 2, 11, 1) == (
        view.fence,
        view.payload_fence,
        view.attempt,
        view.batch,
        view.training_requeues,
    )


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_packed_items_come_back_whatever_is_in_them(items: list[bytes]) -> None:
    packed = bytes(TEXT[b"pack"](RUNTIME.table_from(items)))
    assert items == unpack_items(packed)
    assert items == list(TEXT[b"unpack"](packed).values())


@given(NUMBERS)
def test_whole_numbers_below_two_to_the_53_keep_every_digit(number: int) -> None:
    assert str(number).encode() == TEXT[b"whole"](float(number))


def test_an_owner_record_is_read_with_its_lease_in_seconds() -> None:
    found = OwnerRecord.parse(b"12 40 trainer 4 1500 host%20a.77")
    assert OwnerRecord(12, 40, "trainer", 4, 1.5, "host%20a.77") == found


@pytest.mark.parametrize(
    ("head", "control"),
    [
        ([b"5", b"-1", b"0", b""], ControlRecord(5, -1, 0, None)),
        ([b"9", b"3", b"2", b"1"], ControlRecord(9, 3, 2, 1)),
        ([b"", b"", b"", b""], None),
        ([b"9", b"", b"", b""], None),
    ],
)
def test_the_head_of_a_reply_is_a_control_record_where_the_run_was_read(
    head: list[bytes], control: ControlRecord | None
) -> None:
    assert control == ControlRecord.parse(head)
