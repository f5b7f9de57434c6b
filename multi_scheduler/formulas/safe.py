"""Risk of overload and balance of one node, by kube-safe-scheduler's formulas. Pure.

Utilisation is taken as a beta distribution with measured mean and deviation; risk is the probability that it exceeds a
threshold. Differences from the original: values that are not finite count as missing, results stay within 0 to 1, and a
percentile of 0 accepts only a risk of 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from multi_scheduler.formulas import beta
from multi_scheduler.formulas.numbers import clamp

POINTS = 10
"""The original's best score."""


@dataclass(frozen=True, slots=True)
class Load:
    """One resource of a node, as shares of its capacity, with the pod on it."""

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
    """Return a resource's load with a pod; None: what is free is not known.

    Args:
        free: mean of what is free, in the unit of ``capacity``.
        deviation: its standard deviation; None: unknown, as 0.
        forecast: what will be free; None: unknown.
        capacity: allocatable.
        demand: what the pod requests.
        weight: of the forecast beside the mean, 0 to 1.
    """
    if not math.isfinite(free) or capacity <= 0:
        return None
    if forecast is not None and math.isfinite(forecast):
        free = (1 - weight) * free + weight * forecast
    used = max(capacity - free, 0.0)
    spread = deviation if deviation is not None and math.isfinite(deviation) else 0.0
    return Load(clamp((used + demand) / capacity), clamp(spread / capacity))


def risk(mean: float, deviation: float, threshold: float) -> float:
    """Return the probability that utilisation exceeds a threshold."""
    if mean <= 0 or (deviation <= 0 and mean <= threshold):
        return 0.0
    fitted = beta.fit(mean, deviation)
    if fitted is None:
        return 1.0
    return clamp(1 - beta.distribution(threshold, *fitted))


def overload_score(found: float, percentile: float) -> float:
    """Return how far a risk is from the accepted one: 1 without risk, 0 from the accepted one on."""
    if percentile <= 0:
        return float(found <= 0)
    return 1 - math.sqrt(min(found / percentile, 1.0))


def balance_score(mean: float, deviation: float) -> float:
    """Return 1 for an idle, steady resource, and less the more it is used and the more that varies."""
    return 1 - (mean + math.sqrt(deviation)) / 2


def overload_points(found: float, percentile: float) -> int:
    """Return the original's integer for ``overload_score``: truncated."""
    return int(POINTS * overload_score(found, percentile))


def balance_points(mean: float, deviation: float) -> int:
    """Return the original's integer for ``balance_score``: rounded."""
    return int(POINTS * balance_score(mean, deviation) + 0.5)


def worst(scores: Iterable[float]) -> float | None:
    """Return the lowest score of a node's resources; None: there is no resource of which anything is known."""
    return min(scores, default=None)
