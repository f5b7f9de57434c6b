"""Usage from annotations of lower nodes, as written by kube-safe-scheduler's annotator or ``virtual-node-annotator``. No IO."""

from __future__ import annotations

from collections.abc import Mapping

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from multi_scheduler.usage.store import LARGEST, Measured

CPU, MEMORY = "cpu", "memory"
CONGESTION = "congestion-factor"
"""Written by another program; agents read it."""
MEAN, DEVIATION, FORECAST = "mean-free-{}", "std-free-{}", "forcasted-free-{}"
"""By resource: CPU in millicores, memory in bytes. The spelling is kube-safe-scheduler's."""


def read(annotations: Mapping[str, str], resource: str, capacity: float) -> Measured | None:
    """Return the usage of ``cpu`` or ``memory``; None: the annotations are missing.

    ``capacity`` is the allocatable amount, in the unit of the annotation.
    """
    free = number(annotations.get(MEAN.format(resource)))
    if free is None or not capacity:
        return None
    forecast = number(annotations.get(FORECAST.format(resource)))
    used = max(capacity - free, 0.0)
    return Measured(
        latest=used,
        mean=used,
        deviation=max(number(annotations.get(DEVIATION.format(resource))) or 0.0, 0.0),
        forecast=None if forecast is None else max(capacity - forecast, 0.0),
    )


def time(annotations: Mapping[str, str]) -> float:
    """Return when the annotations were written, in seconds since the epoch; 0: unknown."""
    try:
        return timestamps.parse(annotations.get(names.ANNOTATION_USAGE_AT, "")).timestamp()
    except ValueError:
        return 0.0


def number(text: str | None) -> float | None:
    """Return a number without unit; None: invalid or implausible."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None
