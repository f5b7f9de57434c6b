"""A pod or reservation that takes room on a lower node. No IO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multi_scheduler.state.cluster.pod_requirements import Demand, Port
from multi_scheduler.state.cluster.pod_terms import Term


@dataclass(slots=True, eq=False)
class Placed:
    """A pod on a lower node, or a reservation of room there for a pod."""

    node: str
    requests: Mapping[str, int]
    ports: tuple[Port, ...] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    anti_affinity: tuple[Term, ...] = ()
    is_ending: bool = False
    """Whether the pod is being deleted: it still takes room and repels others, but does not count for topology spread."""
    devices: Sequence[int] = ()
    """Numbers of the node's devices from which the pod's divisible resource is taken. Empty: unknown."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of cpu and memory that are above the requests."""
    since: float = math.inf
    """When the lower scheduler bound the pod, in seconds since the epoch. Infinite for reservations."""


def placed_on(node: str, wanted: Demand) -> Placed:
    """Return a reservation of room on a lower node for a pod with these requirements."""
    return Placed(
        node=node,
        requests=wanted.requests,
        ports=wanted.ports,
        namespace=wanted.namespace,
        labels=wanted.labels,
        anti_affinity=wanted.anti_affinity,
    )
