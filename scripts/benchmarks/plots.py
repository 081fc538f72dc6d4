"""The pictures: cost of calls against the size of the buffer, bytes a second against group size."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.rows import BYTES_PER_TOKEN, GROUP_SIZE
from benchmarks.workload import PROFILES

COSTS: Final = "cost-by-groups.png"
SPEEDS: Final = "speed-by-group-size.png"
_VERBS: Final = ("claim", "settle", "evict", "commit", "reserve", "miss")
_SIDES: Final = {
    "limit": ("C program", "tab:gray", "--"),
    "channel": ("store", "tab:blue", "-"),
    "plain": ("store, through the client library", "tab:orange", ":"),
}


def draw_plots(folder: Path, details: Mapping[str, Any]) -> list[str]:
    """Write the pictures that there are figures for into a folder; return their names."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[str] = []
    if "scaling" in details:
        _draw_costs(folder / COSTS, details["scaling"], details.get("checkpoints by groups", {}))
        drawn.append(COSTS)
    if any(f"transfer {profile.name}" in details for profile in PROFILES):
        _draw_speeds(folder / SPEEDS, details)
        drawn.append(SPEEDS)
    return drawn


def _figure(columns: int) -> tuple[Any, Any]:
    # The figure's own canvas draws without a display and without pyplot's state.
    module: Any = importlib.import_module("matplotlib.figure")
    figure = module.Figure(figsize=(10.0, 4.2), dpi=110, layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _save(figure: Any, axes: Any, path: Path) -> None:
    for one in axes:
        one.set_xscale("log")
        one.set_yscale("log")
        for axis in (one.xaxis, one.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        one.grid(alpha=0.3, which="both")
        labels = one.get_legend_handles_labels()[1]
        if one is axes[-1] or labels != axes[-1].get_legend_handles_labels()[1]:
            one.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(path, format="png")


def _draw_costs(path: Path, scaling: Mapping[str, Any], checkpoints: Mapping[str, Any]) -> None:
    figure, axes = _figure(2 if checkpoints else 1)
    by_verb = scaling["ms by groups"]
    for verb in _VERBS:
        sizes = [int(size) for size in by_verb[verb]]
        label = f"{verb} of 64" if verb in ("claim", "settle") else verb
        axes[0].plot(sizes, list(by_verb[verb].values()), marker=".", label=label)
    axes[0].axhline(scaling["ping ms"], color="tab:gray", linestyle="--", label="PING")
    axes[0].set_title("calls")
    for verb in ("create", "restore", "drop") if checkpoints else ():
        sizes = [int(size) for size in checkpoints]
        costs = [one[f"{verb} ms"] for one in checkpoints.values()]
        axes[1].plot(sizes, costs, marker=".", label=f"checkpoint {verb}")
        axes[1].set_title("checkpoints, which read every group")
    for one in axes:
        one.set_xlabel("ready groups in the buffer")
        one.set_ylabel("milliseconds, median")
    _save(figure, axes, path)


def _draw_speeds(path: Path, details: Mapping[str, Any]) -> None:
    figure, axes = _figure(2)
    measured = [one for one in PROFILES if f"transfer {one.name}" in details]
    kilobytes = [GROUP_SIZE * BYTES_PER_TOKEN * one.tokens / 1000 for one in measured]
    for plot, verb in zip(axes, ("commit", "read"), strict=True):
        sides = [details[f"transfer {one.name}"][verb] for one in measured]
        for side, (label, color, line) in _SIDES.items():
            if all(side in one for one in sides):
                speeds = [one[side]["MB/s"] for one in sides]
                plot.plot(kilobytes, speeds, line, marker=".", color=color, label=label)
        plot.set_title("commit, over SET" if verb == "commit" else "claim and read, over GET")
        plot.set_xlabel("kilobytes of a group")
        plot.set_ylabel("MB/s, median")
    _save(figure, axes, path)
