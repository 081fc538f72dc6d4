"""The picture of a run: reward and staleness by step, with the kills."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Final

from redis_replay.demo.outcome import Outcome
from redis_replay.demo.settings import GROUPS_PER_STEP, TRAINER

_COLORS: Final = {"server": "tab:red", TRAINER: "tab:orange"}
_ROLLOUT_COLOR: Final = "tab:purple"


def draw(path: Path, outcome: Outcome) -> None:
    """Write the picture as a PNG file."""
    # The figure's own canvas draws without a display and without pyplot's state.
    figure_module: Any = importlib.import_module("matplotlib.figure")
    figure = figure_module.Figure(figsize=(10.0, 6.0), dpi=120, layout="constrained")
    rewards, lags = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    steps = outcome.verdict.steps
    numbers = [step.step for step in steps]
    figure.suptitle(
        f"redis-replay demo: {outcome.sampler}, seed {outcome.seed}, {len(steps)} steps",
        fontsize=12,
    )
    rewards.plot(
        numbers, [step.reward for step in steps], marker=".", label="mean reward of the batch"
    )
    first, last = outcome.reward_first, outcome.reward_last
    rewards.plot(
        [0, len(steps)], [first, last], "D", color="tab:green", label="200 held-out prompts"
    )
    for place, value, shift in ((0, first, (8, 6)), (len(steps), last, (-10, 5))):
        rewards.annotate(
            f"{value:.2f}",
            (place, value),
            textcoords="offset points",
            xytext=shift,
            ha="left" if place == 0 else "right",
            color="tab:green",
        )
    rewards.set_ylim(-0.05, 1.12)
    rewards.set_ylabel("reward")
    means = [sum(step.lags) / len(step.lags) for step in steps]
    lags.fill_between(
        numbers,
        [min(step.lags) for step in steps],
        [max(step.lags) for step in steps],
        step="mid",
        alpha=0.25,
        label="smallest to largest",
    )
    lags.plot(numbers, means, drawstyle="steps-mid", label=f"mean of {GROUPS_PER_STEP} groups")
    lags.set_ylabel("staleness (versions)")
    lags.set_xlabel("trainer step")
    lags.set_ylim(-0.15, max([2, *(max(step.lags) for step in steps)]) + 0.4)
    for kill in outcome.kills:
        color = _COLORS.get(kill.what, _ROLLOUT_COLOR)
        for axes, label in ((rewards, f"{kill.what} killed"), (lags, None)):
            axes.axvline(kill.at_step, color=color, linestyle="--", linewidth=1.2, label=label)
    lags.yaxis.get_major_locator().set_params(integer=True)
    for axes in (rewards, lags):
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
