"""A blocking call that is interrupted ends at once, and what it was given goes back."""

from __future__ import annotations

import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from redis_replay import sync
from redis_replay.bridge import Bridge, Call
from tests.harness import GROUP_SIZE, rows

MAIN_THREAD = threading.main_thread().ident
WAIT_SECONDS = 0.3
"""How long a call waits before it is interrupted."""
PROMPT_SECONDS = 5.0
"""How soon after its interruption a call has ended, on a busy machine."""


@pytest.fixture
def store(real_server: str) -> Iterator[sync.ReplayStore]:
    """A blocking store of a fresh run; it is audited at the end."""
    name = f"test-{secrets.token_hex(6)}"
    with sync.open_store(real_server, run=name, capacity=4, group_size=GROUP_SIZE) as opened:
        yield opened
        assert () == opened.audit().violations


def commit_ready(store: sync.ReplayStore, group_id: str) -> None:
    """Reserve and commit a group."""
    store.buffer.reserve(0, group_id=group_id)
    store.buffer.commit(group_id, rows(), start_weight_version=0, end_weight_version=0)


def interrupted(call: Callable[[], object]) -> None:
    """Make a call that waits, and press Ctrl-C."""
    assert MAIN_THREAD is not None
    press = threading.Timer(WAIT_SECONDS, signal.pthread_kill, [MAIN_THREAD, signal.SIGINT])
    press.start()
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        call()
    press.join()
    assert time.monotonic() - begun < WAIT_SECONDS + PROMPT_SECONDS


def own_threads() -> int:
    """Return how many threads of stores there are."""
    return sum(thread.name.startswith("redis-replay") for thread in threading.enumerate())


class TooLate(Future[Any]):
    """An answer that was there when its receiver was interrupted."""

    def __init__(self, answer: Future[Any]) -> None:
        super().__init__()
        self._answer = answer

    def result(self, timeout: float | None = None) -> Any:
        self._answer.result(timeout)
        raise KeyboardInterrupt


@contextmanager
def answers_come_too_late(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Interrupt each call of the block after its answer has come and before it is received."""
    with monkeypatch.context() as patched:
        receive = Bridge.receive

        def too_late(self: Bridge, call: Call, begin: Callable[[], Future[Any]]) -> Any:
            return receive(self, call, lambda: TooLate(begin()))

        patched.setattr(Bridge, "receive", too_late)
        yield


def test_a_select_that_is_interrupted_while_it_waits_claims_nothing(
    store: sync.ReplayStore,
) -> None:
    with store.trainer(owner="job") as trainer:
        sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)
        bounds = {"min_prompt_groups": 1, "max_prompt_groups": 1}
        interrupted(lambda: trainer.select(sampler, **bounds))
        commit_ready(store, "g")
        assert [] == trainer.buffer.training_owned_group_ids()
        meta, _ = trainer.select(sampler, **bounds)
        assert ["g"] == meta.extra_info["group_ids"]
        assert ("g",) == trainer.commit_step(0).trained


def test_a_claim_whose_answer_came_too_late_is_given_back_before_the_next_step(
    store: sync.ReplayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.trainer(owner="job") as trainer:
        sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)
        bounds = {"min_prompt_groups": 1, "max_prompt_groups": 1}
        commit_ready(store, "lost")
        commit_ready(store, "seen")
        with answers_come_too_late(monkeypatch), pytest.raises(KeyboardInterrupt):
            trainer.select(sampler, **bounds)
        trainer.buffer.claim_for_training(["seen"])
        assert ("seen",) == trainer.commit_step(0).trained
        [slot] = store.buffer.slots()
        assert ("lost", "ready", 0) == (slot.group_id, slot.state.value, slot.training_requeues)


def test_a_reservation_that_is_interrupted_holds_no_place(
    store: sync.ReplayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answers_come_too_late(monkeypatch), pytest.raises(KeyboardInterrupt):
        store.buffer.reserve(0, group_id="g")
    for at in range(4):
        store.buffer.reserve_when_free(0, group_id=f"g{at}")
    interrupted(lambda: store.buffer.reserve_when_free(0))
    store.buffer.abort("g0")
    assert 3 == store.buffer.size()
    store.buffer.reserve(0)


def test_an_admission_that_was_interrupted_is_returned_by_the_next(
    store: sync.ReplayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = sync.InOrderSampler(store.buffer, max_lookahead_versions=1)
    with answers_come_too_late(monkeypatch), pytest.raises(KeyboardInterrupt):
        sampler.admit(trainer_version_fn=lambda: 0)
    assert [0, 1] == [sampler.admit(trainer_version_fn=lambda: 0) for _ in range(2)]
    interrupted(lambda: sampler.admit(trainer_version_fn=lambda: 0))
    store.publish_trainer_version(1)
    assert 2 == sampler.admit(trainer_version_fn=lambda: 1)


def test_a_cut_that_was_interrupted_at_its_end_leaves_its_reservations_to_the_session(
    store: sync.ReplayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dispatch() -> None:
        with host.mutation() as cut:
            cut.reserve(0, group_id="g", prompt_ref=b"p")
            patch.enter_context(answers_come_too_late(monkeypatch))

    with store.rollout(owner="host") as host:
        with ExitStack() as patch, pytest.raises(KeyboardInterrupt):
            dispatch()
        [found] = host.take_tickets(max_tickets=9, weight_version=0)
        assert ("g", b"p") == (found.group_id, found.prompt_ref)


def test_an_interrupted_program_leaves_its_blocks_and_gives_everything_back(
    real_server: str, store: sync.ReplayStore
) -> None:
    def train() -> None:
        with (
            sync.open_store(real_server, run=run, create=False) as mine,
            mine.trainer(owner="job") as trainer,
        ):
            trainer.buffer.claim_for_training(["g"])
            sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)
            trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)

    run = store.buffer.session.link.gateway.keyspace.run
    commit_ready(store, "g")
    threads = own_threads()
    interrupted(train)
    assert threads == own_threads()
    [slot] = store.buffer.slots()
    assert ("ready", None, 0) == (slot.state.value, slot.owner, slot.training_requeues)


def test_an_error_of_a_signal_handler_is_an_interruption_too(store: sync.ReplayStore) -> None:
    def ring(number: int, frame: object) -> None:
        raise TimeoutError("the alarm rang")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with store.trainer(owner="job") as trainer:
            sampler = sync.WindowedSampler(trainer.buffer, max_staleness_versions=1)
            signal.setitimer(signal.ITIMER_REAL, WAIT_SECONDS)
            with pytest.raises(TimeoutError, match="rang"):
                trainer.select(sampler, min_prompt_groups=1, max_prompt_groups=1)
            commit_ready(store, "g")
            assert [] == trainer.buffer.training_owned_group_ids()
    finally:
        signal.signal(signal.SIGALRM, before)
