"""Scores by measured load: the formulas of the scheduler plug-ins called Trimaran. No IO.

Source: kubernetes-sigs/scheduler-plugins, ``pkg/trimaran``. Results are 0 to 1; multiplied by 100 and rounded they equal
the upstream scores.
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
"""Share of the maximum variance that a deviation is limited to; above it no distribution can be fitted."""


def predicted_milli(
    request: int, limit: int, *, multiplier: float = REQUEST_MULTIPLIER, without: int = MILLI_WITHOUT_REQUEST
) -> int:
    """Return the predicted CPU of a container in millicores: its limit, or a multiple of its request, or a constant."""
    if limit:
        return limit
    return math.floor(multiplier * request + 0.5) if request else without


def estimated(resource: str, request: int, limit: int) -> float:
    """Return the predicted usage of a pod without measurements, by Koordinator's factors and defaults."""
    asked = max(request, limit)
    if not asked:
        return _WITHOUT_REQUEST.get(resource, 0)
    return asked * _ESTIMATED.get(resource, 1.0)


def target_load_packing(capacity: float, used: float, coming: float, target: float = TARGET) -> float:
    """Return 1 if the pod brings the node to the target utilization, and less below and above it.

    Args:
        capacity: CPU of the node.
        used: measured CPU.
        coming: predicted CPU of the pod and of pods that the measurement did not contain.
        target: target utilization, 0 to 1.
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
    """Return 1 for an unused, steady resource; less with higher usage and deviation."""
    if capacity <= 0:
        return 0.0
    mean, spread = moments(capacity, used, deviation, request)
    if sensitivity >= 0:
        spread = spread ** (1 / sensitivity) if sensitivity else float(spread >= 1)
    return 1 - (mean + clamp(margin * spread)) / 2


def moments(capacity: float, used: float, deviation: float, request: float) -> tuple[float, float]:
    """Return mean and deviation of the utilization with the pod, as shares of the capacity."""
    if capacity <= 0:
        return 0.0, 0.0
    used, spread = clamp(used, 0, capacity), clamp(deviation, 0, capacity)
    return clamp((used + max(request, 0)) / capacity), clamp(spread / capacity)


@dataclass(frozen=True, slots=True)
class Commitment:
    """Requests and limits of one resource on a node, with the new pod and without it."""

    request: float
    limit: float
    request_before: float
    limit_before: float
    capacity: float


@dataclass(frozen=True, slots=True)
class OverCommitment:
    """The risk of one resource, 0 to 1."""

    by_limits: float
    """Share of the difference between limits and requests that exceeds the node's capacity."""
    by_load: float
    """Probability that usage exceeds the requests."""
    total: float


def over_commitment(
    commitment: Commitment,
    measured: tuple[float, float] | None,
    *,
    samples: int = 5,
    limits_weight: float = 0.5,
) -> OverCommitment:
    """Return the risk that the node's pods use more than the node has.

    Args:
        commitment: requests and limits.
        measured: mean and deviation of utilization without the pod; None: unknown.
        samples: samples over which each measurement is an average; the deviation is scaled up accordingly.
        limits_weight: weight of the limits beside the load, 0 to 1.
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
    """Return the probability that utilization is at most the threshold."""
    if mean == 0:
        return 1.0
    if deviation == 0:
        return float(mean <= threshold)
    fitted = beta.fit(mean, deviation)
    return beta.distribution(threshold, *fitted) if fitted is not None else 0.0


def _within(commitment: Commitment, mean: float, deviation: float) -> float:
    """Return the probability that current pods use at most the sum of requests, given that usage is within the sum of limits."""
    capacity, limit = commitment.capacity, max(commitment.limit_before, commitment.request_before)
    found = probability(mean, deviation, clamp(commitment.request_before / capacity))
    if limit >= capacity:
        return found
    if limit == 0:
        return 1.0
    fitted = beta.fit(mean, deviation)
    below = beta.distribution(limit / capacity, *fitted) if fitted is not None else 0.0
    return clamp(found / below) if below > 0 else found
