"""Room on virtual nodes: their allocatable minus the requests of the pods that are bound to them. Does no IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controller_runtime.api import quantity
from controller_runtime.api.pod import pod_resources
from controller_runtime.objects import Object


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

    def with_requests(self, requests: Mapping[str, int]) -> Usage:
        """Return the usage with one more pod."""
        return Usage(self.name, self.allocatable, self.requested + Counter(requests))

    def lacking(self, requests: Mapping[str, int]) -> list[str]:
        """Return the resources of which the node has too little left for one more pod."""
        return [
            resource
            for resource, count in sorted(requests.items())
            if count and self.requested[resource] + count > self.allocatable.get(resource, 0)
        ]


def usage_of(node: Object, on_it: Iterable[Object]) -> Usage:
    """Return a virtual node's usage by the requests of these pods."""
    allocatable = (node.status or {}).get("allocatable") or {}
    requested: Counter[str] = Counter()
    for pod in on_it:
        requested.update(requests_of(pod))
    return Usage(
        node.name, {name: quantity.of(name, value) for name, value in allocatable.items()}, requested
    )


def requests_of(pod: Object) -> dict[str, int]:
    """Return a pod's requests, including ``pods: 1`` for the pod itself."""
    return {**pod_resources.pod_requests(pod.spec or {}), "pods": 1}
