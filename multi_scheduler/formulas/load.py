"""Scores by measured load: the formulas of the scheduler plug-ins that are called Trimaran. Pure.

Source: kubernetes-sigs/scheduler-plugins, ``pkg/trimaran``. Results are 0 to 1; times 100 and rounded they are upstream's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from multi_scheduler.formulas import beta
from multi_scheduler.formulas.numbers import clamp

MILLI_WITHOUT_REQUEST = 1000
REQUEST_MULTIPLIER = 1.5
TARGET = 0.4
_ESTIMATED = {"cpu": 0.85, "memory": 0.7}
_WITHOUT_REQUEST = {"cpu": 250, "memory": 200 * 1024**2}
_WIDEST = 0.99
"""Of the greatest possible variance: a deviation beyond could not be fitted."""


def predicted_milli(
    request: int, limit: int, *, multiplier: float = REQUEST_MULTIPLIER, without: int = MILLI_WITHOUT_REQUEST
) -> int:
    """Return the CPU (in thousandths) that a container will use: its limit, or more than its request, or a constant."""
    if limit:
        return limit
    return math.floor(multiplier * request + 0.5) if request else without


def estimated(resource: str, request: int, limit: int) -> float:
    """Return what a pod that is not measured yet will use: by Koordinator's factors and defaults."""
    asked = max(request, limit)
    if not asked:
        return _WITHOUT_REQUEST.get(resource, 0)
    return asked * _ESTIMATED.get(resource, 1.0)


def target_load_packing(capacity: float, used: float, coming: float, target: float = TARGET) -> float:
    """Return 1 for a node that the pod brings to the target utilisation, and less on both sides.

    Args:
        capacity: CPU of the node.
        used: measured.
        coming: predicted for the pod, and for pods that the measurement did not contain.
        target: utilisation that is aimed at, 0 to 1.
    """
    share = (used + coming) / capacity if capacity > 0 else 0.0
    if share <= target:
        return target + (1 - target) * share / target if target else 1.0
    return target * (1 - share) / (1 - target) if share <= 1 else 0.0


def load_variation(
    capacity: float,
    used: float,
    deviation: float,
    request: float,
    *,
    margin: float = 1.0,
    sensitivity: float = 1.0,
) -> float:
    """Return 1 for an idle, steady resource, and less the more it is used and the more that varies."""
    if capacity <= 0:
        return 0.0
    mean, spread = moments(capacity, used, deviation, request)
    if sensitivity >= 0:
        spread = spread ** (1 / sensitivity) if sensitivity else float(spread >= 1)
    return 1 - (mean + clamp(margin * spread)) / 2


def moments(capacity: float, used: float, deviation: float, request: float) -> tuple[float, float]:
    """Return mean and deviation of utilisation with a pod, as shares of a capacity."""
    if capacity <= 0:
        return 0.0, 0.0
    used, spread = clamp(used, 0, capacity), clamp(deviation, 0, capacity)
    return clamp((used + max(request, 0)) / capacity), clamp(spread / capacity)


@dataclass(frozen=True, slots=True)
class Commitment:
    """What pods on a node may use of one resource: with the new pod, and without it."""

    request: float
    limit: float
    request_before: float
    limit_before: float
    capacity: float


@dataclass(frozen=True, slots=True)
class OverCommitment:
    """The risk of one resource, 0 to 1."""

    by_limits: float
    """Share of the room between requests and limits that the node does not have."""
    by_load: float
    """Probability that usage exceeds what is requested."""
    total: float


def over_commitment(
    commitment: Commitment,
    measured: tuple[float, float] | None,
    *,
    samples: int = 5,
    limits_weight: float = 0.5,
) -> OverCommitment:
    """Return the risk that pods use more than a node has.

    Args:
        commitment: requests and limits.
        measured: mean and deviation of utilisation without the pod; None: not known.
        samples: over which the measurement was smoothed; its deviation is made larger accordingly.
        limits_weight: of the limits beside the load, 0 to 1.
    """
    capacity = commitment.capacity
    if capacity <= 0:
        return OverCommitment(0.0, 0.0, 0.0)
    request, limit = min(commitment.request, capacity), max(commitment.limit, commitment.request)
    by_limits = (limit - capacity) / (limit - request) if limit > capacity else 0.0
    by_load = 0.0
    if measured is not None:
        mean, deviation = measured
        widest = math.sqrt(_WIDEST * beta.maximum_variance(mean))
        by_load = 1 - _within(commitment, mean, min(deviation * math.sqrt(samples), widest))
    return OverCommitment(
        by_limits, by_load, clamp(limits_weight * by_limits + (1 - limits_weight) * by_load)
    )


def probability(mean: float, deviation: float, threshold: float) -> float:
    """Return the probability that utilisation is at most a threshold."""
    if mean == 0:
        return 1.0
    if deviation == 0:
        return float(mean <= threshold)
    fitted = beta.fit(mean, deviation)
    return beta.distribution(threshold, *fitted) if fitted is not None else 0.0


def _within(commitment: Commitment, mean: float, deviation: float) -> float:
    """Return the probability that present pods use no more than they request, given that none exceeds its limit."""
    capacity, limit = commitment.capacity, max(commitment.limit_before, commitment.request_before)
    found = probability(mean, deviation, clamp(commitment.request_before / capacity))
    if limit >= capacity:
        return found
    if limit == 0:
        return 1.0
    fitted = beta.fit(mean, deviation)
    below = beta.distribution(limit / capacity, *fitted) if fitted is not None else 0.0
    return clamp(found / below) if below > 0 else found
