"""Which measurement answers which targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.bench import Bench, Measure
from benchmarks.checkpoint_costs import measure_checkpoint_bytes
from benchmarks.columns import measure_columns
from benchmarks.crowds import measure_claiming_crowd, measure_writing_crowd
from benchmarks.event_loop import measure_event_loop
from benchmarks.exported_files import measure_files
from benchmarks.file_memory import measure_file_memory
from benchmarks.large_buffers import measure_large_buffers
from benchmarks.lifecycles import measure_lifecycles
from benchmarks.memory import measure_memory
from benchmarks.results import Found
from benchmarks.single_calls import measure_single_calls
from benchmarks.transfer import measure_transfer
from benchmarks.waiting import measure_waiting


@dataclass(frozen=True)
class Measurement:
    """One measurement.

    Attributes:
        targets: Ids of the targets that it has samples for.
    """

    targets: tuple[str, ...]
    measure: Measure


MEASUREMENTS: Final = (
    Measurement(("P1", "P2"), measure_transfer),
    Measurement(("P3",), measure_columns),
    Measurement(("P7",), measure_single_calls),
    Measurement(("P11",), measure_waiting),
    Measurement(("P6",), measure_claiming_crowd),
    Measurement(("P17",), measure_writing_crowd),
    Measurement(("P12",), measure_memory),
    Measurement(("P16",), measure_event_loop),
    Measurement(("P10",), measure_files),
    Measurement(("P10",), measure_file_memory),
    Measurement(("P8", "P9"), measure_checkpoint_bytes),
    Measurement(("P4", "P5", "P8", "P15"), measure_large_buffers),
    Measurement(("P13", "P14"), measure_lifecycles),
)


async def measure_all(bench: Bench) -> Found:
    """Make the measurements that have samples for any wanted target."""
    found = Found()
    for measurement in MEASUREMENTS:
        if bench.wanted & set(measurement.targets):
            found.add(await measurement.measure(bench))
    return found
