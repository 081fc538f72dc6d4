"""Which verb takes a group from where to where.

A group comes into being when it is reserved and is then in exactly one state until it ends. States
describe who may touch it next:

* ``reserved``: a rollout host is generating it, or nobody is and it is a redispatch ticket;
* ``ready``: its rows are stored and any trainer may claim it;
* ``claimed``: one trainer session holds it until its step commits;
* ``quarantined``: it failed too often or is damaged, and waits for a person; it holds no place in
  the buffer.

Three ideas carry the table. Claims are consumed by exactly one verb (`settle`), so nothing is
trained twice; a sampler without claims consumes what it selects (`select_for_good`). Giving back is
not ending: a lost trainer's groups become ready again at their old place, a lost host's
reservations become tickets; a counted failure too many, or rows that cannot be read back, lead to
quarantine.
Ends are final: an ended group leaves no slot, and its id may be reserved anew as another group.

A verb may also leave a group in its state and change who holds it, under which number, or what it
is meant for: the rows that map a state to itself. Verbs that are not in the table touch no group.

The Lua verbs load the slots they move with the same source states, and say the same in their
headers; the diagram in ``docs/architecture.md`` is drawn from this table. House tests compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NONE: Final = "none"
"""Where a group is before it is reserved."""

ENDS: Final[tuple[str, ...]] = ("trained", "filtered", "evicted", "aborted", "removed")
"""How a group ends; each is counted."""

Moves = Mapping[str, frozenset[str]]

TRANSITIONS: Final[Mapping[str, Moves]] = {
    "reserve": {NONE: frozenset({"reserved"})},
    "apply_cut": {NONE: frozenset({"reserved"})},
    "take_tickets": {"reserved": frozenset({"reserved"})},
    "commit": {"reserved": frozenset({"ready"})},
    "abort": {"reserved": frozenset({"aborted"})},
    "drop": {
        NONE: frozenset({"reserved"}),
        "reserved": frozenset({"filtered", "aborted"}),
    },
    "promote": {"ready": frozenset({"ready"})},
    "claim": {"ready": frozenset({"claimed"})},
    "claim_exact": {"ready": frozenset({"claimed"})},
    "select_for_good": {"ready": frozenset({"trained"})},
    "evict": {"ready": frozenset({"evicted"})},
    "mark_written": {"claimed": frozenset({"claimed"})},
    "transfer": {"claimed": frozenset({"claimed"})},
    "settle": {"claimed": frozenset({"trained"}), "reserved": frozenset({"aborted"})},
    "requeue": {"claimed": frozenset({"ready", "quarantined"})},
    "quarantine": {
        "ready": frozenset({"quarantined"}),
        "claimed": frozenset({"quarantined"}),
        "quarantined": frozenset({"quarantined"}),
    },
    "reinstate": {"quarantined": frozenset({"ready", "reserved"})},
    "attach": {
        "reserved": frozenset({"reserved", "quarantined"}),
        "claimed": frozenset({"ready", "quarantined"}),
    },
    "end_owner": {
        "reserved": frozenset({"reserved", "quarantined"}),
        "claimed": frozenset({"ready", "quarantined"}),
    },
    "end_others": {
        "reserved": frozenset({"reserved", "quarantined"}),
        "claimed": frozenset({"ready", "quarantined"}),
    },
    "catch_up": {"reserved": frozenset({"aborted"}), "ready": frozenset({"evicted"})},
    "restore": {NONE: frozenset({"reserved", "ready", "quarantined", "removed"})},
    "remove": {
        "reserved": frozenset({"removed"}),
        "ready": frozenset({"removed"}),
        "quarantined": frozenset({"removed"}),
    },
}
"""Verb, source state, the states it may lead to. Verbs are named as their Lua files."""
