"""Decides whether a soak has passed. No IO."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.benchmarks.tables import condition
from tests.benchmarks.usage import percentile

MEMORY_GROWTH, LATENCY_GROWTH, LATENCY_NOISE = 0.05, 1.25, 0.05
"""Most growth of memory, as a share; of the median latency, as a factor and as further seconds."""
CREATED = 0.95
"""Least share of the wanted pods that must have been created."""
_WINDOW = 60.0
"""Seconds of memory samples that are compared: after the warm-up, and at the end."""
Sample = tuple[float, float]
"""Seconds since the start, and a value."""


@dataclass(slots=True)
class Observed:
    """What a soak has seen. Lists have pod names, or kinds and names of objects."""

    created: int = 0
    lost: list[str] = field(default_factory=list)
    """Upper pods that did not start, although all faults had ended, or that failed."""
    doubled: list[str] = field(default_factory=list)
    """UIDs of upper pods for which more than one lower pod was created."""
    leaked: list[str] = field(default_factory=list)
    """Objects that stayed after all upper pods were deleted."""
    memory: list[Sample] = field(default_factory=list)
    """MiB of the process that is never killed."""
    latencies: list[Sample] = field(default_factory=list)
    """Time of creation, and seconds to Running, of pods that no fault affected."""


def verdict(observed: Observed, *, warm_up: float, end: float, wanted: int) -> list[dict[str, Any]]:
    """Return a row for each condition; memory and latency are left out if the soak was too short for them.

    Args:
        observed: what was seen.
        warm_up: seconds after which memory must not grow any more.
        end: seconds of the soak.
        wanted: number of pods that had to be created.
    """
    # A machine that cannot even create the pods in time says nothing about latency.
    kept_up = observed.created >= CREATED * wanted
    rows = [condition("pods created", f"≥ {CREATED * wanted:,.0f}", f"{observed.created:,}", is_met=kept_up)]
    rows += [
        condition(what, "0", _names(found), is_met=not found)
        for what, found in (
            ("pods lost", observed.lost),
            ("pods doubled", observed.doubled),
            ("objects leaked", observed.leaked),
        )
    ]
    early = _between(observed.memory, warm_up, warm_up + _WINDOW)
    late = _between(observed.memory, end - _WINDOW, end)
    if early and late and end - warm_up >= 2 * _WINDOW:
        first, last = statistics.median(early), statistics.median(late)
        growth = last / first - 1
        measured = f"{growth:+.1%} ({first:.0f} to {last:.0f} MiB)"
        rows.append(
            condition(
                f"memory growth after {warm_up / 60:g} min",
                f"< {MEMORY_GROWTH:.0%}",
                measured,
                is_met=growth < MEMORY_GROWTH,
            )
        )
    third = end / 3
    early, late = _between(observed.latencies, 0, third), _between(observed.latencies, end - third, end)
    if early and late:
        first, last = statistics.median(early), statistics.median(late)
        most = first * LATENCY_GROWTH + LATENCY_NOISE
        p99 = f"p99 {percentile(early, 0.99):.2f} to {percentile(late, 0.99):.2f} s"
        rows.append(
            condition(
                "median time to Running, first to last third",
                f"≤ {most:.2f} s",
                f"{first:.2f} to {last:.2f} s ({p99})",
                is_met=last <= most,
            )
        )
    return rows


def _between(samples: Sequence[Sample], start: float, end: float) -> list[float]:
    return [value for at, value in samples if start <= at <= end]


def _names(found: Sequence[str]) -> str:
    return f"{len(found)}: {', '.join(found[:3])}" if found else "0"
