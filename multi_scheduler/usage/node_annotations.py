"""Usage from annotations of lower nodes, as kube-safe-scheduler's annotator and ours write them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from controller_runtime.api import names, timestamps
from multi_scheduler.usage.window import Measured

CPU, MEMORY = "cpu", "memory"
MEAN, DEVIATION, FORECAST = "mean-free-{}", "std-free-{}", "forcasted-free-{}"
"""By resource: CPU in thousandths, memory in bytes. Spelled as the original does."""


def read(annotations: Mapping[str, str], resource: str, capacity: float) -> Measured | None:
    """Return the usage of one resource; None: the annotations do not have it.

    Args:
        annotations: of the node.
        resource: ``cpu`` or ``memory``.
        capacity: allocatable, in the unit of the annotation.
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
    """Return when the annotations were written, in seconds since the epoch; 0: they do not say."""
    try:
        return timestamps.parse(annotations.get(names.ANNOTATION_USAGE_AT, "")).timestamp()
    except ValueError:
        return 0.0


def number(text: str | None) -> float | None:
    """Return a bare number; None: it is none, or not finite."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
