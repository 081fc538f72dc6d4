"""Who is silent is judged by the watcher's own clock, and by nothing it did not see."""

from __future__ import annotations

import pytest

from redis_replay._redis.records import OwnerRecord
from redis_replay.silence import SilenceWatch

LEASE_SECONDS = 10.0
GAP_SECONDS = 5.0


def owner(heartbeat: int, *, epoch: int = 1, lease_seconds: float = LEASE_SECONDS) -> OwnerRecord:
    """Return an owner that has beaten that often."""
    return OwnerRecord(epoch, heartbeat, "trainer", 1, lease_seconds, "host")


def watch_every(
    seconds: float, heartbeats: list[int], *, watch: SilenceWatch | None = None, start: float = 0.0
) -> list[bool]:
    """Look at one owner regularly; return for each look whether it counts as silent."""
    watch = watch or SilenceWatch(longest_gap_seconds=GAP_SECONDS)
    return [
        ["a"] == watch.observe({"a": owner(beat)}, now=start + at * seconds)
        for at, beat in enumerate(heartbeats)
    ]


def test_an_owner_is_silent_after_a_whole_lease_without_a_beat() -> None:
    assert [False] * 5 + [True, True] == watch_every(2.0, [7] * 7)


def test_an_owner_that_beats_is_never_silent() -> None:
    assert [False] * 40 == watch_every(4.0, list(range(40)))


def test_a_beat_starts_the_lease_anew() -> None:
    beats = [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    assert [False] * 9 + [True] == watch_every(2.0, beats)


def test_a_beat_after_the_lease_ends_the_silence() -> None:
    watch = SilenceWatch(longest_gap_seconds=GAP_SECONDS)
    assert watch_every(4.0, [1, 1, 1, 1], watch=watch)[-1]
    assert [False] == watch_every(4.0, [2], watch=watch, start=16.0)


def test_the_first_look_tells_nothing_however_old_the_clock_is() -> None:
    assert [False] == watch_every(1.0, [5], start=1e9)


def test_a_newer_epoch_starts_the_lease_anew_even_with_the_same_count() -> None:
    watch = SilenceWatch(longest_gap_seconds=GAP_SECONDS)
    for now in (0.0, 4.0, 8.0):
        assert [] == watch.observe({"a": owner(3)}, now=now)
    assert [] == watch.observe({"a": owner(3, epoch=2)}, now=12.0)
    assert [] == watch.observe({"a": owner(3, epoch=2)}, now=16.0)
    assert [] == watch.observe({"a": owner(3, epoch=2)}, now=20.0)
    assert ["a"] == watch.observe({"a": owner(3, epoch=2)}, now=24.0)


def test_a_gap_in_the_watch_restarts_all_timers() -> None:
    watch = SilenceWatch(longest_gap_seconds=GAP_SECONDS)
    both = {"a": owner(1), "b": owner(1)}
    for now in (0.0, 4.0, 8.0):
        assert [] == watch.observe(both, now=now)
    for now in (60.0, 64.0, 68.0):  # the watcher, or its server, was away for 52 seconds
        assert [] == watch.observe(both, now=now)
    assert ["a", "b"] == watch.observe(both, now=72.0)


def test_a_gap_of_exactly_the_limit_is_no_gap() -> None:
    watch = SilenceWatch(longest_gap_seconds=GAP_SECONDS)
    assert [False, False, True] == watch_every(GAP_SECONDS, [1, 1, 1], watch=watch)


def test_each_owner_has_a_lease_of_its_own() -> None:
    watch = SilenceWatch(longest_gap_seconds=GAP_SECONDS)
    owners = {"short": owner(1, lease_seconds=3.0), "long": owner(1, lease_seconds=7.0)}
    seen = [watch.observe(owners, now=float(now)) for now in range(0, 9, 2)]
    assert [[], [], ["short"], ["short"], ["short", "long"]] == seen


def test_an_owner_that_left_and_came_back_is_watched_anew() -> None:
    watch = SilenceWatch(longest_gap_seconds=GAP_SECONDS)
    for now in (0.0, 4.0):
        assert [] == watch.observe({"a": owner(1)}, now=now)
    assert [] == watch.observe({}, now=8.0)
    for now in (12.0, 16.0, 20.0):
        assert [] == watch.observe({"a": owner(1)}, now=now)
    assert ["a"] == watch.observe({"a": owner(1)}, now=24.0)


@pytest.mark.parametrize("start", [-1e6, 0.0, 1e9])
def test_only_differences_of_the_clock_matter(start: float) -> None:
    assert watch_every(2.0, [1] * 8) == watch_every(2.0, [1] * 8, start=start)
