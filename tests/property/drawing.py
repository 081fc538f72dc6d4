"""How verbs are drawn: the kinds with their weights, and what is asked in each.

Nothing here looks at a model, so that a verb means the same when others before it are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from redis_replay.selection import Rule
from tests.property.ending_verbs import Abort, Drain, Drop, Evict, Remove
from tests.property.selecting_verbs import Clear, SelectExactlyForGood, SelectForGood
from tests.property.sides import OWNERS
from tests.property.training_verbs import (
    Adopt,
    Collect,
    CommitStep,
    Keep,
    Publish,
    Quarantine,
    Release,
    Requeue,
    Seed,
    SetWindow,
    Transfer,
    WriteBack,
)
from tests.property.verbs import (
    Admit,
    Attach,
    ClaimExactly,
    Commit,
    Cut,
    Detach,
    Die,
    Promote,
    Reserve,
    Select,
    TakeTickets,
    Verb,
)

GROUPS = 12

Drawn = st.SearchStrategy[Any]

_owner = st.sampled_from(OWNERS)
_group = st.integers(0, GROUPS - 1)
_lead = st.sampled_from([0, 0, 0, 1, -1, -2])
_target = st.sampled_from([None, 0, 0, 1, 2, -1])
_nth = st.sampled_from([0, 0, 0, 0, 1, 2, 5])
_back = st.sampled_from([0, 0, 0, 0, 0, 1])
_replacement = st.sampled_from([0, 0, 0, 0, 1, 2])
_numbers = st.sampled_from([(0,), (0, 1), (1, 0), (0, 1, 2), (1, 1), (9,), (2, 3)])
_reason = st.sampled_from(["aborted", "failed"])


def _cuts(rivals: Drawn) -> Drawn:
    cuts = st.builds(
        Cut,
        _owner,
        admits=st.sampled_from([True, True, False]),
        sets_loader=st.booleans(),
        seen_lead=st.sampled_from([0, 0, 1]),
        places=st.lists(
            st.tuples(_group, _lead, _target, _replacement),
            max_size=3,
            unique_by=lambda place: place[0],
        ).map(tuple),
        rival=rivals,
        breaks=st.sampled_from([False] * 6 + [True]),
    )
    return cuts.map(_with_content)


def _with_content(cut: Cut) -> Cut:
    """Return a cut that sends something: an empty one asks nobody whether its session lives."""
    return cut if cut.admits or cut.places else replace(cut, sets_loader=True)


def _selections(kind: type[Select]) -> Drawn:
    return st.builds(
        kind,
        _owner,
        rule=st.sampled_from(Rule),
        window=st.sampled_from([0, 1, 2]),
        lead=st.sampled_from([0, 0, 0, 1]),
        least=st.sampled_from([1, 1, 1, 2]),
        more=st.sampled_from([0, 1, 3]),
    )


VERBS: dict[type[Verb], tuple[int, Drawn]] = {
    Reserve: (7, st.builds(Reserve, _owner, _group, _lead, _target, _replacement)),
    Commit: (
        12,
        st.builds(
            Commit,
            _owner,
            nth=_nth,
            content=st.integers(0, 99),
            newer=st.sampled_from([0, 0, 0, 1, -1]),
            back=_back,
        ),
    ),
    Select: (10, _selections(Select)),
    ClaimExactly: (4, st.builds(ClaimExactly, _owner, _numbers)),
    SelectForGood: (8, _selections(SelectForGood)),
    SelectExactlyForGood: (8, st.builds(SelectExactlyForGood, _owner, _numbers)),
    Clear: (5, st.builds(Clear, _owner, _numbers)),
    CommitStep: (
        9,
        st.builds(
            CommitStep,
            _owner,
            lead=st.sampled_from([0, 0, 0, 0, -1, 1]),
            empty=st.sampled_from([False, False, True]),
            keep=st.sampled_from([False, False, False, True]),
        ),
    ),
    Release: (
        3,
        st.builds(
            Release, _owner, st.sampled_from(["", "", "missing", "extra", "twice", "selected"])
        ),
    ),
    Requeue: (7, st.builds(Requeue, _owner, st.just(()) | _numbers, st.booleans())),
    Quarantine: (2, st.builds(Quarantine, _owner, _numbers)),
    WriteBack: (7, st.builds(WriteBack, _owner, st.sampled_from([None, None, 0, 1, 3]))),
    Cut: (5, _cuts(st.none() | _cuts(st.none()))),
    Admit: (3, st.builds(Admit, _owner, st.sampled_from([0, 0, 1]))),
    Drop: (
        4,
        st.builds(
            Drop,
            _owner,
            nth=_nth,
            reward=st.sampled_from([0.0, 1.0, 0.1, None]),
            group=st.none() | _group,
            lead=_lead,
            back=_back,
        ),
    ),
    Abort: (3, st.builds(Abort, _owner, _nth, _reason, _back)),
    Remove: (2, st.builds(Remove, _owner, _numbers)),
    Evict: (3, st.builds(Evict, _owner, st.sampled_from([0, 0, 1, 2]), st.booleans())),
    Promote: (3, st.builds(Promote, _owner, _lead)),
    Drain: (2, st.builds(Drain, _owner, st.sampled_from([0, 0, -1, 1]))),
    Attach: (3, st.builds(Attach, _owner, st.booleans())),
    Die: (2, st.builds(Die, _owner)),
    Detach: (1, st.builds(Detach, _owner)),
    TakeTickets: (4, st.builds(TakeTickets, _owner, st.sampled_from([1, 2, 3]), _lead)),
    Transfer: (3, st.builds(Transfer, _owner, _owner)),
    Adopt: (3, st.builds(Adopt, _owner)),
    Publish: (1, st.builds(Publish, _owner, st.sampled_from([0, 1, -1]))),
    SetWindow: (1, st.builds(SetWindow, _owner, st.sampled_from([1, 0, 2, 3]))),
    Seed: (1, st.builds(Seed, _owner, st.sampled_from([0, 1, -1]), st.booleans())),
    Keep: (1, st.builds(Keep, _owner)),
    Collect: (1, st.builds(Collect, _owner)),
}
"""Each kind of verb, how often it is drawn beside others, and what it may ask."""

KINDS = st.sampled_from([kind for kind, (weight, _) in VERBS.items() for _ in range(weight)])
