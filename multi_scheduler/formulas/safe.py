"""Risk of overload and balance of one node, by kube-safe-scheduler's formulas. No IO.

Utilization is modelled as a beta distribution with the measured mean and deviation. The risk is the probability that it
exceeds a threshold. Differences from the original: non-finite values count as missing, results are limited to 0 to 1, and
a percentile of 0 accepts only a risk of 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from multi_scheduler.formulas import beta
from multi_scheduler.formulas.numbers import clamp

POINTS = 10
"""Highest score of kube-safe-scheduler."""


@dataclass(frozen=True, slots=True)
class Load:
    """Utilization of one resource with the pod, as shares of the capacity."""

    mean: float
    deviation: float


def load(
    *,
    free: float,
    deviation: float | None,
    forecast: float | None,
    capacity: float,
    demand: float,
    weight: float,
) -> Load | None:
    """Return a resource's load with the pod; None if the free amount is unknown.

    Args:
        free: mean free amount, in the unit of ``capacity``.
        deviation: standard deviation of the free amount; None: unknown, taken as 0.
        forecast: forecast of the free amount; None: unknown.
        capacity: allocatable amount.
        demand: the pod's request.
        weight: weight of the forecast beside the mean, 0 to 1.
    """
    if not math.isfinite(free) or capacity <= 0:
        return None
    if forecast is not None and math.isfinite(forecast):
        free = (1 - weight) * free + weight * forecast
    used = max(capacity - free, 0.0)
    spread = deviation if deviation is not None and math.isfinite(deviation) else 0.0
    return Load(clamp((used + demand) / capacity), clamp(spread / capacity))


def risk(mean: float, deviation: float, threshold: float) -> float:
    """Return the probability that utilization exceeds the threshold."""
    if mean <= 0 or (deviation <= 0 and mean <= threshold):
        return 0.0
    fitted = beta.fit(mean, deviation)
    if fitted is None:
        return 1.0
    return clamp(1 - beta.distribution(threshold, *fitted))


def overload_score(found: float, percentile: float) -> float:
    """Return 1 without risk, 0 if the risk is the accepted one (``percentile``) or higher."""
    if percentile <= 0:
        return float(found <= 0)
    return 1 - math.sqrt(min(found / percentile, 1.0))


def balance_score(mean: float, deviation: float) -> float:
    """Return 1 for an unused, steady resource; less with higher usage and deviation."""
    return 1 - (mean + math.sqrt(deviation)) / 2


def overload_points(found: float, percentile: float) -> int:
    """Return kube-safe-scheduler's integer for ``overload_score``, truncated."""
    return int(POINTS * overload_score(found, percentile))


def balance_points(mean: float, deviation: float) -> int:
    """Return kube-safe-scheduler's integer for ``balance_score``, rounded."""
    return int(POINTS * balance_score(mean, deviation) + 0.5)
