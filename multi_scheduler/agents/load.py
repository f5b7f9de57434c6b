"""The load agent: prefers nodes by measured usage, with one of Trimaran's formulas.

Settings and defaults are those of kubernetes-sigs/scheduler-plugins. Missing or old usage gives a neutral score.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from controller_runtime.apimachinery import quantity
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.by_node import AskedPod, NodeAgent, NodeSettings
from multi_scheduler.formulas import load
from multi_scheduler.view import LowerNode

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
    default_requests_multiplier: Annotated[float, Meta(ge=1)] = load.REQUEST_MULTIPLIER
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
        coming = sum(self._predicted(one) for one in pod.spec.get("containers") or ())
        coming += quantity.milli((pod.spec.get("overhead") or {}).get("cpu", 0))
        for placed in node.unmeasured(settling=_SETTLING):
            request, limit = placed.requests.get("cpu", 0), placed.limits.get("cpu", 0)
            coming += self._predict(request, limit)
        return load.target_load_packing(capacity, cpu.mean, coming, self._settings.target_utilization / 100)

    def _predicted(self, container: object) -> int:
        resources = container.get("resources") or {} if isinstance(container, dict) else {}
        request, limit = ((resources.get(kind) or {}).get("cpu", 0) for kind in ("requests", "limits"))
        return self._predict(quantity.milli(request), quantity.milli(limit))

    def _predict(self, request: int, limit: int) -> int:
        return load.predicted_milli(
            request, limit, multiplier=self._settings.default_requests_multiplier, without=self._without
        )

    def _variation(self, pod: AskedPod, node: LowerNode) -> float | None:
        found = []
        for resource in _RESOURCES:
            measured, capacity = node.measured(resource), node.allocatable.get(resource, 0)
            if measured is not None and capacity:
                found.append(
                    load.load_variation(
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
            commitment = load.Commitment(
                request + pod.requests.get(resource, 0),
                limit + max(pod.limits.get(resource, 0), pod.requests.get(resource, 0)),
                request,
                limit,
                capacity,
            )
            moments = (
                load.moments(capacity, measured.mean, measured.deviation, node.expected(resource))
                if measured is not None
                else None
            )
            samples = self._settings.smoothing_window_size
            risks.append(
                load.over_commitment(commitment, moments, samples=samples, limits_weight=weight).total
            )
        return 1 - max(risks, default=0.5)


def _committed(node: LowerNode, resource: str) -> tuple[int, int]:
    """Return the sums of requests and limits of the pods on a node."""
    request = limit = 0
    for placed in node.pods():
        asked = placed.requests.get(resource, 0)
        request += asked
        limit += max(asked, placed.limits.get(resource, 0))
    return request, limit
