"""A pod or reservation that takes room on a lower node. No IO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multi_scheduler.fit.cluster.pod_requirements import Port, Term


@dataclass(slots=True, eq=False)
class Placed:
    """A pod on a node, or a reservation for one."""

    node: str
    requests: Mapping[str, int]
    ports: tuple[Port, ...] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    anti_affinity: tuple[Term, ...] = ()
    is_ending: bool = False
    """Whether it is being deleted: it still takes room and repels other pods, but does not count for topology spread."""
    devices: Sequence[int] = ()
    """Devices of the node that its divisible resource is taken from. Empty: unknown."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of cpu and memory where they differ from the requests."""
    since: float = math.inf
    """When the lower scheduler bound the pod, in seconds since the epoch. Infinite for reservations."""
