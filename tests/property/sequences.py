"""Random sequences of verbs: drawn from a seed with an eye on the model, shortened when they fail.

Four verbs of five are drawn so that they can do something (an owner commits what it reserved,
settles what it claimed); the fifth is anything by anybody, so that every refusal is met as well.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

from redis_replay.selection import Rule
from tests.property.model import BufferModel
from tests.property.sides import OWNERS, ModelSide, model_reply
from tests.property.training_verbs import (
    Adopt,
    Collect,
    CommitStep,
    Publish,
    Release,
    Requeue,
    Seed,
    SetWindow,
    Transfer,
    WriteBack,
)
from tests.property.verbs import (
    Abort,
    Admit,
    Attach,
    ClaimExactly,
    Commit,
    Cut,
    Detach,
    Die,
    Evict,
    Promote,
    Remove,
    Reserve,
    Select,
    TakeTickets,
    Verb,
)

CAPACITY = 6
MAX_PAYLOAD_BYTES = 220
MAX_ATTEMPTS = 2
MAX_REQUEUES = 2
WINDOW = 1
GROUPS = 12
FITTING = 0.8

Draw = Callable[[random.Random, str], Verb]


def _lead(rng: random.Random) -> int:
    return rng.choice([0, 0, 0, 1, -1, -2])


def _target(rng: random.Random) -> int | None:
    return rng.choice([None, 0, 0, 1, 2, -1])


def _nth(rng: random.Random) -> int:
    return rng.choice([0, 0, 0, 0, 1, 2, 5])


def _back(rng: random.Random) -> int:
    return rng.choice([0, 0, 0, 0, 0, 1])


def _numbers(rng: random.Random) -> tuple[int, ...]:
    return rng.choice([(0,), (0, 1), (1, 0), (0, 1, 2), (1, 1), (9,), (2, 3)])


def _cut(rng: random.Random, owner: str, *, depth: int = 0) -> Cut:
    names = rng.sample(range(GROUPS), rng.choice([0, 1, 2, 3]))
    admits = rng.random() < 0.7
    return Cut(
        owner,
        admits=admits,
        sets_loader=rng.random() < 0.5 or not (admits or names),
        seen_lead=rng.choice([0, 0, 1]),
        places=tuple((name, _lead(rng), _target(rng)) for name in names),
        rival=_cut(rng, rng.choice(OWNERS), depth=1) if rng.random() < 0.4 and not depth else None,
        breaks=rng.random() < 0.15,
    )


VERBS: dict[type[Verb], tuple[int, Draw]] = {
    Reserve: (7, lambda r, o: Reserve(o, r.randrange(GROUPS), _lead(r), _target(r))),
    Cut: (5, lambda r, o: _cut(r, o)),
    Commit: (
        12,
        lambda r, o: Commit(o, _nth(r), r.randrange(100), r.choice([0, 0, 0, 1, -1]), _back(r)),
    ),
    Select: (
        10,
        lambda r, o: Select(
            *(o, r.choice(list(Rule)), r.choice([0, 1, 2]), r.choice([0, 0, 0, 1])),
            *(r.choice([1, 1, 1, 2]), r.choice([0, 1, 3])),
        ),
    ),
    ClaimExactly: (4, lambda r, o: ClaimExactly(o, _numbers(r))),
    CommitStep: (7, lambda r, o: CommitStep(o, r.choice([0, 0, 0, 0, -1, 1]), r.random() < 0.3)),
    Release: (3, lambda r, o: Release(o, r.choice(["", "", "missing", "extra", "twice"]))),
    Requeue: (7, lambda r, o: Requeue(o, r.choice([(), _numbers(r)]), r.random() < 0.5)),
    WriteBack: (7, lambda r, o: WriteBack(o, r.choice([None, None, 0, 1, 3]))),
    Abort: (3, lambda r, o: Abort(o, _nth(r), r.choice(["aborted", "failed"]), _back(r))),
    Remove: (2, lambda r, o: Remove(o, _numbers(r))),
    Evict: (3, lambda r, o: Evict(o, r.choice([0, 0, 1, 2]), r.random() < 0.5)),
    Promote: (3, lambda r, o: Promote(o, _lead(r))),
    TakeTickets: (4, lambda r, o: TakeTickets(o, r.choice([1, 2, 3]), _lead(r))),
    Transfer: (3, lambda r, o: Transfer(o, r.choice(OWNERS))),
    Adopt: (3, lambda r, o: Adopt(o)),
    Die: (2, lambda r, o: Die(o)),
    Attach: (3, lambda r, o: Attach(o, r.random() < 0.5)),
    Detach: (1, lambda r, o: Detach(o)),
    Admit: (3, lambda r, o: Admit(o, r.choice([0, 0, 1]))),
    Publish: (1, lambda r, o: Publish(o, r.choice([0, 1, -1]))),
    SetWindow: (1, lambda r, o: SetWindow(o, r.choice([0, 1, 2, 3]))),
    Seed: (1, lambda r, o: Seed(o, r.choice([0, 1, -1]), r.random() < 0.5)),
    Collect: (1, lambda r, o: Collect(o)),
}
NEEDS_RESERVATION = (Commit, Abort)
NEEDS_CLAIMS = (CommitStep, Release, Transfer, Adopt)
NEEDS_CLAIMED = (Requeue, WriteBack)
NEEDS_READY = (Select, ClaimExactly, Evict, Promote)


def new_model(*, in_order: bool) -> ModelSide:
    """Return an empty model with the settings that the stores are opened with."""
    return ModelSide(
        BufferModel(
            capacity=CAPACITY,
            max_payload_bytes=MAX_PAYLOAD_BYTES,
            max_attempts=MAX_ATTEMPTS,
            max_requeues=MAX_REQUEUES,
            in_order=in_order,
            window=WINDOW,
        )
    )


def draw_sequence(seed: int, *, length: int, in_order: bool) -> list[Verb]:
    """Return the sequence of a seed; an owner that is to do something attaches first."""
    rng, side = random.Random(seed), new_model(in_order=in_order)
    kinds, weights = list(VERBS), [weight for weight, _ in VERBS.values()]
    sequence: list[Verb] = []
    while len(sequence) < length:
        [kind] = rng.choices(kinds, weights)
        owner = rng.choice(OWNERS)
        if rng.random() < FITTING:
            fit = [owner for owner in OWNERS if _fits(side, kind, owner)]
            if not fit:
                continue
            owner = rng.choice(fit)
        for verb in with_attachment(side, VERBS[kind][1](rng, owner)):
            sequence.append(verb)
            model_reply(verb.on_model, side, verb.plan(side))
    return sequence


def with_attachment(side: ModelSide, verb: Verb) -> Sequence[Verb]:
    """Return the verb, after an `Attach` where its owner has no session."""
    if verb.owner in side.members or isinstance(verb, Attach):
        return [verb]
    return [Attach(verb.owner), verb]


def _fits(side: ModelSide, kind: type[Verb], owner: str) -> bool:
    if kind is Attach:
        return not side.is_attached(owner)
    if not side.is_attached(owner):
        return False
    if kind in NEEDS_CLAIMS:
        return bool(side.model.owned(side.members[owner]))
    if kind in NEEDS_CLAIMED:
        return bool(side.model.in_state("claimed"))
    if kind in NEEDS_RESERVATION:
        return bool(side.committable(owner))
    if kind in NEEDS_READY:
        return bool(side.model.in_state("ready"))
    if kind is TakeTickets:
        return any(group.holder is None for group in side.model.in_state("reserved"))
    return True


async def shorten(
    sequence: Sequence[Verb], fails: Callable[[Sequence[Verb]], Awaitable[bool]]
) -> Sequence[Verb]:
    """Leave out verbs one by one as long as the rest still fails."""
    at = len(sequence) - 1
    while at >= 0:
        shorter = [*sequence[:at], *sequence[at + 1 :]]
        if await fails(shorter):
            sequence = shorter
        at -= 1
    return sequence
