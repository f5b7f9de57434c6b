"""The load agent: prefers nodes by measured usage, with one of Trimaran's formulas.

Formulas, settings and defaults are those of kubernetes-sigs/scheduler-plugins, ``pkg/trimaran``. Results are 0 to 1;
multiplied by 100 and rounded they equal the upstream scores. Missing or old usage gives a neutral score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from clusterset.model.pod import pod_resources
from controller_runtime.apimachinery import quantity
from multi_scheduler import numeric
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.by_node import AskedPod, NodeAgent, NodeSettings
from multi_scheduler.numeric import clamp
from multi_scheduler.view import LowerNode

MILLI_WITHOUT_REQUEST = 1000
REQUEST_MULTIPLIER = 1.5
TARGET = 0.4
_WIDEST = 0.99
"""Share of the maximum variance that a deviation is limited to; above it no distribution can be fitted."""


def predicted_milli(
    request: int, limit: int, *, multiplier: float = REQUEST_MULTIPLIER, without: int = MILLI_WITHOUT_REQUEST
) -> int:
    """Return the predicted CPU of a container in millicores: its limit, or a multiple of its request, or a constant."""
    if limit:
        return limit
    return math.floor(multiplier * request + 0.5) if request else without


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
    mean, spread = utilization_moments(capacity, used, deviation, request)
    if sensitivity >= 0:
        spread = spread ** (1 / sensitivity) if sensitivity else float(spread >= 1)
    return 1 - (mean + clamp(margin * spread)) / 2


def utilization_moments(
    capacity: float, used: float, deviation: float, request: float
) -> tuple[float, float]:
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
        widest = math.sqrt(_WIDEST * numeric.maximum_variance(mean))
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
    fitted = numeric.fit_beta(mean, deviation)
    return numeric.beta_distribution(threshold, *fitted) if fitted is not None else 0.0


def _within(commitment: Commitment, mean: float, deviation: float) -> float:
    """Return the probability that current pods use at most the sum of requests, given that usage is within the sum of limits."""
    capacity, limit = commitment.capacity, max(commitment.limit_before, commitment.request_before)
    found = probability(mean, deviation, clamp(commitment.request_before / capacity))
    if limit >= capacity:
        return found
    if limit == 0:
        return 1.0
    fitted = numeric.fit_beta(mean, deviation)
    below = numeric.beta_distribution(limit / capacity, *fitted) if fitted is not None else 0.0
    return clamp(found / below) if below > 0 else found


_RESOURCES = ("cpu", "memory")
_SETTLING = 60.0
"""Seconds until a new pod affects the measured usage, as in TargetLoadPacking."""
Share = Annotated[float, Meta(ge=0, le=1)]


class RiskLimitWeights(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """Weight of the risk by limits, from 0 to 1; the rest is the weight of the risk by measured load."""

    cpu: Share = 0.5
    memory: Share = 0.5


class LoadSettings(NodeSettings):
    """The agent's configuration."""

    policy: Literal["TargetLoadPacking", "LoadVariationRiskBalancing", "LowRiskOverCommitment"] = (
        "LoadVariationRiskBalancing"
    )
    """TargetLoadPacking: fill nodes up to a target CPU utilization. LoadVariationRiskBalancing: prefer unused, steady nodes.
    LowRiskOverCommitment: prefer nodes where limits and usage leave room."""
    target_utilization: Annotated[int, Meta(ge=1, le=99)] = 40
    """TargetLoadPacking: target CPU utilization in percent."""
    default_requests: str = "1"
    """TargetLoadPacking: CPU of a container without request and limit."""
    default_requests_multiplier: Annotated[float, Meta(ge=1)] = REQUEST_MULTIPLIER
    """TargetLoadPacking: predicted usage of a container as a multiple of its request."""
    safe_variance_margin: Annotated[float, Meta(ge=0)] = 1.0
    """LoadVariationRiskBalancing: weight of the deviation."""
    safe_variance_sensitivity: Annotated[float, Meta(ge=0)] = 1.0
    """LoadVariationRiskBalancing: the deviation is raised to the power of 1 divided by this value."""
    smoothing_window_size: Annotated[int, Meta(ge=1)] = 5
    """LowRiskOverCommitment: number of samples over which each measured value is an average."""
    risk_limit_weights: RiskLimitWeights = msgspec.field(default_factory=RiskLimitWeights)
    """LowRiskOverCommitment: weights of the risk by limits; the rest is the weight of the risk by measured load."""


class LoadAgent(NodeAgent[LoadSettings]):
    """Scores by one of three policies; does not filter."""

    settings_type = LoadSettings

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._without = quantity.milli(self._settings.default_requests)
        self._policy = {
            "TargetLoadPacking": self._packing,
            "LoadVariationRiskBalancing": self._variation,
            "LowRiskOverCommitment": self._commitment,
        }[self._settings.policy]

    def score_node(self, pod: AskedPod, node: LowerNode) -> float | None:
        """Return the policy's score; None without usage."""
        return self._policy(pod, node) if node.usage is not None else None

    def _packing(self, pod: AskedPod, node: LowerNode) -> float | None:
        cpu, capacity = node.measured("cpu"), node.allocatable.get("cpu", 0)
        if cpu is None or not capacity:
            return None
        coming = sum(self._predicted(holder) for holder in pod_resources.running(pod.spec, "cpu"))
        coming += quantity.milli((pod.spec.get("overhead") or {}).get("cpu", 0))
        for placed in node.unmeasured(settling=_SETTLING):
            request, limit = placed.requests.get("cpu", 0), placed.limits.get("cpu", 0)
            coming += self._predict(request, limit)
        return target_load_packing(capacity, cpu.mean, coming, self._settings.target_utilization / 100)

    def _predicted(self, holder: Mapping[str, Any]) -> int:
        request, limit = (
            pod_resources.amounts(holder, kind).get("cpu", 0) for kind in ("requests", "limits")
        )
        return self._predict(request, limit)

    def _predict(self, request: int, limit: int) -> int:
        return predicted_milli(
            request, limit, multiplier=self._settings.default_requests_multiplier, without=self._without
        )

    def _variation(self, pod: AskedPod, node: LowerNode) -> float | None:
        found = []
        for resource in _RESOURCES:
            measured, capacity = node.measured(resource), node.allocatable.get(resource, 0)
            if measured is not None and capacity:
                found.append(
                    load_variation(
                        capacity,
                        measured.mean + node.expected(resource),
                        measured.deviation,
                        pod.requests.get(resource, 0),
                        margin=self._settings.safe_variance_margin,
                        sensitivity=self._settings.safe_variance_sensitivity,
                    )
                )
        return min(found, default=None)

    def _commitment(self, pod: AskedPod, node: LowerNode) -> float | None:
        if not any(pod.requests.get(resource) or pod.limits.get(resource) for resource in _RESOURCES):
            return None  # without requests and limits, the pod does not change the risk of any node
        weights = self._settings.risk_limit_weights
        risks = []
        for resource, weight in (("cpu", weights.cpu), ("memory", weights.memory)):
            measured, capacity = node.measured(resource), node.allocatable.get(resource, 0)
            if not capacity:
                continue
            request, limit = _committed(node, resource)
            commitment = Commitment(
                request + pod.requests.get(resource, 0),
                limit + max(pod.limits.get(resource, 0), pod.requests.get(resource, 0)),
                request,
                limit,
                capacity,
            )
            moments = (
                utilization_moments(capacity, measured.mean, measured.deviation, node.expected(resource))
                if measured is not None
                else None
            )
            samples = self._settings.smoothing_window_size
            risks.append(over_commitment(commitment, moments, samples=samples, limits_weight=weight).total)
        return 1 - max(risks, default=0.5)


def _committed(node: LowerNode, resource: str) -> tuple[int, int]:
    """Return the sums of requests and limits of the pods on a node."""
    request = limit = 0
    for placed in node.pods():
        asked = placed.requests.get(resource, 0)
        request += asked
        limit += max(asked, placed.limits.get(resource, 0))
    return request, limit
