"""The safe agent: avoids nodes that would probably be overloaded, and prefers nodes with low and steady usage.

Formulas and defaults are kube-safe-scheduler's. Missing or old usage rejects nothing and gives a neutral score.

Utilization is modelled as a beta distribution with the measured mean and deviation. The risk is the probability that it
exceeds a threshold. Differences from the original: non-finite values count as missing, results are limited to 0 to 1, and
a percentile of 0 accepts only a risk of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from weakref import WeakKeyDictionary

from msgspec import Meta

from multi_scheduler import numeric
from multi_scheduler.agent import NOTHING, AgentContext, Rejections
from multi_scheduler.agents.by_node import AskedPod, NodeAgent, NodeSettings
from multi_scheduler.numeric import clamp
from multi_scheduler.view import LowerNode
from multi_scheduler.virtual_node import VirtualNode

POINTS = 10
"""Highest score of kube-safe-scheduler."""


@dataclass(frozen=True, slots=True)
class Load:
    """Utilization of one resource with the pod, as shares of the capacity."""

    mean: float
    deviation: float


def load_with_pod(
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


def overload_risk(mean: float, deviation: float, threshold: float) -> float:
    """Return the probability that utilization exceeds the threshold."""
    if mean <= 0 or (deviation <= 0 and mean <= threshold):
        return 0.0
    fitted = numeric.fit_beta(mean, deviation)
    if fitted is None:
        return 1.0
    return clamp(1 - numeric.beta_distribution(threshold, *fitted))


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


Percent = Annotated[int, Meta(ge=0, le=100)]
_RESOURCES = ("cpu", "memory")


class SafeSettings(NodeSettings):
    """The agent's configuration."""

    safe_utilization: Percent = 90
    """Utilization in percent that must not be exceeded."""
    safe_percentile: Percent = 30
    """Accepted probability, in percent, that utilization exceeds ``safeUtilization``."""
    forecast_weight: Percent = 20
    """Weight of the forecast beside the mean, in percent."""
    filter: bool = True
    """Reject virtual nodes where every lower node that could take the pod is at risk."""
    overload_weight: Annotated[float, Meta(ge=0)] = 1.0
    """Weight of the score by risk (safe-overload in kube-safe-scheduler)."""
    balance_weight: Annotated[float, Meta(ge=0)] = 10.0
    """Weight of the score by usage and deviation (safe-balance in kube-safe-scheduler)."""


class SafeAgent(NodeAgent[SafeSettings]):
    """Filters by the risk of overload; scores by risk and by balance."""

    settings_type = SafeSettings

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._threshold = self._settings.safe_utilization / 100
        self._accepted = self._settings.safe_percentile / 100
        self._known: WeakKeyDictionary[LowerNode, list[tuple[Load, float]]] = WeakKeyDictionary()
        """Loads and risks by ``LowerNode``. The view creates new ``LowerNode`` objects for each pod."""

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Reject virtual nodes where every lower node that could take the pod is at risk."""
        if not self._settings.filter:
            return NOTHING
        asked = AskedPod(pod)
        rejected = {}
        for node in nodes:
            candidates = self._view.nodes(pod, node)
            least = 1.0
            for candidate in candidates:
                risk = self._risk(asked, candidate)
                least = min(least, risk)
                if risk <= self._accepted:
                    break
            if candidates and least > self._accepted:
                rejected[node.name] = (
                    f"lower cluster {node.cluster}: cpu or memory of every node that could take the pod would exceed "
                    f"{self._settings.safe_utilization} % with a probability of {least:.0%} or more"
                )
        return Rejections({}, rejected)

    def score_node(self, pod: AskedPod, node: LowerNode) -> float | None:
        """Return the weighted mean of the scores by risk and by usage; None without usage or weights."""
        total = self._settings.overload_weight + self._settings.balance_weight
        found = self._risks(pod, node)
        if not found or not total:
            return None
        overload = min(overload_score(risk, self._accepted) for _load, risk in found)
        balance = min(balance_score(load.mean, load.deviation) for load, _risk in found)
        return (self._settings.overload_weight * overload + self._settings.balance_weight * balance) / total

    def _risk(self, pod: AskedPod, node: LowerNode) -> float:
        return max((risk for _load, risk in self._risks(pod, node)), default=0.0)

    def _risks(self, pod: AskedPod, node: LowerNode) -> list[tuple[Load, float]]:
        """Return load and risk of each resource; computed once per pod for filter and score."""
        known = self._known.get(node)
        if known is None:
            known = self._known[node] = [
                (one, overload_risk(one.mean, one.deviation, self._threshold))
                for one in self._loads(pod, node)
            ]
        return known

    def _loads(self, pod: AskedPod, node: LowerNode) -> list[Load]:
        found = []
        for resource in _RESOURCES:
            measured, capacity = node.measured(resource), node.allocatable.get(resource, 0)
            if measured is None:
                continue
            coming = node.expected(resource)
            one = load_with_pod(
                free=capacity - measured.mean - coming,
                deviation=measured.deviation,
                forecast=None if measured.forecast is None else capacity - measured.forecast - coming,
                capacity=capacity,
                demand=pod.requests.get(resource, 0),
                weight=self._settings.forecast_weight / 100,
            )
            if one is not None:
                found.append(one)
        return found
