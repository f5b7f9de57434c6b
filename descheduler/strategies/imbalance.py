"""LowNodeUtilization for virtual nodes: moves pods from overused to underused clusters.

A virtual node with every resource below ``thresholds`` is underused, one with any resource above ``targetThresholds``
is overused. Both are percentages of allocatable, for the sum of the pods' requests. Pods are moved off overused nodes
until these are no longer overused, or until underused nodes would become overused. Bare pods stay, because they would
lose their running work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import msgspec

from controller_runtime.api import quantity
from controller_runtime.api.pod import pod_resources
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from descheduler.moving.request import Move
from descheduler.strategies.base import Context, Params, PeriodicStrategy
from descheduler.view import pods

_LOW = {"cpu": 20.0, "memory": 20.0, "pods": 20.0}
_HIGH = {"cpu": 80.0, "memory": 80.0, "pods": 80.0}


class ImbalanceParams(Params):
    """Parameters of ``LowNodeUtilization``."""

    thresholds: dict[str, float] = msgspec.field(default_factory=lambda: dict(_LOW))
    target_thresholds: dict[str, float] = msgspec.field(default_factory=lambda: dict(_HIGH))
    number_of_nodes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Pods are moved only if more virtual nodes than this are underused."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Allocatable and requested resources of a virtual node; cpu in thousandths, others in whole units."""

    name: str
    allocatable: Mapping[str, int]
    requested: Counter[str]

    def percent(self, resource: str) -> float:
        """Return the requests in percent of allocatable; 100 if the resource is requested and not allocatable."""
        allocatable, requested = self.allocatable.get(resource, 0), self.requested[resource]
        if allocatable <= 0:
            return 100.0 if requested else 0.0
        return 100.0 * requested / allocatable


class Imbalance(PeriodicStrategy):
    """Balances the requests of clusters."""

    name: ClassVar[str] = "LowNodeUtilization"
    aliases: ClassVar[tuple[str, ...]] = ("ClusterImbalance",)
    params_type: ClassVar[type[Params]] = ImbalanceParams

    def __init__(self, context: Context, params: ImbalanceParams, *, where: str = "") -> None:
        super().__init__(context, params, where=where)
        for resource, low in params.thresholds.items():
            high = params.target_thresholds.get(resource)
            if high is None:
                raise ConfigError(
                    f"{where}.targetThresholds: write {resource} too, because thresholds has it"
                )
            if not 0 <= low <= high <= 100:
                raise ConfigError(
                    f"{where}.thresholds.{resource}: write percentages with thresholds ≤ targetThresholds"
                )

    async def work_through(self) -> None:
        """Make one pass over the overused nodes."""
        view, params = self.context.view, self.params
        usages = [usage_of(node, view.pods_on(node.name)) for node in view.open_nodes()]
        low = [usage for usage in usages if is_below(usage, params.thresholds)]
        if not low or len(low) <= params.number_of_nodes:
            return
        for usage in usages:
            if not is_above(usage, params.target_thresholds):
                continue
            candidates = [pod for pod in view.pods_on(usage.name) if self.is_candidate(pod)]
            for pod in candidates_in_order(candidates):
                if not is_above(usage, params.target_thresholds):
                    break
                requests = requests_of(pod)
                admitting = {node.name for node in view.alternatives(pod)}
                target = next(
                    (
                        other
                        for other in low
                        if other.name in admitting and fits(other, requests, params.target_thresholds)
                    ),
                    None,
                )
                if target is None:
                    continue
                why = f"{usage.name} is overused ({_shown(usage, params.target_thresholds)}), {target.name} has room"
                outcome = await self.try_move(pod, Move(strategy=self.name, reason=why))
                if outcome.moved:
                    usage.requested.subtract(requests)
                    target.requested.update(requests)


def usage_of(node: Object, on_it: Iterable[Object]) -> Usage:
    """Return a virtual node's usage by the requests of the pods bound to it."""
    allocatable = (node.status or {}).get("allocatable") or {}
    requested: Counter[str] = Counter()
    for pod in on_it:
        if pods.is_active(pod):
            requested.update(requests_of(pod))
    return Usage(
        node.name, {name: quantity.of(name, value) for name, value in allocatable.items()}, requested
    )


def requests_of(pod: Object) -> dict[str, int]:
    """Return a pod's requests, including ``pods: 1`` for the pod itself."""
    return {**pod_resources.pod_requests(pod.spec or {}), "pods": 1}


def is_below(usage: Usage, thresholds: Mapping[str, float]) -> bool:
    """Report whether every resource is used less than its threshold."""
    return all(usage.percent(resource) < limit for resource, limit in thresholds.items())


def is_above(usage: Usage, thresholds: Mapping[str, float]) -> bool:
    """Report whether any resource is used more than its threshold."""
    return any(usage.percent(resource) > limit for resource, limit in thresholds.items())


def fits(usage: Usage, requests: Mapping[str, int], thresholds: Mapping[str, float]) -> bool:
    """Report whether the node has room for the requests and would not become overused."""
    after = Usage(usage.name, usage.allocatable, usage.requested + Counter(requests))
    return not is_above(after, thresholds) and all(
        after.requested[resource] <= after.allocatable.get(resource, 0)
        for resource, count in requests.items()
        if count
    )


def candidates_in_order(candidates: Sequence[Object]) -> list[Object]:
    """Return the pods in the order in which they are moved: lowest priority first, then youngest."""

    def importance(pod: Object) -> tuple[Any, ...]:
        return (pod.spec or {}).get("priority") or 0, -pods.created(pod).timestamp(), pod.name

    return sorted(candidates, key=importance)


def _shown(usage: Usage, thresholds: Mapping[str, float]) -> str:
    return ", ".join(
        f"{resource} {usage.percent(resource):.0f} %"
        for resource, limit in thresholds.items()
        if usage.percent(resource) > limit
    )
