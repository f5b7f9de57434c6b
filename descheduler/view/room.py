"""Room on virtual nodes: their allocatable minus the requests of the pods that are bound to them. Does no IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from clusterset.model.pod import pod_resources
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.apimachinery.readable import some
from controller_runtime.objects import Object
from descheduler.view import pods

_REFUSED = timedelta(minutes=1)
"""Time after which a pod that the upper scheduler has refused takes no room: the scheduler has seen the room and not used it."""


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


def taker(requests: Mapping[str, int], usages: Iterable[Usage]) -> Usage | None:
    """Return the node that would be least used after it has taken a pod; None: no node has room."""
    fitting = [usage for usage in usages if not usage.lacking(requests)]

    def fullest(usage: Usage) -> tuple[float, str]:
        after = usage.with_requests(requests)
        return max(map(after.percent, requests), default=0.0), usage.name

    return min(fitting, key=fullest, default=None)


def why_none(requests: Mapping[str, int], usages: Sequence[Usage]) -> str:
    """Return why no node has room for a pod."""
    lacks = (f"{usage.name} lacks {', '.join(usage.lacking(requests))}" for usage in usages)
    return f"no other ready virtual node has room for it: {some(lacks)}"


def will_take_room(pod: Object, now: datetime) -> bool:
    """Report whether a pod without a node is expected to take room soon.

    A pod that the upper scheduler has refused for a minute is not, for example because no single lower node has room for it.
    """
    scheduled = condition(pod.status, "PodScheduled")
    since = scheduled.get("lastTransitionTime") if scheduled.get("status") == "False" else None
    return pods.is_active(pod) and (since is None or now - timestamps.parse(since) < _REFUSED)
