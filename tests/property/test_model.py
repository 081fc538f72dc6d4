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

from redis_replay._redis import lua
from redis_replay._redis.lua import read_source
from redis_replay.selection import Rule
from tests.property.machine import StoreMachine
from tests.property.scene import MOST_HELD, Scene, opened_scene
from tests.property.selecting_verbs import Clear, SelectExactlyForGood, SelectForGood
from tests.property.sides import Reply
from tests.property.training_verbs import (
    Collect,
    CommitStep,
    Keep,
    Release,
    Requeue,
    Seed,
    Transfer,
    WriteBack,
)
from tests.property.verbs import Admit, ClaimExactly, Commit, Cut, Die, Reserve, Verb

SEQUENCES, VERBS = 180, 50
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
def fewer_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the scripts refuse so few groups of a session that a sequence of verbs gets there."""

    def read_lowered(name: str, *, library: bool = False) -> str:
        return read_source(name, library=library).replace("MOST = 1024", f"MOST = {MOST_HELD}")

    monkeypatch.setattr(lua, "read_source", read_lowered)
    monkeypatch.setattr(lua, "_LOADED", {})


@pytest.fixture
def arena(real_server: str, fewer_held: None, caplog: pytest.LogCaptureFixture) -> Iterator[Arena]:
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


def ready_groups(count: int) -> list[Verb]:
    """Return the verbs that leave ready groups, of the contents 0 and up."""
    reserved = [Reserve("host-a", at, lead=0, target_lead=None) for at in range(count)]
    return [*reserved, *(Commit("host-a", nth=0, content=at) for at in range(count))]


def test_groups_selected_for_good_are_read_to_the_end_of_the_step_and_no_claims(
    arena: Arena,
) -> None:
    ready, mismatch = ready_groups(2), ("refused", "ClaimMismatch")
    replies = do_all(
        arena,
        [
            *ready,
            ClaimExactly("job", (1,)),
            SelectExactlyForGood("job", (0,)),
            Requeue("job", (), failed=True),
            Requeue("job", (0, 1), failed=False),
            Release("job", "selected"),
            Transfer("job", "host-a"),
            WriteBack("job", 0),
            WriteBack("job"),
            Collect("job"),
            Keep("job"),
            CommitStep("host-a", lead=0, empty=True, keep=True),
            CommitStep("job", lead=0, empty=False, keep=True),
            CommitStep("job", lead=-1, empty=False),
        ],
    )
    lost = ("refused", "CheckpointError")
    done = [["g1"], ["g0"], *[mismatch] * 5, None, None, lost, lost, (0, ("g1",))]
    assert [*done, ("refused", "StepMismatch")] == replies[len(ready) :]


def test_groups_selected_for_good_count_as_trained_when_they_are_selected(arena: Arena) -> None:
    replies = do_all(
        arena,
        [
            Admit("job", seen_lead=0),
            *ready_groups(2),
            SelectExactlyForGood("job", (0,)),
            CommitStep("job", lead=0, empty=False),
            SelectExactlyForGood("job", (0,)),
        ],
    )
    assert [["g0"], (0, ()), ["g1"]] == replies[-3:]


def test_what_is_let_go_leaves_the_other_groups_of_its_selection_to_be_read(arena: Arena) -> None:
    ready = ready_groups(3)
    replies = do_all(
        arena,
        [
            *ready,
            SelectExactlyForGood("job", (1, 0)),
            SelectExactlyForGood("host-b", (0,)),
            Clear("job", (0,)),
            Collect("job"),
            Reserve("job", 1, lead=0, target_lead=None),
        ],
    )
    assert [["g1", "g0"], ["g2"], 1, None, None] == replies[len(ready) :]


def test_a_session_lets_go_no_group_of_the_same_id_that_another_reads(arena: Arena) -> None:
    ready = ready_groups(1)
    replies = do_all(
        arena,
        [
            *ready,
            SelectExactlyForGood("host-b", (0,)),
            *ready,
            SelectExactlyForGood("job", (0,)),
            Clear("job", (0,)),
            Collect("job"),
        ],
    )
    assert [["g0"], None, None, ["g0"], 1, None] == replies[len(ready) :]


def test_what_a_session_selected_for_good_is_let_go_when_it_dies(arena: Arena) -> None:
    ready = ready_groups(2)
    replies = do_all(
        arena,
        [
            *ready,
            SelectExactlyForGood("job", (0,)),
            SelectExactlyForGood("host-b", (0,)),
            Die("job"),
            Clear("job", (0,)),
            Collect("host-b"),
        ],
    )
    assert [["g0"], ["g1"], None, ("refused", "ClaimLost"), None] == replies[len(ready) :]


def test_a_session_has_as_much_room_for_selections_as_for_claims(arena: Arena) -> None:
    ready, full = ready_groups(4), ("refused", "TooManyClaims")
    replies = do_all(
        arena,
        [
            *ready,
            SelectExactlyForGood("job", (0,)),
            SelectExactlyForGood("job", (0, 1)),
            SelectExactlyForGood("job", (0,)),
            SelectForGood("job", Rule.BUFFER, window=0, lead=0, least=1, more=0),
            ClaimExactly("job", (0, 1)),
            Clear("job", (1,)),
            Reserve("host-a", 0, lead=0, target_lead=None),
            Commit("host-a", nth=0, content=9),
            ClaimExactly("job", (0,)),
            SelectForGood("job", Rule.BUFFER, window=0, lead=0, least=1, more=0),
        ],
    )
    done = [["g0"], full, ["g1"], full, ["g2", "g3"], 1, None, None, full, ["g0"]]
    assert done == replies[len(ready) :]


def do_all(arena: Arena, verbs: Sequence[Verb]) -> list[Reply]:
    """Do a sequence of verbs in a scene of its own and return the replies."""
    with arena.open_scene(False) as scene:
        replies = [arena.portal.call(scene.do, verb) for verb in verbs]
        arena.portal.call(scene.finish)
    return replies
