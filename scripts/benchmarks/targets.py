"""The targets P1 to P17, as data: what each is, how it is measured, what must and may be reached.

A target has one part or several, each with limits of its own; it holds when all its parts do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

WHOLE: Final = ""
"""Name of the part of a target that has only one."""


class Direction(StrEnum):
    """On which side of its limit a value is good."""

    AT_LEAST = "at least"
    AT_MOST = "at most"


@dataclass(frozen=True)
class Part:
    """One figure of a target.

    Attributes:
        must: The limit that has to be kept.
        ambition: The one that would be better, ``None`` where there is none.
    """

    direction: Direction
    must: float
    ambition: float | None = None
    unit: str = ""

    def holds(self, value: float) -> bool:
        """Return whether a value keeps the limit."""
        return value >= self.must if self.direction is Direction.AT_LEAST else value <= self.must


@dataclass(frozen=True)
class Target:
    """One target.

    Attributes:
        what: What is to be reached, in a line.
        how: How it is measured, in a sentence or two.
        parts: By name; `WHOLE` where there is only one.
    """

    id: str
    what: str
    how: str
    parts: Mapping[str, Part]


def at_least(must: float, ambition: float | None = None, unit: str = "") -> Part:
    """Return a part whose value should be large."""
    return Part(Direction.AT_LEAST, must, ambition, unit)


def at_most(must: float, ambition: float | None = None, unit: str = "") -> Part:
    """Return a part whose value should be small."""
    return Part(Direction.AT_MOST, must, ambition, unit)


PROFILE_NAMES: Final = ("small", "standard", "long")
SCALED_VERBS: Final = ("reserve", "commit", "claim", "settle", "evict", "miss")
LIFECYCLE_PEERS: Final = ("reverb", "transferqueue", "ray")


def by_profile(musts: tuple[float, ...], ambitions: tuple[float, ...]) -> dict[str, Part]:
    """Return a part for each group size, whose value should be large."""
    return {
        name: at_least(must, ambition)
        for name, must, ambition in zip(PROFILE_NAMES, musts, ambitions, strict=True)
    }


def by_peer(
    musts: Mapping[str, tuple[float, ...]], ambitions: Mapping[str, tuple[float, ...]]
) -> dict[str, Part]:
    """Return a part for each peer and group size, whose value should be large."""
    return {
        f"{peer} {profile}": part
        for peer in musts
        for profile, part in by_profile(musts[peer], ambitions[peer]).items()
    }


TARGETS: Final[tuple[Target, ...]] = (
    Target(
        "P1",
        "commit of new groups, bytes/s over SETs of fresh keys by a C program",
        "Reserve a round's groups in one call, encode, write and flip them, a few at a time; then "
        "the C program sets as many fresh keys of the same size. Small, standard and long groups.",
        by_profile((0.25, 0.45, 0.60), (0.40, 0.65, 0.80)),
    ),
    Target(
        "P2",
        "claim, read, decode and settle, bytes/s over GETs by a C program",
        "Claim a round's groups, read and decode all fields with checksums verified, settle; then "
        "the C program gets as many keys of the same size.",
        by_profile((0.25, 0.45, 0.50), (0.35, 0.60, 0.70)),
    ),
    Target(
        "P3",
        "one column of a long group, time over a GET of as many bytes",
        "get_samples with one selected field of one group, decoded and verified, over a GET of one "
        "string of as many bytes by the asynchronous client.",
        {WHOLE: at_most(1.5, 1.1)},
    ),
    Target(
        "P4",
        "costs that stay flat: claim of 64 at the largest buffer over the smallest; exponents",
        "The same calls against buffers of 1,000, 10,000 and 100,000 ready groups in turns. An "
        "exponent is the slope of log cost over log groups, of each round's medians.",
        {
            "claim ratio": at_most(1.25, 1.1),
            **{f"{verb} exponent": at_most(0.05, 0.0) for verb in SCALED_VERBS},
        },
    ),
    Target(
        "P5",
        "claim of 64 groups over one PING",
        "A claim under the windowed policy's rule at the largest buffer, with the metas of its 64 "
        "times 16 rows, over a PING of an idle client of its own in the same round.",
        {WHOLE: at_most(7, 4)},
    ),
    Target(
        "P6",
        "groups claimed and settled by 8 processes, batches of 64, per PING of one idle client",
        "Eight processes begin at one instant and claim and settle prepared groups; groups a "
        "second over the PINGs a second of one idle client on the same server.",
        {WHOLE: at_least(5, 12)},
    ),
    Target(
        "P7",
        "single calls over one PING",
        "Reserve one group, commit it with rows of a few bytes, admit a batch at an open gate, "
        "claim where nothing is eligible; each over a PING of an idle client in the same round.",
        {name: at_most(2, 1.2) for name in ("reserve", "commit flip", "admit", "empty claim")},
    ),
    Target(
        "P8",
        "checkpoint create, by groups and by bytes",
        "What the caller of create waits, digest included, with rows of a few bytes; and at 200 "
        "groups the time with much payload over the time with little.",
        {
            "1,000 groups": at_most(5, 2, "ms"),
            "10,000 groups": at_most(30, 12, "ms"),
            "100,000 groups": at_most(250, 140, "ms"),
            "much over little payload": at_most(1.2),
        },
    ),
    Target(
        "P9",
        "payload bytes that a restore moves",
        "Network bytes of a restore, if any command ran meanwhile that reads or writes strings "
        "(only payload is kept in strings); none otherwise.",
        {WHOLE: at_most(0, unit="bytes")},
    ),
    Target(
        "P10",
        "export and import, MB/s over a plain Python copy of the same files; second export",
        "A copy reads, writes and syncs the exported files. The second export, after a tenth of "
        "the groups was replaced, is the share of bytes that it wrote.",
        {
            "export": at_least(0.5, 0.8),
            "import": at_least(0.5, 0.8),
            "second export": at_most(0.15),
        },
    ),
    Target(
        "P11",
        "wake-up of a waiting trainer over an idle PING; commands a second of an idle waiter",
        "From the acknowledged commit in another process to the instant at which select has "
        "returned the claimed batch; commands that a waiting trainer's process sends, heartbeat "
        "included, counted by MONITOR.",
        {"wake-up": at_most(2, 1.5), "commands a second": at_most(2, 1)},
    ),
    Target(
        "P12",
        "server memory per payload byte; control bytes per group",
        "Growth of used_memory by standard groups over the bytes of their arrays; growth by many "
        "groups of 16 rows less what their payload keys take, over their number. These groups have "
        "no target step, as under all policies but in_order; the details have both.",
        {"memory per payload byte": at_most(1.13, 1.02), "control bytes": at_most(700, 400)},
    ),
    Target(
        "P13",
        "whole lifecycle against peers in processes of their own, groups/s over groups/s",
        "Put a batch of groups, choose it, read all of it, release it. Each peer runs in an "
        "environment of its own, with its own server or actor, and takes turns with the store.",
        by_peer(
            {"reverb": (2.0, 1.5, 1.9), "transferqueue": (10, 8, 2), "ray": (10, 8, 2)},
            {"reverb": (3, 3, 3), "transferqueue": (20, 12, 4), "ray": (20, 12, 4)},
        ),
    ),
    Target(
        "P14",
        "whole lifecycle against a TorchRL memory map inside one process, groups/s over groups/s",
        "As P13; the peer has no server, no claims, and survives nothing.",
        by_profile((1.3, 0.75, 0.75), (1.5, 1.0, 1.0)),
    ),
    Target(
        "P15",
        "longest script at the largest buffer, checkpoints aside",
        "SLOWLOG with a low threshold over a mixed load of all verbs in batches of 64, evictions "
        "in their slices of 256; the longest script of each round.",
        {WHOLE: at_most(5, 2, "ms")},
    ),
    Target(
        "P16",
        "longest step of the event loop that any call of the store takes",
        "Each step of the loop is timed during commits and reads of all group sizes and during the "
        "calls of the control plane, in wall time and in processor time; the longest of a round.",
        {"wall": at_most(5, 1, "ms"), "processor": at_most(5, 1, "ms")},
    ),
    Target(
        "P17",
        "commit bandwidth of 4 rollout processes over that of one",
        "Standard groups, all keys fresh; four processes begin at one instant, then one alone.",
        {WHOLE: at_least(1.2)},
    ),
)

TARGET_IDS: Final = tuple(target.id for target in TARGETS)


def target_of(target_id: str) -> Target:
    """Return a target by its id.

    Raises:
        KeyError: there is none.
    """
    return {target.id: target for target in TARGETS}[target_id]
