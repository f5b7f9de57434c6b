"""LowNodeUtilization for virtual nodes: moves pods from overused to underused clusters.

A virtual node with every resource below ``thresholds`` is underused, one with any resource above ``targetThresholds``
is overused. Both are percentages of allocatable, for the sum of the pods' requests. Pods are moved off overused nodes
until these are no longer overused, or until underused nodes would become overused. Pods that request none of the overused
resources stay, because their moves would not help. Bare pods stay, because they would lose their running work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from descheduler.moving.move_reports import Move
from descheduler.pods import least_important_first
from descheduler.room import Usage, requests_of, usage_of
from descheduler.strategies.base import Context, Namespaces, Params, PeriodicStrategy

_LOW = {"cpu": 20.0, "memory": 20.0, "pods": 20.0}
_HIGH = {"cpu": 80.0, "memory": 80.0, "pods": 80.0}


class ImbalanceParams(Params):
    """Parameters of ``LowNodeUtilization``."""

    thresholds: dict[str, float] = msgspec.field(default_factory=lambda: dict(_LOW))
    target_thresholds: dict[str, float] = msgspec.field(default_factory=lambda: dict(_HIGH))
    number_of_nodes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Pods are moved only if more virtual nodes than this are underused."""
    evictable_namespaces: Namespaces = msgspec.field(default_factory=Namespaces)
    """v1alpha2: as ``namespaces``, the name in sigs.k8s.io/descheduler."""


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

    def concerns(self, pod: Object) -> bool:
        """Report whether the parameters select the pod."""
        return super().concerns(pod) and self.params.evictable_namespaces.contain(pod.namespace)

    async def work_through(self) -> None:
        """Make one pass over the overused nodes."""
        view, params = self.context.view, self.params
        usages = [usage_of(node, view.pods_on(node.name)) for node in view.open_nodes()]
        low = [usage for usage in usages if is_below(usage, params.thresholds)]
        if not low or len(low) <= params.number_of_nodes:
            return
        for usage in usages:
            if not above(usage, params.target_thresholds):
                continue
            candidates = [pod for pod in view.pods_on(usage.name) if self.is_candidate(pod)]
            for pod in least_important_first(candidates):
                overused = above(usage, params.target_thresholds)
                if not overused:
                    break
                requests = requests_of(pod)
                if not any(requests.get(resource) for resource in overused):
                    continue  # its move would not help
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


def is_below(usage: Usage, thresholds: Mapping[str, float]) -> bool:
    """Report whether every resource is used less than its threshold."""
    return all(usage.percent(resource) < limit for resource, limit in thresholds.items())


def above(usage: Usage, thresholds: Mapping[str, float]) -> list[str]:
    """Return the resources that are used more than their thresholds."""
    return [resource for resource, limit in thresholds.items() if usage.percent(resource) > limit]


def fits(usage: Usage, requests: Mapping[str, int], thresholds: Mapping[str, float]) -> bool:
    """Report whether the node has room for the requests and would not become overused."""
    return not usage.lacking(requests) and not above(usage.with_requests(requests), thresholds)


def _shown(usage: Usage, thresholds: Mapping[str, float]) -> str:
    return ", ".join(f"{resource} {usage.percent(resource):.0f} %" for resource in above(usage, thresholds))
