"""The Hypothesis machine: random verbs of three owners, on the model and two servers at once.

Four verbs of five are drawn so that they can do something (an owner commits what it reserved,
settles what it claimed); the fifth is anything by anybody, so that every refusal is met as well.
What a failing run prints are plain values that can be pasted into a test.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.property.drawing import KINDS, VERBS
from tests.property.ending_verbs import Abort, Drop, Evict
from tests.property.scene import Scene
from tests.property.selecting_verbs import Clear, SelectExactlyForGood, SelectForGood
from tests.property.sides import OWNERS
from tests.property.training_verbs import (
    Adopt,
    CommitStep,
    Keep,
    Release,
    Requeue,
    Transfer,
    WriteBack,
)
from tests.property.verbs import (
    Attach,
    ClaimExactly,
    Commit,
    Promote,
    Select,
    TakeTickets,
    Verb,
)

NEEDS_RESERVATION = (Commit, Abort, Drop)
NEEDS_CLAIMS = (Release, Transfer, Adopt)
NEEDS_CLAIMED = (Requeue, WriteBack)
NEEDS_READY = (Select, ClaimExactly, SelectForGood, SelectExactlyForGood, Evict, Promote)
_MOST_TRIES = 8


@st.composite
def verbs(draw: st.DrawFn) -> Verb:
    """Draw the next verb with an eye on the machine's model.

    A kind that does not fit is drawn again, and an owner that does not is replaced.
    """
    machine: StoreMachine = draw(st.runner())
    kind = draw(KINDS)
    fitting = dict.fromkeys(VERBS, OWNERS)
    if draw(st.sampled_from([True] * 4 + [False])):
        fitting = machine.fitting()
    for _ in range(_MOST_TRIES):
        if kind not in fitting:
            kind = draw(KINDS)
    verb: Verb = draw(VERBS[kind][1])
    owners = fitting.get(kind, OWNERS)
    return verb if verb.owner in owners else replace(verb, owner=owners[0])


SceneOpener = Callable[[bool], AbstractContextManager[Scene]]
Run = Callable[..., Any]


class StoreMachine(RuleBasedStateMachine):
    """One sequence of verbs.

    Args:
        open_scene: Opens a fresh scene, under ``in_order`` or not.
        run: Runs a coroutine function with its arguments in the event loop of all scenes.
        done: Called after each verb.
    """

    def __init__(self, open_scene: SceneOpener, run: Run, done: Callable[[], None]) -> None:
        super().__init__()
        self._open_scene, self._run, self._done = open_scene, run, done
        self._context: AbstractContextManager[Scene] | None = None
        self._is_sound = False

    @initialize(in_order=st.booleans())
    def open(self, in_order: bool) -> None:
        self._context = self._open_scene(in_order)
        self.scene = self._context.__enter__()
        self._is_sound = True

    @rule(verb=verbs())
    def do(self, verb: Verb) -> None:
        self._is_sound = False
        self._run(self.scene.do, verb)
        self._is_sound = True
        self._done()

    def teardown(self) -> None:
        if self._context is None:
            return
        try:
            if self._is_sound:
                self._run(self.scene.finish)
        finally:
            self._context.__exit__(None, None, None)

    def fitting(self) -> dict[type[Verb], tuple[str, ...]]:
        """Return the kinds of verbs that can do something now, and the owners that can."""
        side = self.scene.model
        attached = tuple(owner for owner in OWNERS if side.is_attached(owner))
        states = {group.state for group in side.model.groups.values()}
        owning = tuple(name for name in attached if side.model.owned(side.members[name]))
        reading = tuple(name for name in attached if side.members[name].selections)
        reserving = tuple(name for name in attached if side.committable(name))
        found = dict.fromkeys(VERBS, attached)
        found |= dict.fromkeys(NEEDS_CLAIMS, owning)
        found[CommitStep] = tuple(name for name in attached if name in owning + reading)
        found[Clear] = reading
        found |= dict.fromkeys(NEEDS_RESERVATION, reserving)
        if "claimed" not in states:
            found |= dict.fromkeys(NEEDS_CLAIMED, ())
        if "ready" not in states:
            found |= dict.fromkeys(NEEDS_READY, ())
        if not any(g.state == "reserved" and g.holder is None for g in side.model.groups.values()):
            found[TakeTickets] = ()
        if not side.model.selections:  # nothing to refuse a checkpoint for
            found[Keep] = ()
        found[Attach] = tuple(owner for owner in OWNERS if owner not in attached)
        return {kind: owners for kind, owners in found.items() if owners}
