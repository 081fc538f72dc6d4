"""Sides take turns within every round; exponents are slopes; arguments are checked."""

from __future__ import annotations

import anyio
import pytest

from benchmarks.__main__ import parsed
from benchmarks.longest_scripts import verbs_by_sha
from benchmarks.scaling import exponent_of
from benchmarks.targets import TARGET_IDS
from benchmarks.turns import Side, alternate, ratios, take_turns
from redis_replay._redis.scripts import ALL_SCRIPTS


def recorded(log: list[str], name: str) -> Side:
    """Return a side that writes its name down and whose samples count its rounds."""

    async def side() -> float:
        log.append(name)
        return float(log.count(name))

    return side


def test_sides_run_one_after_the_other_within_every_round() -> None:
    log: list[str] = []
    sides = {name: recorded(log, name) for name in "ab"}
    samples = anyio.run(lambda: take_turns(sides, 2, warmups=1))
    assert ["a", "b"] * 3 == log
    assert {"a": [2.0, 3.0], "b": [2.0, 3.0]} == samples  # the warm-up does not count


def test_a_round_of_alternating_calls_is_their_median() -> None:
    log: list[str] = []
    sides = {name: recorded(log, name) for name in "ab"}
    assert {"a": 2.0, "b": 2.0} == anyio.run(lambda: alternate(sides, 3))
    assert ["a", "b"] * 3 == log


def test_ratios_are_of_the_same_round() -> None:
    assert [0.5, 2.0] == ratios([1.0, 4.0], [2.0, 2.0])


@pytest.mark.parametrize("exponent", [-0.5, 0.0, 1.0])
def test_an_exponent_is_the_slope_of_log_cost_over_log_size(exponent: float) -> None:
    sizes = (1_000, 10_000, 100_000)
    found = exponent_of(sizes, [3 * size**exponent for size in sizes])
    assert found == pytest.approx(exponent, abs=1e-9)


def test_a_slow_script_is_told_by_its_verb() -> None:
    assert {call.SCRIPT for call in ALL_SCRIPTS} == set(verbs_by_sha().values())


def test_all_targets_are_measured_unless_some_are_named() -> None:
    assert TARGET_IDS == parsed([]).only
    assert ("P5", "P6") == parsed(["--only", "p5, P6"]).only


def test_a_quick_run_has_fewer_rounds_and_a_full_one_at_least_seven() -> None:
    assert parsed(["--quick"]).rounds < 7 <= parsed([]).rounds


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--only", "P18"], r"there are no targets \['P18'\]; there are P1 to P17"),
        (["--rounds", "0"], "--rounds must be at least 1, got 0"),
    ],
)
def test_arguments_that_cannot_be_are_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(words)
    assert message.replace("\\", "") in capsys.readouterr().err
