"""Random verbs of three owners do the same on the plain model, on fakeredis and on a real server.

After every verb the replies (or the error's class) are equal and the model predicts what fakeredis
holds, which is audited; at every fifth verb and at the end the real server holds the same, and is
audited too. At the end the rows of every committed group are those of the commit that won, and when
all is given back no key of a payload is left. Hypothesis draws the verbs and shortens what fails.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field

import anyio.from_thread
import pytest
import redis.asyncio
from anyio.from_thread import BlockingPortal
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.machine import StoreMachine
from tests.property.scene import Scene, opened_scene
from tests.property.training_verbs import CommitStep, Seed
from tests.property.verbs import Admit, ClaimExactly, Commit, Cut, Die, Reserve, Verb

SEQUENCES, VERBS = 200, 50
LONG_SEQUENCES, LONG_VERBS = 2_000, 100


@dataclass
class Arena:
    """One event loop and one server for all scenes.

    Attributes:
        lengths: How many verbs were done in each scene.
    """

    portal: BlockingPortal
    url: str
    lengths: list[int] = field(default_factory=list)

    def open_scene(self, in_order: bool) -> AbstractContextManager[Scene]:
        self.lengths.append(0)
        return self.portal.wrap_async_context_manager(self._opened(in_order))

    @asynccontextmanager
    async def _opened(self, in_order: bool) -> AsyncIterator[Scene]:
        async with (
            redis.asyncio.Redis.from_url(self.url) as real,
            opened_scene(real, in_order=in_order) as scene,
        ):
            yield scene

    def machine(self) -> StoreMachine:
        return StoreMachine(self.open_scene, self.portal.call, self.count)

    def count(self) -> None:
        self.lengths[-1] += 1


@pytest.fixture
def arena(real_server: str, caplog: pytest.LogCaptureFixture) -> Iterator[Arena]:
    caplog.set_level(logging.ERROR, "redis_replay")  # owners die by the hundred, and each is logged
    with anyio.from_thread.start_blocking_portal("asyncio") as portal:
        yield Arena(portal, real_server)


def check(arena: Arena, *, sequences: int, verbs: int, derandomize: bool) -> None:
    """Run the machine, and see that as many sequences were as long as was asked for.

    Hypothesis varies sequences that it liked, and some of these end early.
    """
    run_state_machine_as_test(
        arena.machine,
        settings=settings(
            max_examples=sequences * 7 // 5,
            stateful_step_count=verbs + 1,  # the first step opens the stores
            derandomize=derandomize,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink],
        ),
    )
    assert sequences <= sum(length >= verbs for length in arena.lengths)


@pytest.mark.timeout(900)
def test_random_verbs_do_the_same_on_the_model_and_on_both_servers(arena: Arena) -> None:
    check(arena, sequences=SEQUENCES, verbs=VERBS, derandomize=True)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_long_sequences_do_the_same_on_the_model_and_on_both_servers(arena: Arena) -> None:
    check(arena, sequences=LONG_SEQUENCES, verbs=LONG_VERBS, derandomize=False)


def test_a_cut_does_not_answer_an_older_admission_of_its_session(arena: Arena) -> None:
    do_all(
        arena,
        [
            Admit("host-a", seen_lead=0),
            Cut("host-a", True, sets_loader=False, seen_lead=1, places=((0, 0, None, 0),)),
            Die("host-a"),
            Admit("host-b", seen_lead=0),
            Admit("host-b", seen_lead=1),
        ],
    )


def test_rows_of_a_committed_attempt_are_never_written_again(arena: Arena) -> None:
    do_all(
        arena,
        [
            Reserve("host-a", group=0, lead=0, target_lead=None),
            Commit("host-a", nth=0, content=3),
            Commit("host-a", nth=0, content=4),
            Die("host-a"),
            Commit("host-a", nth=0, content=5),
        ],
    )


def test_a_step_before_the_first_batch_leaves_no_groups_to_spare(arena: Arena) -> None:
    do_all(
        arena,
        [
            Seed("job", lead=1, exact=False),
            Admit("job", seen_lead=0),
            Reserve("job", group=0, lead=0, target_lead=None),
            Commit("job", nth=0, content=0),
            ClaimExactly("job", (0,)),
            CommitStep("job", lead=0, empty=False),
        ],
    )


def do_all(arena: Arena, verbs: Sequence[Verb]) -> None:
    """Do a sequence of verbs in a scene of its own."""
    with arena.open_scene(False) as scene:
        for verb in verbs:
            arena.portal.call(scene.do, verb)
        arena.portal.call(scene.finish)
